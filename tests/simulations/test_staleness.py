"""Bounded staleness: a late contribution joins a later step, and what all have follows from the ledger alone."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from rankdad.common.lowrank.factors import Factor
from rankdad.common.lowrank.routes import Payload
from rankdad.common.protocol.codec import unpack
from rankdad.common.protocol.messages import Ask, Kind, Message
from rankdad.common.rounds.step import Step
from rankdad.local.batch import StepBatch
from rankdad.local.passes import Passes
from rankdad.remote.export import export
from rankdad.remote.records import DamageError, Entry
from rankdad.remote.run_reader import FILE, reading
from tests.conftest import SITES, run_spec
from tests.simulations.recovering import Data, Run, Site

pytestmark = pytest.mark.slow

LATE = "gamma"
NOTHING: Any = SimpleNamespace(status=SimpleNamespace(oldest=0), snapshot=lambda site: None)  # to go on from
METHODS: list[dict[str, Any]] = [
    {"name": "dsgd"},
    {"name": "rank-dad", "rank": 2},
    {"name": "rank-dad", "rank": 1, "wire": "int8", "residual": "dense"},
    {"name": "rank-dad", "rank": 1, "wire": "int8", "local_steps": 2, "moments": "reset", "lazy": 1.5},
]
NAMES = ["dsgd", "rank-dad", "int8", "local"]


def late_spec(staleness: int = 2, **changes: Any) -> Any:
    federation = {"sites": list(SITES), "quorum": 2, "grace": 2.0, "compare_every": 5, "staleness": staleness}
    return run_spec(**({"method": METHODS[1], "training": {"epochs": 3}, "federation": federation} | changes))


class Straggling(Run):
    """A run one of whose sites is slow: its steps arrive when the run is so many rounds further, in turn."""

    by: Sequence[int] = (1,)

    def present(self) -> list[Site]:
        return [site for site in super().present() if not self._is_held_up(site)]

    def _is_held_up(self, site: Site) -> bool:
        self.answer_questions(site)
        held = site.site.due
        if site.name != LATE or not isinstance(held, Message) or held.kind is not Kind.STEP:
            return False
        return self.aggregator.barrier.round < held.round + self.by[held.round % len(self.by)]


def bodies_of(run: Run) -> dict[int, bytes]:
    with reading(run.folder / "run") as file:
        return {record.round: record.body for record in file.updates()}


def updates_of(run: Run) -> dict[int, Message]:
    return {round_: unpack(body, run.aggregator.plan, up=False) for round_, body in bodies_of(run).items()}


def check_that_the_ledger_has_it_all(run: Run, digest: str) -> None:
    """The weights, and what each site keeps: its checkpoints hold to the bit what those of one do that only reads."""
    assert export(run.folder / "run", None, run.folder / "replayed").replica.digest() == digest
    bodies = bodies_of(run)
    for name, live in run.sites.items():
        again = Site(run.spec, name, live.data, run.folder / "again" / name)
        again.start(NOTHING)
        while isinstance(again.site.due, Ask):
            again.hear(bodies.get(again.site.due.round))
        kept, expected = (sorted(site.folder.iterdir()) for site in (again, live))
        assert [path.name[:12] for path in kept] == [path.name[:12] for path in expected]
        for own, its in zip(kept, expected, strict=True):
            assert state_in(own) == state_in(its), (name, own)


def state_in(checkpoint: Path) -> dict[str, Any]:
    """What a site keeps, but for what it has sent in vain: only the site itself can know of that."""
    with safe_open(checkpoint, "pt") as file:
        document, names = json.loads(file.metadata()[""]), file.keys()
        tensors = {name: file.get_tensor(name).numpy().tobytes() for name in names if not name.startswith("late-")}
    return {**tensors, **document, "sent": None}


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_a_site_that_is_always_late_takes_part(tmp_path: Path, site_data: Data, method: dict[str, Any]) -> None:
    spec = late_spec(method=method)
    run = Straggling(spec, site_data(spec), tmp_path)
    digest = run.go(lambda message: None)
    progress = run.aggregator.recorder.progress
    assert set(progress.left_out) == {LATE}
    assert 0 < progress.left_out[LATE] // 2 - 1 <= progress.late[LATE], "every second one at least joins"
    assert progress.drift == 0.0
    check_that_the_ledger_has_it_all(run, digest)


@pytest.mark.parametrize(
    ("victims", "every", "staleness", "by"),
    [
        (["aggregator"], 7, 2, [1]),
        ([LATE], 11, 2, [1, 0]),
        ([LATE, "aggregator", "alpha"], 9, 3, [0, 2, 1]),
        ([LATE, "aggregator"], 4, 1, [2]),  # later than allowed
    ],
)
def test_whoever_dies_the_ledger_has_what_a_late_contribution_did(
    tmp_path: Path, site_data: Data, victims: list[str], every: int, staleness: int, by: list[int]
) -> None:
    spec = late_spec(staleness)
    run = Straggling(spec, site_data(spec), tmp_path)
    run.by = by
    count = len(victims)
    digest = run.go(lambda message: None if message % every else victims[message // every % count])
    late = run.aggregator.recorder.progress.late
    assert LATE in late or by == [2]
    check_that_the_ledger_has_it_all(run, digest)


def test_all_that_is_applied_and_all_that_is_kept_add_up_to_all_that_took_part(
    tmp_path: Path, site_data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gradient counts with the weight that it took part with, the damped one where it was late."""
    found: dict[
        tuple[int, int], tuple[int, list[Tensor], float]
    ] = {}  # samples, gradients and loss, by round and place
    compute = Passes.step

    def step(self: Passes, batch: StepBatch, moments: Any) -> Any:
        own, after = compute(self, batch, moments)
        assert own is not None
        found[self._run.round, self._index] = len(batch), dense(own.gradients), own.loss
        return own, after

    monkeypatch.setattr(Passes, "step", step)
    method = {"name": "rank-dad", "rank": 1, "residual": "dense", "wire": "float64"}
    spec = late_spec(method=method, training={"epochs": 3, "dtype": "float64", "batches": "full"})
    run, checked = Straggling(spec, site_data(spec), tmp_path), list[int]()

    def check(message: int) -> None:
        states = [run.aggregator.state, *(site.state.run for site in run.sites.values())]
        if len({state.round for state in states}) > 1 or states[0].over:
            return
        updates = list(updates_of(run).values())
        steps = [(update, update.body) for update in updates if isinstance(update.body, Step)]
        kept = [site.state.residuals for site in run.sites.values()] + [run.aggregator.store.residuals]
        parts = [
            [(*found[steps[at - age][0].round, place], 1 + age) for age, place in who_took_part(update)]
            for at, (update, _) in enumerate(steps)
        ]
        for (_, body), contributions in zip(steps, parts, strict=True):
            assert body.weight == pytest.approx(sum(samples / by for samples, *_, by in contributions))
            loss = sum(samples / by * loss for samples, _, loss, by in contributions)
            assert body.loss == pytest.approx(loss / body.weight)
        for n, route in enumerate(run.aggregator.plan.routes):
            took_part = torch.zeros(route.matrix, dtype=torch.float64)
            for (_, body), contributions in zip(steps, parts, strict=True):
                for samples, gradients, _, by in contributions:
                    took_part += gradients[n] * samples / by / body.weight
            applied = sum(dense(body.payload)[n] for _, body in steps)
            residuals = sum(dense((residual[route.name],))[0] for residual in kept if route.name in residual)
            assert torch.allclose(took_part - applied - residuals, torch.zeros_like(took_part), atol=1e-12)
        checked.append(sum(len(update.late) for update in updates))

    run.go(check)
    assert max(checked) >= 3


