"""Whoever is killed, and at whatever it was, the run ends with the weights of one that was never disturbed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.data import read_site
from rankdad.common.spec import RunSpec
from rankdad.remote.records import Retention
from rankdad.simulations import lockstep
from tests.conftest import SITES, run_spec, write_site
from tests.e2e.crashing import Run, outcome, recorded_rounds
from tests.e2e.failpoints import POINTS, Crash

METHODS: dict[str, dict[str, Any]] = {
    "rank-dad": {"name": "rank-dad", "rank": 2},
    "powersgd": {"name": "powersgd", "rank": 2},
    "local": {"name": "rank-dad", "rank": 2, "wire": "int8", "preset": "diloco", "local_steps": 2, "lazy": 1.5},
}
STEPS = 80  # 8 epochs of the largest site's 10 batches, or 16 of 5 times 2
SITE = ("compute", "upload", "wait", "download", "half a checkpoint", "checkpoint in place")
AGGREGATOR = tuple(point for point in POINTS if point not in {"compute", "upload", "wait", "download", "result"})
ONCE = ("farewell", "end", "model", "half a new file", "new file")
RARE = ("checkpoint", "goes", "summary")  # words of points that are passed less than once a step

Case = tuple[str, str]  # victim, point
CASES: list[Case] = [("site", point) for point in SITE] + [("aggregator", point) for point in AGGREGATOR]


class Undisturbed:
    """Runs in one process, without checkpoints and ledger, one of each method."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        for number, (site, count) in enumerate(zip(SITES, (123, 90, 50), strict=True)):  # 80 % of which are trained on
            write_site(self.data / site, count, number)
        self._folder = folder
        self._outcomes: dict[str, dict[str, Any]] = {}

    def outcome(self, method: str) -> dict[str, Any]:
        if method not in self._outcomes:
            spec = spec_of(method)
            data = {site: read_site(spec, self.data / site, index) for index, site in enumerate(SITES)}
            lockstep.run(spec, data, self._folder / method)
            self._outcomes[method] = outcome(self._folder / method)
        return self._outcomes[method]


def spec_of(method: str) -> RunSpec:
    epochs = 16 if method == "local" else 8  # of half as many steps
    return run_spec(
        method=METHODS[method],
        model={"name": "mlp", "hidden": [16, 16], "dropout": 0.1},
        training={"epochs": epochs, "schedule": {"name": "cosine", "warmup": 5}, "clip": 1.0},
        federation={"sites": list(SITES), "compare_every": 25},
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture
def play(tmp_path: Path, undisturbed: Undisturbed) -> Callable[..., None]:
    """Run to the end with crashes, and compare with the run without."""

    def play(
        method: str, crashes: dict[str, list[Crash]], act: Callable[[Run], None] = Run.finish, **options: Any
    ) -> None:
        spec = spec_of(method)
        run = Run(spec, undisturbed.data, tmp_path / "run", crashes, **options)
        with run.started():
            act(run)
        expected = undisturbed.outcome(method)
        assert expected["steps"] == STEPS
        assert set(expected["weights_sha256"].values()) == {expected["aggregator_sha256"]}
        assert outcome(run.directory) == expected
        rounds = recorded_rounds(spec, run.directory)
        assert rounds == list(range(rounds[0], rounds[-1] + 1))
        assert (rounds[0] == 0) == (run.retention is Retention.ALL)

    return play


def crash(point: str, seed: random.Random) -> Crash:
    if point in ONCE:
        return Crash(point)
    return Crash(point, seed.randrange(5, STEPS - 15), 0 if any(word in point for word in RARE) else seed.randrange(6))


def one_crash(number: int, case: Case) -> tuple[dict[str, list[Crash]], dict[str, Any]]:
    """Return who dies and where, and the circumstances, as a case's own generator draws them."""
    seed = random.Random(number)
    victim = seed.choice(SITES) if case[0] == "site" else "aggregator"
    crashes = {victim: [crash(case[1], seed)]}
    return crashes, {"queueing": seed.random() < 0.5, "retention": seed.choice(list(Retention))}


@pytest.mark.slow
@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("number", "case"), list(enumerate(CASES)), ids=["-".join(case) for case in CASES])
def test_one_dies(play: Callable[..., None], turn: int, number: int, case: Case) -> None:
    """The methods take turns, so that .ci/run has each point once."""
    crashes, options = one_crash(2 * number + turn, case)
    play(list(METHODS)[(number + turn) % len(METHODS)], crashes, **options)


