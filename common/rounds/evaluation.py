"""Evaluates a model on the validation or test samples of all sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from torch import Tensor

from rankdad.common.errors import ProtocolError
from rankdad.common.metrics.monitoring import measured_on
from rankdad.common.metrics.sums import Tally, empty, same_labels
from rankdad.common.metrics.tally_codec import pack_tally, tally_bytes, unpack_monitoring, unpack_tally
from rankdad.common.protocol.messages import Body, Control, Count, Figure, Kind, Measure, Message, Name, packed
from rankdad.common.rounds.base import Collected, Contributor, Cost, Due, Ready, Record, Round
from rankdad.common.rounds.checks import Checks
from rankdad.common.rounds.scores import compares, pooled_scores, unpack_scores
from rankdad.common.tensors import raw_bytes

if TYPE_CHECKING:
    from rankdad.common.protocol.plan import Plan
    from rankdad.common.run.state import RunState


def _tallies(data: bytes, plan: Plan) -> tuple[Tally, ...]:
    """Decode the tallies of the reference models."""
    size, count = tally_bytes(plan.task, plan.grouped), len(plan.references)
    if len(data) != size * count:
        raise ValueError(f"got {len(data)} bytes, expected {count} tallies of {size}")
    return tuple(unpack_tally(plan.task, data[at : at + size], plan.grouped) for at in range(0, len(data), size))


def _tally(data: bytes, plan: Plan, known: Mapping[str, Any]) -> Tally:
    if known.get("split") == "test":
        return unpack_tally(plan.task, data, plan.grouped)
    return unpack_monitoring(plan.task, data)


TALLY = packed(pack_tally, _tally)
BASELINE = packed(
    lambda tally: pack_tally(tally) if tally else b"",
    lambda data, plan, known: unpack_tally(plan.task, data) if data or known.get("split") == "test" else None,
)
REFERENCES = packed(
    lambda tallies: b"".join(map(pack_tally, tallies)),
    lambda data, plan, known: _tallies(data, plan) if known.get("split") == "test" or data else (),
)
SCORES = packed(
    lambda scores: b"" if scores is None else raw_bytes(scores.float()),
    lambda data, plan, known: unpack_scores(plan, data) if data else None,
)


class Evaluation(Control):
    """A site's tally of a test, with those of a guess and of the reference models; or its sums over the validation
    samples: see `rankdad.common.metrics.monitoring`.

    The tally of a missing reference model is empty.
    """

    split: Literal["validation", "test"]
    fold: Count
    epoch: Count
    tally: Annotated[Tally, *TALLY]
    baseline: Annotated[Tally | None, *BASELINE]
    references: Annotated[tuple[Tally, ...], *REFERENCES] = ()


class PooledMetrics(Control):
    """The answer to an evaluation: metrics over all sites, by name; null without samples.

    `absent` counts the classes without an AUC; `auc_error` is the largest error due to histograms. If a paired
    comparison follows a test, `scores` are all sites' histograms: see `rankdad.common.rounds.scores`.
    """

    split: Literal["validation", "test"]
    fold: Count
    epoch: Count
    samples: Count
    values: Annotated[dict[Name, Figure | None], Field(max_length=20)]
    auc_error: Measure | None
    absent: Count
    scores: Annotated[Tensor | None, *SCORES] = None


class EvaluationRound(Round):
    """The validation at an epoch's end, or the test at a fold's."""

    kind, up, down = Kind.EVALUATION, Evaluation, PooledMetrics

    def due(self, run: RunState) -> Due | None:
        """Return the test of the best weights, or the validation of the current ones."""
        if run.trains:
            return run.next(self.kind, split="validation")
        return run.next(self.kind, epoch=run.progress.best_epoch, split="test")

    def contribution(self, site: Contributor, due: Due, *, counts: bool) -> Evaluation:
        """Return the tallies of the model, and in a test those of other models."""
        split = due.split
        assert split is not None
        if split == "validation":
            tally = site.monitored()
            return Evaluation(split=split, fold=due.fold, epoch=due.epoch, tally=tally, baseline=None)
        tally, guess, references = site.tested(due.fold, counts=counts)
        return Evaluation(
            split=split, fold=due.fold, epoch=due.epoch, tally=tally, baseline=guess, references=references
        )

    def check(self, checks: Checks, site: str, message: Message, ago: int) -> None:
        """Check that all tallies have the split's samples and the same labels."""
        body = message.body
        assert isinstance(body, Evaluation)
        expected = checks.samples_of(site, body.split)
        checks.count("d.tally", body.tally.samples, expected)
        asked = len(checks.plan.references) if body.split == "test" else 0
        if len(body.references) != asked:
            problem = f"d.references: got {len(body.references)} tallies, expected {asked}"
            raise ProtocolError(422, problem, code="fields-differ", field="d.references")
        others = [("baseline", "baseline", body.baseline)] if body.baseline is not None else []
        for name, tally in zip(checks.plan.references, body.references, strict=False):
            if tally.samples:
                others.append(("references", f"references: {name}", tally))
        for field, named, tally in others:
            checks.count(f"d.{named}", tally.samples, expected, field=f"d.{field}")
            if not same_labels(checks.spec.task, tally, body.tally):
                raise ProtocolError(
                    422,
                    f"d.{named}: has other labels than d.tally",
                    code="labels-differ",
                    field=f"d.{field}",
                )

    def pooled(self, here: Collected) -> PooledMetrics:
        """Return the metrics over all sites."""
        spec, sent = here.spec, here.ready.bodies(Evaluation)
        first, total = sent[0], _total([one.tally for one in sent])
        metrics = measured_on(first.split, spec.task, spec.training.monitor, total)
        where: dict[str, Any] = {"split": first.split, "fold": first.fold, "epoch": first.epoch}
        if first.split == "test":
            tests = [(one.tally, one.baseline, *one.references) for one in sent if one.baseline is not None]
            where["scores"] = pooled_scores(spec, first.fold, tests)
        return PooledMetrics.model_validate({**where, **asdict(metrics)})

    def combined(self, here: Collected) -> Evaluation:
        """Return the sums of all tallies; empty for a reference that a member lacks."""
        sent = here.ready.bodies(Evaluation)
        first, tallies = sent[0], [one.tally for one in sent]
        guesses = [one.baseline for one in sent if one.baseline is not None]
        references = [
            _total(own) if all(map(_of_all, own, tallies)) else empty(here.spec.task, here.plan.grouped)
            for own in zip(*(one.references for one in sent), strict=True)
        ]
        return Evaluation(
            split=first.split,
            fold=first.fold,
            epoch=first.epoch,
            tally=_total(tallies),
            baseline=_total(guesses) if guesses else None,
            references=tuple(references),
        )

    def apply(self, run: RunState, update: Message) -> None:
        """Continue with the decision over the epoch, or the next fold."""
        body = update.body
        assert isinstance(body, PooledMetrics)
        if body.split == "validation":
            run.validation, run.decides = body, True
            return
        run.test, run.pairs = body, compares(run.spec, run.fold)
        if not run.pairs:
            run.next_fold()

    def remember(self, checks: Checks, ready: Ready) -> None:
        """Store the tallies of a test, to check the comparison."""
        sent = zip(ready.places, ready.bodies(Evaluation), strict=True)
        checks.tests = {
            checks.node.children[at]: (one.tally, one.baseline, *one.references) for at, one in sent if one.baseline
        }

    def record(self, record: Record, ready: Ready, update: Body, cost: Cost) -> None:
        """Record the metrics."""
        record.note_evaluation(ready, update)


def _of_all(reference: Tally, tally: Tally) -> bool:
    return reference.samples == tally.samples


def _total(tallies: Sequence[Tally]) -> Tally:
    total: Tally = reduce(add, tallies)
    return total
