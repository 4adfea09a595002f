"""A site that lies can do no more than end its own part: the others go on, and end as they would without it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rankdad.common.data import SiteData
from rankdad.common.errors import ProtocolError
from rankdad.common.metrics.monitoring import monitored
from rankdad.common.metrics.sums import Tally
from rankdad.common.preparation.coefficients import OWN
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Body, Failure, Kind, Message
from rankdad.common.rounds.buffers import Buffers
from rankdad.common.rounds.comparison import Sketch
from rankdad.common.rounds.decision import Decision
from rankdad.common.rounds.evaluation import Evaluation
from rankdad.common.rounds.goodbye import Goodbye
from rankdad.common.rounds.paired import Squares
from rankdad.common.rounds.step import Step
from rankdad.common.rounds.sums import Sums
from rankdad.common.run.weight_sketch import PARTS
from rankdad.common.spec.tasks import Classification
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.run_reader import reading
from rankdad.simulations import lockstep
from tests.common.metrics.samples import tallied
from tests.conftest import run_spec
from tests.remote.lying import EXACT, HONEST, LIAR, METHOD, Lie, Run, squares_lies, step_of, sums_lies
from tests.remote.lying import data as data
from tests.simulations.test_patients import visits

SKETCH = Sketch(weights=torch.zeros(PARTS, dtype=torch.float64))
GOODBYE = Goodbye(weights_sha256="0" * 64, sketch=torch.zeros(PARTS, dtype=torch.float64))


TASK = Classification(classes=3)
ONE = tallied(TASK, torch.tensor([[2.0, 0.5, 0.1]]), torch.tensor([0]))
MONITORED = monitored(TASK, "loss", torch.tensor([[2.0, 0.5, 0.1]]), torch.tensor([0]), torch.ones(1))


def evaluation(**changes: Any) -> Evaluation:
    fields = {"split": "test", "fold": 0, "epoch": 0, "tally": ONE, "baseline": ONE}
    return Evaluation.model_validate(fields | changes)


def always(kind: Kind, body: Body) -> Lie:
    return lambda run: Message(kind, run.round, body)


def evaluating(**changes: Any) -> Lie:
    """Where an evaluation is due, with sums that cannot be."""

    def lie(run: Run) -> Message:
        due = run.aggregator.state.due
        split = due.split or "validation" if due else "test"
        fields: dict[str, Any] = {"split": split, "epoch": due.epoch} if due else {}
        fields |= {"tally": MONITORED, "baseline": None} if split == "validation" else {}
        return Message(Kind.EVALUATION, run.round, evaluation(**fields | changes))

    return lie


def losing(loss: float) -> Tally:
    """A tally with that sum of losses, which stands first among the sums."""
    sums = MONITORED.sums.clone()
    sums[0] = loss
    return replace(MONITORED, sums=sums)


def more_right() -> Tally:
    """A tally with one hit more than there are samples."""
    found = replace(MONITORED, counts=MONITORED.counts.clone())
    found.counts[1] = 2
    return found


REFUSED: dict[str, tuple[Lie, str]] = {
    "says goodbye": (always(Kind.GOODBYE, GOODBYE), "409 k: got GOODBYE in round 1, expected STEP"),
    "compares": (always(Kind.COMPARISON, SKETCH), "409 k: got COMPARISON in round 1, expected STEP"),
    "sends buffers": (always(Kind.BUFFERS, Buffers(samples=9, values={})), "409 k: got BUFFERS in round 1, expected"),
    "says hello": (lambda run: replace(run.hello, round=run.round), "409 k: got HELLO in round 1, expected STEP"),
    "tests": (
        always(Kind.EVALUATION, evaluation(epoch=9)),
        "409 d.split: got test, expected validation",
    ),
    "validates another epoch": (evaluating(epoch=99), "409 d.epoch: got 99, expected 0"),
    "stops": (always(Kind.DECISION, Decision(epoch=0, best=True, stop=True)), "409 d: got epoch=0 best=True stop=True"),
    "decides another epoch": (
        always(Kind.DECISION, Decision(epoch=9, best=True, stop=False)),
        "409 d.epoch: got 9, expected 0",
    ),
    "denies the best": (always(Kind.DECISION, Decision(epoch=0, best=False, stop=False)), "409 d: got epoch=0 best=F"),
    "validates another fold": (evaluating(fold=1), "409 d.fold: got 1, expected 0"),
    "counts too many": (
        evaluating(tally=replace(MONITORED, counts=torch.full_like(MONITORED.counts, -1))),
        "422 d.tally: a count is larger than 2147483647",
    ),
    "counts more right than there are": (evaluating(tally=more_right()), "422 d.tally: more hits than"),
    "loses too much": (evaluating(tally=losing(1e308)), "422 d.tally: a sum is NaN or larger than 1e+300"),
    "loses nothing it can": (evaluating(tally=losing(float("nan"))), "422 d.tally: a sum is NaN or larger than"),
    "steps with nothing": (step_of(0.0), "422 m: the weight: is of 0 samples, expected the 8 that the site has"),
    "weighs all": (step_of(1e12), "422 m: the weight: is of 1e+12 samples, expected the 8 that the site has"),
    "steps too far": (step_of(8.0, 3e18), "422 b: the gradient of 1.weight has a size of 1.9e+38, expected less tha"),
    "projects no gradient": (
        step_of(8.0, 0.0, 0.0, -1.0),
        "422 b: projections of norm 6.16, expected at most 1e-30: m: 0",
    ),
    "sums up": (
        always(Kind.SUMS, Sums(stage="labels", values=torch.empty(0))),
        "422 d.values: there is no preparation stage",
    ),
}
TAKEN: dict[str, Lie] = {
    "is silent": lambda run: None,
    "fails for another": always(Kind.FAILURE, Failure(site="beta", reason="x" * 500)),
}


def honest_digest(run: Run, *lies: Lie) -> str:
    """Let the run end; return the digest of the honest sites' weights."""
    results, progress = run.go(*lies), run.aggregator.recorder.progress
    assert (progress.status, progress.epoch, progress.step) == ("completed", 2, progress.steps)
    assert {result.epochs for result in results.values()} == {2}
    (digest,) = {result.weights_sha256[site] for result in results.values() for site in HONEST}
    assert progress.aggregator_sha256 == digest
    return digest