@pytest.mark.exhaustive
def test_a_site_and_the_aggregator_die_with_half_of_a_message_sent(play: Callable[..., None]) -> None:
    crashes = {"beta": [Crash("upload", 27)], "aggregator": [Crash("half a commit", 54, 1)]}
    play("rank-dad", crashes, queueing=False, retention=Retention.TAIL)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_all_die_at_once(play: Callable[..., None], method: str) -> None:
    step = random.Random(method).randrange(5, STEPS - 15)

    def act(run: Run) -> None:
        run.wait_for_step(step)
        run.kill_all()
        for name in run.names:
            run.start(name)
        run.finish()

    play(method, {}, act)


@pytest.mark.exhaustive
def test_they_die_again_and_again_before_the_first_step(play: Callable[..., None]) -> None:
    start = ("half a new file", "new file", "half a summary")
    hello = ("contribution", "aggregate", "update", "half a commit", "committed", "followed")
    crashes = {
        "aggregator": [Crash(point) for point in start + hello],
        "alpha": [Crash("wait", skip=skip) for skip in range(3)],
        "beta": [Crash("half a checkpoint"), Crash("compute")],
    }
    play("rank-dad", crashes)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_who_takes_its_place_dies_too_while_catching_up(play: Callable[..., None], method: str) -> None:
    crashes = {
        "aggregator": [Crash("what goes", 35), Crash("aggregate", 0, 1), Crash("half a checkpoint", 60)],
        "alpha": [Crash("checkpoint in place", 37), Crash("compute", 41), Crash("upload", 45)],
    }
    play(method, crashes, retention=Retention.TAIL)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("number", range(2))
def test_everyone_dies_twice(play: Callable[..., None], method: str, number: int) -> None:
    seed = random.Random(f"{method} {number}")

    def twice(points: tuple[str, ...]) -> list[Crash]:
        steps = sorted((seed.randrange(0, STEPS // 2), seed.randrange(STEPS // 2, STEPS - 15)))
        return [Crash(seed.choice(points), step) for step in steps]

    lasting = tuple(point for point in AGGREGATOR if point not in ONCE)
    crashes = {site: twice(SITE) for site in SITES} | {"aggregator": twice(lasting)}
    play(method, crashes, queueing=bool(number), retention=list(Retention)[number])


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", METHODS)
def test_they_die_again_and_again_after_the_last_step(play: Callable[..., None], method: str) -> None:
    crashes = {
        "aggregator": [
            Crash("contribution", STEPS),
            Crash("update", STEPS, 1),
            Crash("half an answer", STEPS, 2),
            Crash("farewell"),
        ],
        "alpha": [Crash("wait", STEPS), Crash("download", STEPS, 1), Crash("upload", STEPS)],
        "gamma": [Crash("wait", STEPS, 1), Crash("wait", STEPS, 2)],
    }
    play(method, crashes, queueing=False)


@pytest.mark.exhaustive
@pytest.mark.parametrize("point", ["wait", "download", "result"])
def test_a_site_that_dies_when_all_is_over_has_its_model_from_an_aggregator_that_is_started_again(
    play: Callable[..., None], point: str
) -> None:
    last = Crash(point, STEPS, 0 if point == "result" else 3)  # evaluation, decision and test come before the goodbye

    def act(run: Run) -> None:
        run.finish("aggregator", "alpha", "gamma")
        run.start("aggregator")
        run.finish()
        assert (run.folder / "beta" / "model" / "best.safetensors").exists()

    play("rank-dad", {"beta": [last]}, act, queueing=False)
