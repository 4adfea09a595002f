"""Two hospitals and their runs in one process, with all that an aggregator, a member and an owner get to see."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.privacy.tables import BINARY, FILE, LABEL, LEVELS, NUMBERS, Row, patients, write
from rankdad.common.documents import load_json, validate
from rankdad.common.errors import RankdadError
from rankdad.common.models import build_network
from rankdad.common.policy import EVERYTHING, Policy
from rankdad.common.privacy.parts import Secret
from rankdad.common.protocol.codec import unpack
from rankdad.common.protocol.messages import Failure, Message, failure_message
from rankdad.common.protocol.plan import Plan, make_plan
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.local.data import read_site
from rankdad.local.privacy.dealing import dealing_of
from rankdad.simulations.lockstep import Said, Trainers, carry
from rankdad.simulations.tree import Tree

RULES = Policy(keyed_folds=False)  # of the attacked hospitals: the defaults, in parts
NO_RULES = EVERYTHING
SITES = ("alpha", "beta")


@dataclass(frozen=True, eq=False)
class Seen:
    """What a run shows to whom.

    Args:
        spec: the run.
        plan: of the run.
        up: what the aggregator receives, by site.
        down: what every site receives.
        summary: what the owner gets.
        weights: of the trained model, which everybody gets.
    """

    spec: RunSpec
    plan: Plan
    up: Mapping[str, list[Message]]
    down: list[Message]
    summary: Mapping[str, Any]
    weights: Mapping[str, Tensor]


@dataclass(frozen=True)
class Refused:
    """What others hear of a run that a site refuses.

    Args:
        code: of the refusal.
        field: of the spec, if it may be known.
    """

    code: str
    field: str


@dataclass
class Hospitals:
    """Hospitals that take part in one run after the other.

    Args:
        folder: of all of them.
        count: patients of each.
        policy: of each.
        seed: of their tables and secrets.

    Attributes:
        truth: their patients, of whom attackers know the names alone.
        runs: how many runs there were.
    """

    folder: Path
    count: int
    policy: Policy
    seed: int = 0
    truth: dict[str, dict[str, Row]] = field(init=False)
    runs: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.truth = {site: patients(site, self.count, self.seed) for site in SITES}

    @property
    def names(self) -> dict[str, list[str]]:
        """Names of the patients: who was at a hospital is known to some."""
        return {site: list(table) for site, table in self.truth.items()}

    def run(self, document: Mapping[str, Any], without: Collection[str] = (), weights: Path | None = None) -> Seen | Refused:
        """Run a spec at all hospitals.

        Args:
            document: the spec.
            without: patients who are not in their tables.
            weights: folder of the weights that the spec names.
        """
        self.runs += 1
        spec, site = validate(RunSpec, dict(document)), SITES[0]
        try:
            plan = make_plan(spec, Replica(spec, weights=weights).model)
            data = {}
            for place, site in enumerate(SITES):
                write(self.truth[site], self.folder / site / "data", without)
                self.policy.check(spec.at(site), plan)
                secret = Secret(hashlib.sha256(f"{site} {self.seed}".encode()).digest())
                privacy = self.folder / site / "privacy"
                dealing = dealing_of(privacy, site, self.policy, spec, f"run-{self.runs}", secret)
                data[site] = read_site(spec, self.folder / site / "data", place, dealing=dealing)
            policies = dict.fromkeys(SITES, self.policy)
            trainers = Trainers(spec, plan, data, weights=weights, policies=policies)
            assert all(own.parts is None or own.parts.kept() for own in data.values())
            return self._trained(spec, plan, trainers, weights)
        except RankdadError as error:
            heard = failure_message(error.site or site, 0, error).body
            assert isinstance(heard, Failure)
            return Refused(heard.code, heard.field)

    def _trained(self, spec: RunSpec, plan: Plan, trainers: Trainers, weights: Path | None) -> Seen:
        up: dict[str, list[Message]] = {site: [] for site in SITES}
        down = list[Message]()

        def exchange(answers: Mapping[str, bytes | None]) -> Iterator[tuple[str, Said]]:
            answer = answers.get(SITES[0])
            if answer is not None:
                down.append(unpack(answer, plan, up=False))
            for site, said in trainers.advance(answers):
                if isinstance(said, bytes):
                    up[site].append(unpack(said, plan, up=True))
                yield site, said

        directory = self.folder / "runs" / str(self.runs)
        with closing(Tree(spec, partial(Replica, spec, weights=weights), directory)) as tree:
            carry(tree, exchange)
        if trainers.failures:
            raise trainers.failures[0]
        result = trainers.results[SITES[0]]
        return Seen(spec, plan, up, down, load_json(directory / "summary.json"), result.final)


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