@pytest.mark.slow
def test_every_lie_is_refused_and_the_others_end_as_if_the_liar_were_silent(
    tmp_path: Path, data: dict[str, SiteData]
) -> None:
    """One run takes them all, each in every round."""
    run = Run(tmp_path / "lies", data)
    digest = honest_digest(run, *(lie for lie, _ in REFUSED.values()))
    assert digest == honest_digest(Run(tmp_path / "silent", data))
    for name, (_, said) in REFUSED.items():
        assert any(reason.startswith(said) for reason in run.refused), (name, run.refused)


@pytest.mark.slow
def test_a_site_that_takes_its_weight_out_of_a_step_s_later_exchange_is_refused(
    tmp_path: Path, data: dict[str, SiteData]
) -> None:
    """The update's weight was then none that the others could check, and ended the run of all."""
    run = Run(tmp_path, data, method={"name": "powersgd", "rank": 2})

    def lie(run: Run) -> Message | None:
        due = run.aggregator.state.due
        return step_of(0.0 if due and due.exchange else 8.0)(run)

    honest_digest(run, lie)
    assert any(said.startswith("422 m: the weight: is of 0 samples, expected the 8") for said in run.refused)


@pytest.mark.slow
def test_a_norm_below_0_is_refused(tmp_path: Path, data: dict[str, SiteData]) -> None:
    run = Run(tmp_path, data)

    def lie(run: Run) -> Message | None:
        step = step_of(8.0)(run)
        assert step is not None
        assert isinstance(step.body, Step)
        return replace(step, body=replace(step.body, norm=-1.0))

    honest_digest(run, lie)
    assert "422 m: got norm -1.0, expected at most 1e+300 and at least 0" in run.refused


@pytest.mark.slow
def test_projections_that_would_be_infinite_in_the_weights_precision_are_refused(
    tmp_path: Path, data: dict[str, SiteData]
) -> None:
    """Their squares made all sites' weights NaN, whatever norm was stated, where the wire holds larger numbers."""
    run = Run(tmp_path, data, method=METHOD | {"wire": "float64"})

    def lie(run: Run) -> Message | None:
        step = step_of(8.0, 0.0, 1e25, 1e25)(run)
        assert step is not None
        assert isinstance(step.body, Step)
        return replace(step, body=replace(step.body, norm=1e300))

    honest_digest(run, lie)
    assert any(said.startswith("422 b: projections of norm 6.93e+25, expected at most 1e+17") for said in run.refused)


@pytest.mark.slow
@pytest.mark.parametrize("lie", TAKEN)
def test_a_liar_ends_its_own_part_alone(tmp_path: Path, data: dict[str, SiteData], lie: str) -> None:
    honest_digest(Run(tmp_path / "run", data), TAKEN[lie])


