"""Two hospitals and their runs in one process, with the views of an aggregator, a member and an owner."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.privacy.tables import BINARY, FILE, LABEL, LEVELS, NUMBERS, Row, patients, write
from rankdad.common.data import SiteData, read_site
from rankdad.common.documents import load_json, validate
from rankdad.common.errors import RankdadError
from rankdad.common.policy import EVERYTHING, Policy
from rankdad.common.policy_checks import check_run
from rankdad.common.privacy.parts import Secret
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Failure, Message, failure_message
from rankdad.common.protocol.plan import Plan, make_plan
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.local.privacy.assigning import assigner_of
from rankdad.simulations.lockstep import SiteMessage, Trainers, carry
from rankdad.simulations.tree import Tree

RULES = Policy()  # of the attacked hospitals
NO_RULES = EVERYTHING
SITES = ("alpha", "beta")
Lie = Callable[[str, Message], Message]


def honest(_site: str, message: Message) -> Message:
    """Return a site's message as it is."""
    return message


@dataclass(frozen=True, eq=False)
class Seen:
    """What a run shows to whom.

    Args:
        spec: the run.
        plan: of the run.
        up: what the aggregator receives, by site.
        down: what every site receives.
        before: weights at which sites made what they sent, message by message.
        summary: what the owner gets.
        weights: of the trained model, which everybody gets.
    """

    spec: RunSpec
    plan: Plan
    up: Mapping[str, list[Message]]
    down: list[Message]
    before: list[Mapping[str, Tensor]]
    summary: Mapping[str, Any]
    weights: Mapping[str, Tensor]


@dataclass(frozen=True)
class Refused:
    """What others hear of a run that a site refuses.

    Args:
        code: of the refusal.
        field: of the spec, if it may be known.
        sentence: what the site itself is told, which nobody else hears.
    """

    code: str
    field: str
    sentence: str = dataclasses.field(default="", compare=False)  # `field` is another here


@dataclass
class Hospitals:
    """Hospitals that take part in one run after the other.

    Args:
        folder: of all of them.
        count: patients of each.
        policy: of each.
        seed: of their tables and secrets.
        sites: their names.

    Attributes:
        truth: their patients, of whom attackers know the names alone.
        runs: how many runs there were.
    """

    folder: Path
    count: int
    policy: Policy
    seed: int = 0
    sites: tuple[str, ...] = SITES
    truth: dict[str, dict[str, Row]] = field(init=False)
    runs: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.truth = {site: patients(site, self.count, self.seed) for site in self.sites}

    @property
    def names(self) -> dict[str, list[str]]:
        """Names of the patients: who was at a hospital is known to some."""
        return {site: list(table) for site, table in self.truth.items()}

    def run(
        self, document: Mapping[str, Any], without: Collection[str] = (), weights: Path | None = None
    ) -> Seen | Refused:
        """Run a spec at all hospitals.

        Args:
            document: the spec.
            without: patients who are not in their tables.
            weights: folder of the weights that the spec names.
        """
        self.runs += 1
        for site, table in self.truth.items():
            write(table, self.folder / site / "data", without)
        run = f"run-{self.runs}"
        return run_sites(validate(RunSpec, dict(document)), self.folder, self.policy, run, self.seed, weights)


def run_sites(
    spec: RunSpec,
    folder: Path,
    policy: Policy,
    run: str = "run",
    seed: int = 0,
    weights: Path | None = None,
    lie: Lie = honest,
) -> Seen | Refused:
    """Run a spec at all sites, in this process, as each would by itself.

    Args:
        spec: the run.
        folder: of all sites, in whose folders their data are.
        policy: of each.
        run: its identity.
        seed: of the sites' secrets.
        weights: folder of the weights that the spec names.
        lie: what a site's message is changed to before it is heard.
    """
    sites, data = spec.federation.sites, dict[str, SiteData]()
    site = sites[0]
    try:
        plan = make_plan(spec, Replica(spec, weights=weights).model)
        for place, site in enumerate(sites):
            check_run(policy, spec.at(site), plan)
            assigner = assigner_of(folder / site / "privacy", site, policy, spec, run, secret_of(site, seed))
            data[site] = read_site(spec, folder / site / "data", place, assigner=assigner)
        trainers = Trainers(spec, plan, data, weights=weights, policies=dict.fromkeys(sites, policy))
        assert all(own.parts is None or own.parts.kept() for own in data.values())
        return trained(spec, plan, trainers, folder / "runs" / run, weights, lie)
    except RankdadError as error:
        heard = failure_message(error.site or site, 0, error).body
        assert isinstance(heard, Failure)
        return Refused(heard.code, heard.field, str(error))


def secret_of(site: str, seed: int) -> Secret:
    """Return a site's secret."""
    return Secret(hashlib.sha256(f"{site} {seed}".encode()).digest())


def trained(
    spec: RunSpec,
    plan: Plan,
    trainers: Trainers,
    directory: Path,
    weights: Path | None = None,
    lie: Lie = honest,
) -> Seen:
    """Train to the end, and return the views of it.

    Args:
        spec: the run.
        plan: of the run.
        trainers: of all sites.
        directory: of the run.
        weights: folder of the weights that the spec names.
        lie: see `run_sites`.

    Raises:
        RunFailedError: a site failed.
    """
    first = spec.federation.sites[0]
    up: dict[str, list[Message]] = {site: [] for site in spec.federation.sites}
    down, before = list[Message](), list[Mapping[str, Tensor]]()

    def exchange(answers: Mapping[str, bytes | None]) -> Iterator[tuple[str, SiteMessage]]:
        answer = answers.get(first)
        if answer is not None:
            down.append(unpack(answer, plan, up=False))
        weights = tree.top.state.replica.weights()
        for site, said in trainers.advance(answers):
            if isinstance(said, bytes):
                true = unpack(said, plan, up=True)
                message = lie(site, true)
                said = said if message is true else pack(message, plan, up=True)
                up[site].append(message)
                if site == first:  # a question whether a round is complete is no message
                    before.append(weights)
            yield site, said

    with closing(Tree(spec, partial(Replica, spec, weights=weights), directory)) as tree:
        carry(tree, exchange)
    if trainers.failures:
        raise trainers.failures[0]
    result = trainers.results[first]
    return Seen(spec, plan, up, down, before, load_json(directory / "summary.json"), result.final)


def document(**changes: Any) -> dict[str, Any]:
    """Return a spec as an owner writes it; `data` and `training` are merged, everything else replaced."""
    data = {
        "reader": "csv",
        "file": FILE,
        "key": "id",
        "features": [*NUMBERS, *BINARY, *LEVELS],
        "categorical": {column: list(levels) for column, levels in LEVELS.items()},
        "missing": "impute",
        "label": LABEL,
        "values": ["0", "1"],
    }
    training = {"epochs": 2, "batch_size": 16, "validation": 0.2, "optimizer": {"name": "sgd", "lr": 0.05}}
    own: dict[str, Any] = {
        "name": "study",
        "task": {"name": "classification", "classes": 2},
        "model": {"name": "linear"},
        "preparation": {"standardise": "federated"},
        "evaluation": {"name": "k-fold", "folds": 5},
        "method": {"name": "dsgd"},
        "federation": {"sites": list(SITES)},
    }
    merged = {"data": data | changes.get("data", {}), "training": training | changes.get("training", {})}
    return own | changes | merged