def dense(payload: Payload) -> list[Tensor]:
    return [value.gradient() if isinstance(value, Factor) else value.clone() for value in payload]


def who_took_part(update: Message) -> list[tuple[int, int]]:
    """Return ages and places of an update's contributions."""
    return [*((0, place) for place in range(len(SITES)) if place not in update.missing), *update.late]


def test_a_damaged_late_contribution_stops_the_aggregator_and_is_named(tmp_path: Path, site_data: Data) -> None:
    """Its site has been answered, and will not send it again."""
    spec = late_spec()
    data = site_data(spec)
    run = Straggling(spec, data, tmp_path)

    def interrupt(message: int) -> None:
        if run.aggregator.barrier.stale and run.aggregator.state.steps > 1:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run.go(interrupt)
    run.aggregator.abandon()
    file = tmp_path / "run" / FILE
    whole = file.read_bytes()
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("UPDATE contributions SET body = CAST('' AS BLOB) WHERE entry = ?", (Entry.LATE,))
    with pytest.raises(DamageError, match=r"contribution \d+ of round \d+ is damaged"):
        Run(spec, data, tmp_path)
    file.write_bytes(whole)
    again = Straggling(spec, data, tmp_path)
    check_that_the_ledger_has_it_all(again, again.go(lambda message: None))
