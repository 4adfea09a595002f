"""Numbers about the same patients at many weights: what all runs tell together stays below half of the cells."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankdad.common.data import Samples, SiteData, split_samples
from rankdad.common.data.reading import Reading
from rankdad.common.errors import FewSamplesError, PolicyError, UserError
from rankdad.common.metrics.monitoring import monitored
from rankdad.common.models import build_model
from rankdad.common.policy import Policy
from rankdad.common.privacy.parts import Secret
from rankdad.common.privacy.repeated import Sent, numbers_of_epoch, shares_told
from rankdad.common.protocol.arrays import BufferSlot
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.batches import drawn_sizes, largest_sizes
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import Metric, TaskSpec
from rankdad.local.admission import admitted
from rankdad.local.privacy.assigning import PartAssigner
from rankdad.local.privacy.cells import cells_of_row
from rankdad.local.privacy.disclosed import (
    check_repeated,
    disclosed_before,
    disclosed_here,
    of_steps,
    of_validation,
    tell,
)
from rankdad.local.privacy.log import DisclosureLog
from rankdad.local.privacy.log_file import FILE
from tests.common.metrics.samples import TASKS, draw
from tests.conftest import SITES, run_spec

SECRET, RULES = Secret(b"s" * 32), Policy()
SETS = st.lists(st.tuples(st.sets(st.integers(0, 9), min_size=1), st.integers(1, 40)), max_size=12)


@given(sent=SETS, columns=st.integers(1, 5), some=st.sets(st.integers(0, 9), min_size=1))
def test_no_patients_are_told_by_more_numbers_than_shares_of_their_cells(
    sent: list[tuple[set[int], int]], columns: int, some: set[int]
) -> None:
    told = shares_told([Sent(torch.tensor(sorted(own)), numbers, columns) for own, numbers in sent], 10)
    about_some = sum(numbers for own, numbers in sent if own <= some)
    assert about_some <= float(told[sorted(some)].sum()) * columns + 1e-9
    assert float(told.sum()) * columns == pytest.approx(sum(numbers for _, numbers in sent))


@pytest.mark.parametrize(("task", "monitor"), [(task, monitor) for task in TASKS for monitor in task.monitors])
def test_what_is_counted_after_an_epoch_is_what_differs_between_epochs(task: TaskSpec, monitor: Metric) -> None:
    rng = torch.Generator().manual_seed(0)
    labels, sums = draw(task, 60, 0)[1], list[torch.Tensor]()
    for _ in range(9):
        outputs = torch.randn(60, task.outputs, generator=rng, dtype=torch.float64)
        one = monitored(task, monitor, outputs, labels, outputs.square().sum(1))
        sums.append(torch.cat([one.counts.double(), one.sums]))
    different = (torch.stack(sums) != sums[0]).any(0)
    assert numbers_of_epoch(task, monitor) == int(different.sum())


def asked(epochs: int, **changes: Any) -> RunSpec:
    """Return a run of six inputs, of which a step has a fifth of the patients, and fifteen are validated."""
    training = {"epochs": epochs, "batch_size": 20, "validation": 0.15, "solver": "steps"} | changes
    model, method = {"name": "linear"}, {"name": "rank-dad", "rank": 1}
    task, evaluation = {"name": "regression"}, {"name": "holdout"}
    return run_spec(task=task, evaluation=evaluation, training=training, model=model, method=method)


def read(spec: RunSpec, log: DisclosureLog | None = None, run: str | None = None, policy: Policy = RULES) -> SiteData:
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(120, 6)).astype(np.float32), rng.normal(size=120)
    reading = Reading("data", inputs, labels, None, tuple(f"p{row}" for row in range(120)))
    data = split_samples(spec, reading, 0, assigner=PartAssigner(spec, SECRET, 8, log, run))
    return admitted(policy, spec, make_plan(spec, build_model(spec)), data)


def begun(spec: RunSpec, log: DisclosureLog, run: str, *, anew: bool = True) -> SiteData:
    data = read(spec, log, run)
    assert data.parts is not None
    assert data.parts.kept()
    assert tell(RULES, spec, make_plan(spec, build_model(spec)), data, [[20] * 4], anew=anew)
    return data


def test_a_validation_set_of_which_too_many_losses_would_leave_is_left_out() -> None:
    few, many, free = (
        read(asked(epochs), policy=Policy(rows_per_rank=rows)) for epochs, rows in ((4, 4), (60, 4), (60, None))
    )
    assert len(few.splits[0].validation) == len(free.splits[0].validation) >= 8
    assert len(many.splits[0].validation) == 0
    assert "sets-too-small-to-evaluate" in many.warnings
    assert "sets-too-small-to-evaluate" not in few.warnings
    spec = asked(60)
    assert float(disclosed_here(free, of_validation(spec, free)).max()) > 0.5


@pytest.mark.exhaustive
def test_runs_add_up_in_the_log_and_one_that_goes_on_is_as_it_was(tmp_path: Path) -> None:
    log, spec, validated = DisclosureLog(tmp_path, "alpha", SECRET), asked(20), list[int]()
    for number in range(40):
        data = begun(spec.model_copy(update={"seed": number}), log, f"run-{number}")
        validated.append(len(data.splits[0].validation))
        assert float((disclosed_before(data) + disclosed_here(data, of_validation(spec, data))).max()) <= 0.5
    assert validated[0] > 0
    assert sum(size > 0 for size in validated) < 30
    assert validated[-1] == 0, "all has been told that may be"
    again = begun(spec.model_copy(update={"seed": 0}), log, "run-0", anew=False)
    assert len(again.splits[0].validation) == validated[0]
    assert not disclosed_before(again).any()
    with pytest.raises(PolicyError) as raised:
        begun(spec.model_copy(update={"seed": 0}), log, "run-0")
    assert raised.value.code == "run-told-already"


@pytest.mark.slow
def test_a_run_that_begins_anew_under_its_name_counts_each_time(tmp_path: Path) -> None:
    """Twelve replays of a run, others saying something else each time, told 240 losses of 17 patients."""
    log, spec, starts = DisclosureLog(tmp_path, "alpha", SECRET), asked(10), 0
    with suppress(PolicyError):
        while starts < 9:
            begun(spec, log, "run")
            starts += 1
    data = begun(spec, log, "run", anew=False)
    each = float(disclosed_here(data, of_validation(spec, data)).max())
    assert 0 < starts <= 0.5 / each


def test_steps_that_become_of_all_when_others_have_ended_are_counted() -> None:
    """A large site that ended after the first epoch left 199 steps of all that nobody counted."""
    spec = run_spec(
        training={"epochs": 9, "batch_size": 64, "batches": "even"},
        federation={"sites": list(SITES), "overrides": {SITES[2]: {"epochs": 1}}},
    )
    assert [len(sizes) for sizes in drawn_sizes(spec, [40, 40, 200])] == [4, 4, 4]
    assert largest_sizes(spec, [40, 40, 200])[:2] == [[40], [40]]
    assert largest_sizes(spec, [40, 40, 200])[2] == [50] * 4


def test_levels_that_nobody_has_are_no_cells() -> None:
    """With 600 invented levels, 300 losses of 17 patients with five columns counted as 3 % of their cells."""
    levels = [f"level {number}" for number in range(60)]
    data = {"reader": "csv", "file": "a.csv", "key": "id", "features": ["age", "sex"], "label": "y"}
    spec = run_spec(task={"name": "regression"}, data={**data, "categorical": {"sex": ["f", "m", *levels]}})
    inputs = torch.zeros(8, spec.data.shape[0])
    inputs[:, 0] = torch.arange(8)
    inputs[::2, 1] = inputs[1::2, 2] = 1.0
    assert cells_of_row(spec, SiteData(Samples(inputs, torch.zeros(8)), ())) == pytest.approx(2 + 4 / 7)
    inputs[:, 1:3] = torch.tensor([1.0, 0.0])
    assert cells_of_row(spec, SiteData(Samples(inputs, torch.zeros(8)), ())) == 2


@pytest.mark.slow
def test_steps_of_all_are_refused_once_earlier_runs_have_told_as_much(tmp_path: Path) -> None:
    """Thirty runs of three epochs each gave the table of a hospital of eight patients."""
    log, refused = DisclosureLog(tmp_path, "alpha", SECRET), list[str]()
    for number in range(6):
        spec = asked(20, batch_size=200, validation=0.0).model_copy(update={"seed": number})
        plan, data = make_plan(spec, build_model(spec)), read(spec, log, f"run-{number}")
        sizes = [[len(data.splits[0].train)]]
        try:
            check_repeated(RULES, spec, plan, data, sizes)
        except FewSamplesError as error:
            refused.append(error.code)
            check_repeated(RULES.mended(error.change), spec, plan, data, sizes)
            continue
        assert data.parts is not None
        assert data.parts.kept()
        assert tell(RULES, spec, plan, data, sizes)
    assert 0 < len(refused) < 6
    assert set(refused) == {"steps-of-all-repeated"}


def test_of_two_runs_that_begin_at_once_the_later_one_begins_anew(tmp_path: Path) -> None:
    log, spec = DisclosureLog(tmp_path, "alpha", SECRET), asked(4)
    plan = make_plan(spec, build_model(spec))
    both = [read(spec, log, run) for run in ("one", "two")]
    for data in both:
        assert data.parts is not None
        assert data.parts.kept()
    assert [tell(RULES, spec, plan, data, [[20] * 4]) for data in both] == [True, False]


def test_what_a_run_tells_more_when_it_goes_on_is_noted(tmp_path: Path) -> None:
    """Other sites' numbers of samples, when it went on, made steps of all of its batches, and nothing was added."""
    log, spec = DisclosureLog(tmp_path, "alpha", SECRET), asked(2, validation=0.0)
    plan, data = make_plan(spec, build_model(spec)), begun(spec, log, "run")
    whole = [[len(data.splits[0].train)]]
    assert tell(RULES, spec, plan, data, whole, anew=False)
    first = max(one.told for one in log.runs())
    assert first > 0
    assert tell(RULES, spec, plan, data, whole, anew=False)
    assert max(one.told for one in log.runs()) == first
    assert tell(RULES, spec, plan, data, whole, anew=True)
    assert max(one.told for one in log.runs()) == pytest.approx(2 * first)


def test_a_log_put_back_from_before_a_run_told_anything_is_too_old(tmp_path: Path) -> None:
    log, spec = DisclosureLog(tmp_path / "privacy", "alpha", SECRET, results=[tmp_path]), asked(4)
    data = read(spec, log, "run")
    assert data.parts is not None
    assert data.parts.kept()
    copy = log.contents()
    assert tell(RULES, spec, make_plan(spec, build_model(spec)), data, [[20] * 4])
    (tmp_path / "privacy" / FILE).write_bytes(copy)
    with pytest.raises(UserError) as raised:
        log.runs()
    assert raised.value.code == "log-too-old"


def test_buffers_after_steps_of_all_are_numbers_about_all() -> None:
    spec = asked(2, batch_size=200, validation=0.0)
    plan, data = make_plan(spec, build_model(spec)), read(spec)
    whole = [[len(data.splits[0].train)]]
    (plain,), (more,) = (
        list(of_steps(RULES, spec, one, data, whole))
        for one in (plan, replace(plan, buffers=(BufferSlot("mean", "float32", (7,)),)))
    )
    assert more.numbers - plain.numbers == 2 * 7
