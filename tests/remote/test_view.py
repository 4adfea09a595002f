"""What a person sees: every figure that is promised, on a terminal and off it."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Sequence

import pytest
from rich.console import Console

from rankdad.common.logs import MAX_PROGRESS
from rankdad.common.rounds.evaluation import PooledMetrics
from rankdad.common.spec.tasks import Classification
from rankdad.common.terminal import sparkline
from rankdad.page.history import History
from rankdad.remote.results.fold_metrics import FoldMetrics
from rankdad.remote.results.progress import Epoch, Progress
from rankdad.remote.results.run_summary import RunFigures
from rankdad.remote.site_status import SiteStatus
from rankdad.remote.view import LiveView, PlainView, Waiting, compared, times_fewer, view_of
from tests.screen import Screen

TASK = Classification(classes=3)


def begun(method: str, sites: tuple[str, ...], folds: int = 1) -> Progress:
    return Progress("study", method, sites, TASK, 4, folds, 67_000, FoldMetrics(TASK, sites))


def running(folds: int = 1, sites: tuple[str, ...] = ("alpha", "beta")) -> Progress:
    values: dict[str, float | None] = {"auc": 0.98765, "accuracy": 0.75, "loss": 0.25}
    pooled = PooledMetrics(split="validation", fold=0, epoch=0, samples=9, values=values, auc_error=2e-6, absent=0)
    progress = begun("rank-dad", sites, folds)
    progress.steps_per_epoch = [10] * folds
    progress.steps = progress.batches = 4 * 10 * folds
    progress.step, progress.epoch, progress.loss, progress.train_loss = 10, 1, 0.5, 0.6
    progress.up = progress.down = 10 * 2 * 1000
    progress.seconds, progress.step_seconds, progress.validation = 2.0, 1.0, pooled
    progress.monitor = "auc"
    progress.ended.append(Epoch(progress.training, 1, 0.6, pooled))
    return progress


def shown(progress: Progress, waiting: Waiting, *, terminal: bool, ticks: int = 1) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=140, color_system=None)
    view = view_of(progress, lambda: waiting, console)
    assert isinstance(view, LiveView if terminal else PlainView)
    view.start()
    for _ in range(ticks):
        view.tick()
    view.stop()
    return out.getvalue()


def test_the_live_view_shows_progress_quality_traffic_time_and_whom_it_waits_for() -> None:
    text = shown(running(), Waiting(("beta",), 12.0), terminal=True)
    for part in (
        "10/40 steps",
        "training loss 0.6000",
        "AUC 0.98765 (± 0.000002)",
        "1.0 KB up, 1.0 KB down per site and step, 67.0 times fewer than dsgd",
        "100 ms a step · 6 s left",
        "1 of 2 sites in · waiting for beta (12 s)",
    ):
        assert part in text, part


STEPS, TESTS = [1.0] * 8 + [3.0] * 2, [20.0]


@pytest.mark.parametrize(
    ("rounds", "left"),
    [
        ({"STEP/0": STEPS}, 42.0),
        ({"STEP/0": STEPS[:9] + [3600.0]}, 30 * 11 / 9),
        ({"STEP/0": [3600.0, *STEPS[1:]]}, 30 * 13 / 9),
        ({"STEP/0": STEPS, "EVALUATION/0": TESTS}, 102.0),
        ({"STEP/0": STEPS, "EVALUATION/0": [3600.0, 20.0]}, 162.0),
        ({"STEP/0": STEPS, "STEP/1": [0.01] * 10}, 42.3),
        ({"STEP/0": [0.01] * 30 + [2.0] * 50}, 60.0),
        ({}, 6.0),
    ],
)
def test_the_time_left_does_not_count_an_outage(rounds: dict[str, list[float]], left: float) -> None:
    progress = running()
    for kind, seconds in rounds.items():
        for one in seconds:
            progress.note_round(kind, one)
    assert RunFigures.of(progress).seconds_left == pytest.approx(left)


def test_no_epochs_are_promised_of_a_run_that_may_have_none() -> None:
    for method, told in (("dsgd", True), ("exact or dsgd", False), ("exact", False)):
        said = shown(begun(method, ("alpha", "beta")), Waiting(), terminal=False)
        assert f"study: {method}, 2 sites" in said
        assert ("at most 4 epochs" in said) == told


def test_bytes_compare_with_full_gradients_of_every_batch() -> None:
    progress = running()
    progress.batches = 5 * progress.steps
    assert "1.0 KB down per site and step, 335.0 times fewer than dsgd" in shown(progress, Waiting(), terminal=True)


def test_what_regions_send_is_said_of_members() -> None:
    progress = running()
    progress.regions = ["beta"]
    text = shown(progress, Waiting(("beta",), 12.0), terminal=True)
    assert "1.0 KB down per member and step" in text
    assert "1 of 2 members in · waiting for beta (12 s)" in text


def test_plain_lines_say_each_thing_once() -> None:
    text = shown(running(), Waiting(("beta",), 25.0), terminal=False, ticks=5)
    assert text.count("epoch 1 of 4 · training loss 0.6000") == 1
    assert text.count("step 10 of 40: loss 0.5000") == 1
    assert text.count("waiting for beta (25 s)") == 1
    assert "\x1b" not in text


def test_before_the_first_hello_nothing_divides_by_zero() -> None:
    progress = begun("dsgd", ("alpha",))
    assert "waiting for all sites to say hello" in shown(progress, Waiting(("alpha",), 3.0), terminal=True)


def test_who_is_left_out_and_who_is_back_is_said_once() -> None:
    alone = Waiting(("alpha",), 1.0, ("beta",))
    standing = [Waiting(("beta",), 3.0), alone, alone, Waiting()]
    out = io.StringIO()
    view = PlainView(running(), lambda: standing[0], Console(file=out))
    while len(standing) > 1:
        view.tick()
        standing.pop(0)
    view.tick()
    assert out.getvalue().splitlines()[2:] == ["continues without beta", "all sites are back"]
    said = "0 of 2 sites in · waiting for alpha (1 s) · without beta"
    assert said in shown(running(), alone, terminal=True)


def test_a_run_that_ends_does_not_go_on_without_a_site() -> None:
    ending = Waiting((), 1.0, ("beta",), ended=True)
    assert "goes on" not in shown(running(), ending, terminal=False)
    assert "without" not in shown(running(), ending, terminal=True)


def test_of_several_folds_it_says_which() -> None:
    progress = running(folds=3)
    progress.tested_folds = 2
    progress.ended[0] = dataclasses.replace(progress.ended[0], training=progress.training)
    assert "fold 1 of 2 · epoch 1 of 4 · training loss" in shown(progress, Waiting(), terminal=False)
    progress.fold, progress.step = 1, 50
    assert "fold 2 of 2 · epoch 2 of 4" in (text := shown(progress, Waiting(), terminal=True))
    assert "50/120 steps" in text
    progress.fold = 2
    assert "final model · epoch" in shown(progress, Waiting(), terminal=True)


@pytest.mark.parametrize("terminal", [True, False])
def test_what_sites_write_is_no_markup(terminal: bool) -> None:
    progress = running()
    progress.problems = {"alpha": "data.csv: no column [/x]", "beta": "no column dose [/kg] [bold] :smile: {0}"}
    progress.name = "study [/x]"
    text = shown(progress, Waiting(), terminal=terminal)
    for said in (*progress.problems.values(), "study [/x]"):
        assert said in text


@pytest.mark.parametrize(
    ("method", "ratio", "said"),
    [("dsgd", 0.5, ""), ("dsgd", 3.1, "3.1 times fewer"), ("rank-dad", 0.5, "2.0 times more")],
)
def test_full_gradients_are_not_compared_with_full_gradients(method: str, ratio: float, said: str) -> None:
    assert compared(RunFigures(method=method, times_fewer_bytes_than_dense=ratio)) == said


def test_more_bytes_than_full_gradients_are_called_more() -> None:
    assert [times_fewer(ratio) for ratio in (3.1, 0.8, 1.02, 0.999)] == [
        "3.1 times fewer",
        "1.2 times more",
        "2.0 % fewer",
        "0.1 % more",
    ]


def test_a_quiet_run_leaves_what_is_wrong_with_the_data(caplog: pytest.LogCaptureFixture) -> None:
    progress = running()
    progress.table1 = {"warnings": ["beta may have other units"]}
    for terminal in (False, True):
        view = view_of(progress, Waiting, Console(file=io.StringIO(), force_terminal=terminal, quiet=True))
        view.start()
        view.tick()
        view.stop()
    assert [record.getMessage() for record in caplog.records] == ["beta may have other units"] * 2


def test_a_site_that_is_waited_for_is_named_with_its_reason() -> None:
    progress = running()
    progress.problems = dict.fromkeys(("beta", "alpha"), "data.npz: does not exist")
    said = shown(progress, Waiting(("beta",), 12.0), terminal=False)
    assert "beta cannot take part: data.npz: does not exist; fix that and start beta again" in said
    assert "alpha cannot take part: the same as at beta" in said
    assert "waiting for beta (12 s): beta: data.npz: does not exist" in said


def drawn(progress: Progress, waiting: Waiting, sites: Sequence[SiteStatus], width: int = 80, height: int = 24) -> str:
    """Return what a terminal shows after a tick."""
    out, screen = io.StringIO(), Screen(width, height)
    console = Console(file=out, force_terminal=True, width=width, height=height, color_system=None)
    history = History(progress.sites, ["0.weight"], ["loss", "auc"])
    for value in (0.5, 0.75, float("nan"), 1.0):
        history.add_epoch({"pooled": {"auc": value}})
    view = view_of(progress, lambda: waiting, console, history, lambda: sites)
    view.start()
    for _ in range(3):
        view.tick()
    screen.feed(out.getvalue().replace("\n", "\r\n"))
    assert not screen.above, "nothing has left the terminal at its top"
    view.stop()
    return screen.text


def test_a_row_for_each_site_says_its_rows_lag_seconds_and_state() -> None:
    names = ("alpha", "beta", "gamma", "delta", "epsilon", "x" * 63)
    progress = running(sites=names)
    progress.best_value = 0.9
    text = drawn(
        progress,
        Waiting(("beta", "gamma"), 12.0),
        [
            SiteStatus("alpha", "in", 1204, seconds=0.0512),
            SiteStatus("beta", "awaited", 98, seconds=1.5),
            SiteStatus("gamma", "gone", 7),
            SiteStatus("delta", "in", 70, behind=3),
            SiteStatus("epsilon", "stopped", problem="data.npz: does not exist " * 9),
            SiteStatus("x" * 63, "absent"),
        ],
    )
    rows = [line.split() for line in text.partition("\nsite ")[2].splitlines()[1:]]
    assert [row[:5] for row in rows[:5]] == [
        ["alpha", "1,204", "–", "0.05", "connected"],
        ["beta", "98", "12", "s", "1.50"],
        ["gamma", "7", "12", "s", "–"],
        ["delta", "70", "3", "steps", "–"],
        ["epsilon", "–", "–", "–", "cannot"],
    ]
    assert [rows[1][5:], rows[2][5:], rows[3][5:]] == [["waiting", "for"], ["gone"], ["late"]]
    assert rows[5][-3:] == ["not", "here", "yet"]
    assert "AUC       ▁▅ █ best 0.9000 in epoch 1" in text


@pytest.mark.slow
def test_fifty_sites_fit_into_a_terminal_and_those_that_are_waited_for_come_first() -> None:
    names = tuple(f"hospital-{number:02}-of-a-country-far-away" for number in range(50))
    site_statuses = [SiteStatus(name, "gone" if name == names[7] else "awaited", 100) for name in names]
    waiting = Waiting((names[7], *names[40:]), 1e6)
    text = drawn(running(sites=names), waiting, site_statuses)
    table = text.partition("\nsite ")[2].splitlines()[1:]
    assert [line.partition(" ")[0][:11] for line in table[:3]] == ["hospital-07", "hospital-40", "hospital-41"]
    assert len(text.splitlines()) <= 23
    assert table[-1] == f"… and {51 - len(table)} more: {51 - len(table)} connected"
    every = drawn(running(sites=names), waiting, site_statuses, height=80)
    first = [line[:11] for line in every.partition("\nsite ")[2].splitlines()[1:]]
    assert first == [f"hospital-{number:02}" for number in range(50)]
    for width in (40, 80):
        assert len(drawn(running(sites=names), waiting, site_statuses, width, 30).splitlines()) <= 30


def test_what_has_not_changed_is_not_written_again() -> None:
    out = io.StringIO()
    progress, now = running(), iter(range(100))
    console = Console(file=out, force_terminal=True, width=80, color_system=None)
    view = LiveView(progress, Waiting, console, clock=lambda: next(now))
    view.start()
    view.tick()
    written = len(out.getvalue())
    for _ in range(5):
        view.tick()
    assert len(out.getvalue()) == written
    progress.step += 1
    view.tick()
    assert len(out.getvalue()) > written


@pytest.mark.parametrize("large", [False, True])
def test_without_a_terminal_an_epoch_is_one_line_of_at_most_100_characters(large: bool) -> None:
    names = tuple(f"{number:03}" + "x" * 60 for number in range(200)) if large else ("alpha", "beta")
    progress = running(folds=1000 if large else 1, sites=names)
    progress.ended.clear()
    if large:
        progress.tested_folds, progress.candidates, progress.epochs = 900, 0, 1_000_000
        progress.up = progress.down = 10**18
        progress.step = progress.steps = 10**12
        progress.name = "n" * 63
        progress.seconds = progress.step_seconds = 1e15
    out = io.StringIO()
    waiting = [Waiting(names, 3e7), Waiting((), 1.0, names), Waiting(())]
    view = PlainView(progress, lambda: waiting[0], Console(file=out, width=20))
    view.start()
    values = dict.fromkeys(("auc", "accuracy"), 1e300 if large else 0.5)
    for number in range(1, 8):  # of which several end between two ticks
        pooled = PooledMetrics(
            split="validation", fold=0, epoch=number, samples=9, values={**values}, auc_error=1e-300, absent=0
        )
        training, loss = ("fold 900 of 900", -1e300) if large else ("", 0.5)
        progress.ended.append(Epoch(training, number + large * 999_000, loss, pooled))
        if number in (1, 4, 7):
            view.tick()
            waiting.append(waiting.pop(0))
    view.stop()
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= MAX_PROGRESS
    epochs = [line for line in lines if " of 900 · epoch 999" in line or line.startswith("epoch")]
    assert len(epochs) == 7
    assert len(set(epochs)) == 7
    assert all("AUC" in line for line in epochs)
    if not large:
        assert epochs[0] == "epoch 1 of 4 · training loss 0.5000 · AUC 0.50000 (± 1e-300) · 6 s left · accuracy 0.5000"


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_reason_is_whole_however_narrow_the_terminal(width: int) -> None:
    progress, why, out = running(), " ".join(f"word{number}" for number in range(60)), io.StringIO()
    progress.solver, progress.method, progress.problems = {"name": "exact", "why": why}, "exact", {"beta": why}
    view = PlainView(progress, lambda: Waiting(("beta",), 10.0), Console(file=out, width=width))
    view.start()
    view.stop()
    assert next(line for line in out.getvalue().splitlines() if why in line).startswith("solved exactly")
    assert out.getvalue().count(why) == 3, "as a problem, and of the site that is waited for"


def test_a_curve_in_one_line() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 20) == "▁▂▃▄▅▆▇█"
    assert sparkline([7, 0, 7, 0], 2) == "▅▅"
    assert sparkline([1e308, -1e308, math.nan, math.inf, 0.0], 9) == "█▁  ▅"
    assert sparkline([], 5) == ""
    assert len(sparkline(list(map(float, range(1000))), 60)) == 60
