"""What a person sees: every figure that is promised, on a terminal and off it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rankdad.common.protocol.messages import PooledMetrics
from rankdad.common.spec.tasks import Classification
from rankdad.remote.fold_metrics import FoldMetrics
from rankdad.remote.progress import Progress
from rankdad.remote.view import LiveView, PlainView, Waiting, times_fewer, view_of

TASK = Classification(classes=3)


def begun(method: str, sites: tuple[str, ...], folds: int = 1) -> Progress:
    return Progress("study", method, sites, TASK, 4, folds, 67_000, FoldMetrics(TASK, sites))


def running(folds: int = 1) -> Progress:
    values: dict[str, float | None] = {"auc": 0.98765, "accuracy": 0.75, "loss": 0.25}
    pooled = PooledMetrics(split="validation", fold=0, epoch=0, samples=9, values=values, auc_error=2e-6, absent=0)
    progress = begun("rank-dad", ("alpha", "beta"), folds)
    progress.steps_per_epoch = [10] * folds
    progress.steps = progress.batches = 4 * 10 * folds
    progress.step, progress.epoch, progress.loss, progress.train_loss = 10, 1, 0.5, 0.6
    progress.up = progress.down = 10 * 2 * 1000
    progress.seconds, progress.step_seconds, progress.validation = 2.0, 1.0, pooled
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
        "AUC 0.98765 (± 2e-06)",
        "1.0 KB up, 1.0 KB down per site and step, 67.0 times fewer than dsgd",
        "100 ms a step · 6 s left",
        "1 of 2 sites in · waiting for beta (12 s)",
    ):
        assert part in text, part


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
    assert text.count("step 1 of 40") == 1
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
    assert out.getvalue().splitlines()[2:] == ["goes on without beta", "all sites are back"]
    said = "0 of 2 sites in · waiting for alpha (1 s) · without beta"
    assert said in shown(running(), alone, terminal=True)


def test_a_run_that_ends_does_not_go_on_without_a_site() -> None:
    ending = Waiting((), 1.0, ("beta",), ended=True)
    assert "goes on" not in shown(running(), ending, terminal=False)
    assert "without" not in shown(running(), ending, terminal=True)


def test_of_several_folds_it_says_which() -> None:
    progress = running(folds=3)
    progress.tested_folds = 2
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


def test_more_bytes_than_full_gradients_are_called_more() -> None:
    assert (times_fewer(3.1), times_fewer(0.8)) == ("3.1 times fewer", "1.2 times more")


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
    progress.problems = {"beta": "data.npz: does not exist"}
    said = shown(progress, Waiting(("beta",), 12.0), terminal=False)
    assert "beta cannot take part: data.npz: does not exist; mend that and start beta again" in said
    assert "waiting for beta (12 s): beta: data.npz: does not exist" in said
