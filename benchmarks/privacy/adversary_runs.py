"""A run of the attacked site and others in this process, with all messages to its aggregator."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.privacy.adversary_specs import VICTIM
from rankdad.common.data import SiteData, read_site
from rankdad.common.data.prepared import Prepared
from rankdad.common.errors import RunFailedError, UserError
from rankdad.common.lowrank.factors import Factor
from rankdad.common.metrics.smoothing import Smooth
from rankdad.common.metrics.sums import Tally
from rankdad.common.policy import EVERYTHING, Policy
from rankdad.common.policy_checks import check_run
from rankdad.common.privacy.parts import Secret
from rankdad.common.protocol.codec import unpack
from rankdad.common.protocol.messages import Body
from rankdad.common.protocol.plan import Plan, make_plan
from rankdad.common.rounds.step import Step
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import TaskSpec
from rankdad.local import contributions
from rankdad.local.admission import admitted
from rankdad.local.evaluation import tally_of
from rankdad.local.privacy.assigning import assigner_of
from rankdad.remote.aggregator import Aggregator
from rankdad.simulations.lockstep import SiteMessage, Trainers, carry
from rankdad.simulations.tree import Tree

SECRET = Secret(b"known to the attacked site alone")  # of the attacked site, the same so that runs can be repeated


@dataclass(frozen=True, eq=False)
class Watched(SiteData):
    """A site's data that note which rows were drawn: the truth, against which a finding is held.

    Args:
        drawn_rows: fold and rows of each batch.
    """

    drawn_rows: list[tuple[int, Tensor]] = field(default_factory=list)

    def drawn(self, fold: int, sizes: Sequence[int], generator: torch.Generator) -> Iterator[Tensor]:
        """Yield an epoch's batches, and note them."""
        for places in super().drawn(fold, sizes, generator):
            self.drawn_rows.append((fold, self.splits[fold].train[places]))
            yield places


@dataclass(frozen=True, eq=False)
class Heard:
    """A contribution of the attacked site.

    Args:
        body: of the message.
        fold: number of the training.
        weights: digest of the weights that it is about.
        first: whether these are the ones that the training began with.
        model: the weights themselves, of a step.
    """

    body: Body
    fold: int
    weights: str
    first: bool
    model: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Run:
    """What has come of a run.

    Args:
        spec: of the run.
        heard: all that the site sent.
        totals: what all sites' sums came to, by stage: float64 [folds, …].
        data: of the site, as it was admitted: the truth.
        fewest: patients of a part, as the policy says.
        gaps: bool [samples, columns], which values the site does not have, and so cannot tell.
        tests: what was sent of each test, and what the exact scores would have been: the truth.
    """

    spec: RunSpec
    heard: tuple[Heard, ...]
    totals: Mapping[str, Tensor]
    data: Watched
    fewest: int
    gaps: Tensor
    tests: tuple[tuple[Tally, Tally], ...]

    def patients(self, rows: Tensor) -> frozenset[str]:
        """Return the patients of some rows."""
        return frozenset(self.data.keys[row] for row in rows.tolist())

    def batches(self, fold: int) -> list[Tensor]:
        """Return the rows of each batch of a training, in order."""
        return [rows for number, rows in self.data.drawn_rows if number == fold]


def attend(
    spec: RunSpec,
    folders: Mapping[str, Path],
    home: Path,
    policy: Policy,
    name: str,
    weights: Path,
) -> Run:
    """Run with the first site as the attacked one.

    Args:
        spec: of the run.
        folders: of every site's tables.
        home: of the attacked site's log.
        policy: of the attacked site.
        name: of the run.
        weights: folder of chosen initial weights.

    Raises:
        UserError: the site refuses.
        RunFailedError: it cannot go on.
    """
    replica = partial(Replica, spec, weights=weights)
    plan = make_plan(spec, replica().model)
    data, policies = dict[str, SiteData](), dict.fromkeys(plan.sites, EVERYTHING)
    policies[VICTIM] = policy
    check_run(policy, spec.at(VICTIM), plan)
    for index, site in enumerate(plan.sites):
        assigner = assigner_of(home / "privacy", VICTIM, policy, spec, name, SECRET) if site == VICTIM else None
        data[site] = read_site(spec, folders[site], index, assigner=assigner)
    own = data[VICTIM]
    watched = Watched(**{one.name: getattr(own, one.name) for one in fields(SiteData)})
    data[VICTIM] = watched
    as_admitted = admitted(policy, spec.at(VICTIM), plan, watched)
    assert isinstance(as_admitted, Watched)
    trainers = Trainers(spec, plan, data, weights=weights, policies=policies)
    if as_admitted.parts is not None and not as_admitted.parts.kept():
        raise UserError("data: the log has changed", code="another-run-began", field="data")
    heard, tests = list[Heard](), list[tuple[Tally, Tally]]()

    def watched_tally(
        task: TaskSpec, prepared: Prepared, outputs: Tensor, groups: Tensor | None = None, curves: Smooth | None = None
    ) -> Tally:
        sent = tally_of(task, prepared, outputs, groups, curves)
        if prepared.order_key in {as_admitted.order_key(fold) for fold in range(len(as_admitted.splits))}:
            tests.append((sent, tally_of(task, prepared, outputs, groups)))
        return sent

    with closing(Tree(spec, replica, home / name)) as tree, patch.object(contributions, "tally_of", watched_tally):
        carry(tree, partial(_overheard, trainers, tree.top, plan, heard))
        totals = dict(tree.top.state.totals)
        failed = tree.top.barrier.failed
    if failed:
        raise trainers.failures[0] if trainers.failures else RunFailedError(VICTIM, "it ended", code="error")
    assert isinstance(own.samples.inputs, Tensor)
    return Run(spec, tuple(heard), totals, as_admitted, policy.min_rows, own.samples.inputs.isnan(), tuple(tests))


def _overheard(
    trainers: Trainers, top: Aggregator, plan: Plan, heard: list[Heard], answers: Mapping[str, bytes | None]
) -> Iterator[tuple[str, SiteMessage]]:
    """Yield sites' messages, and record the attacked one's."""
    state = top.state
    due, model = state.due, state.replica.weights()
    first = not (state.epoch or state.step)
    digest = _digest(model)
    for site, said in trainers.advance(answers):
        if site == VICTIM and isinstance(said, bytes) and due is not None:
            body = unpack(said, plan, up=True).body
            kept = model if isinstance(body, Step) else {}
            heard.append(Heard(body, due.fold, digest, first, {name: value.clone() for name, value in kept.items()}))
        yield site, said


def _digest(model: Mapping[str, Tensor]) -> str:
    """Return a digest of weights to five digits: steps that move them by less are at equal weights."""
    digest = hashlib.sha256()
    for name, value in sorted(model.items()):
        rounded = torch.round(value.double() * 1e5) / 1e5 + 0.0
        digest.update(name.encode() + rounded.numpy().tobytes())
    return digest.hexdigest()


def gradients(step: Step) -> list[Tensor]:
    """Return a step's matrices, those of factors multiplied out."""
    return [(one.gradient() if isinstance(one, Factor) else one).double() for one in step.payload]