@pytest.mark.slow
def test_asking_for_the_state_again_and_again_fills_neither_ledger_nor_summary(
    tmp_path: Path, data: dict[str, SiteData]
) -> None:
    """Every state that is given takes a contribution back, which then is sent and recorded once more."""
    run, given, refused = Run(tmp_path, data, LedgerOptions(every=3)), [], []

    def lie(run: Run) -> None:
        step = step_of(8.0)(run)
        assert step is not None
        for _ in range(20):
            try:
                if run.aggregator.snapshot(LIAR) is not None:
                    given.append(run.round)
            except ProtocolError as error:
                refused.append(f"{error.status} {error}")
            with contextlib.suppress(ProtocolError):  # no step is due, or another
                run.aggregator.take(LIAR, pack(step, run.plan, up=True))

    honest_digest(run, lie)
    resets = [reset["round"] for reset in run.aggregator.recorder.progress.resets]
    assert len(resets) == len(set(resets)) > 3
    assert max(given.count(round_) for round_ in given) == 3
    assert f"429 alpha has received the run's state 3 times in round {resets[-1]}" in refused
    with reading(tmp_path) as file:
        records = list(file.records())
    sent = [(record.round, record.site, record.entry) for record in records]
    assert max(sent.count(one) for one in sent) == 3
    assert len(sent) < 9 * run.round


CODES = {"sums-unusable", "body-malformed", "weight-differs", "fields-differ", "round-unexpected"}
FITTED: dict[str, dict[str, Any]] = {
    "steps": {"evaluation": {"name": "holdout", "references": ["linear", "site"]}},
    "exact": EXACT | {"evaluation": {"name": "holdout", "references": ["site"]}},
    "groups": {"evaluation": {"name": "k-fold", "folds": 2, "refit": False, "references": ["linear"]}},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "fitted", ["exact", *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("steps", "groups"))]
)
def test_sums_that_no_rows_have_are_refused_by_name_and_change_nothing(
    tmp_path: Path, site_data: Callable[..., dict[str, SiteData]], monkeypatch: pytest.MonkeyPatch, fitted: str
) -> None:
    """Of the solver's rounds, of a site's coefficients and of a comparison: the liar tells each before the truth."""
    spec = run_spec(**FITTED[fitted])
    if fitted == "groups":
        spec, data = visits(tmp_path, **FITTED[fitted])
    else:
        data = site_data(spec, (90, 60, 40))
    lockstep.run(spec, data, tmp_path / "undisturbed")
    real, told = Aggregator.take, dict[str, int]()

    def state(aggregator: Aggregator) -> tuple[Any, ...]:
        barrier, known = aggregator.barrier, aggregator.state
        return barrier.round, barrier.missing(), barrier.stored, dict(barrier._bodies), known.fold, dict(known.totals)

    def take(self: Aggregator, site: str, body: bytes) -> Any:
        true = unpack(body, self.plan, up=True)
        if site == spec.federation.sites[0] and isinstance(true.body, Sums | Squares):
            stage = getattr(true.body, "stage", "paired")
            wrong = squares_lies if isinstance(true.body, Squares) else sums_lies
            lies: list[tuple[str, str, dict[str, Any]]] = []
            lies += [("d.values", name, {"values": one}) for name, one in wrong(spec, stage, true.body.values)]
            if isinstance(true.body, Squares):
                lies += [("d.fold", "", {"fold": 7}), ("d.samples", "", {"samples": true.body.samples + 1})]
            messages = [
                (field, name, replace(true, body=true.body.model_copy(update=change))) for field, name, change in lies
            ]
            for field, name, lie in [*messages, ("r", "", replace(true, round=true.round + 1))]:
                before = state(self)
                refused: ProtocolError | None = None
                try:
                    real(self, site, pack(lie, self.plan, up=True))
                except ProtocolError as error:
                    refused = error
                assert refused is not None, f"{stage}: {name} is taken"
                assert (refused.field, refused.status // 100) == (field, 4), (stage, name)
                assert refused.code in CODES
                assert state(self) == before, (stage, name)
            told[stage] = len(messages)
        return real(self, site, body)

    monkeypatch.setattr(Aggregator, "take", take)
    lockstep.run(spec, data, tmp_path / "lied-to")
    assert (
        told.keys()
        >= {
            "steps": {"linear-1", "curvature", "fold-1", "paired"},
            "exact": {"linear-1", "curvature", "unpenalised-1", "fold-1", OWN, "paired"},
            "groups": {"paired"},
        }[fitted]
    )
    one, other = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("undisturbed", "lied-to"))
    for key in ("weights_sha256", "metrics", "coefficients"):
        assert one.get(key) == other.get(key)
