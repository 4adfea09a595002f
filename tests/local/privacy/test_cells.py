"""How many numbers of a step a site's table allows: fewer rows of a wide network leave, or none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.privacy.one_step import attack
from rankdad.common.data import Samples, SiteData, read_site
from rankdad.common.data.folds import Split
from rankdad.common.documents import validate
from rankdad.common.errors import FewSamplesError
from rankdad.common.models import build_model
from rankdad.common.policy import Policy
from rankdad.common.protocol.plan import make_plan
from rankdad.common.spec import RunSpec
from rankdad.local.admission import admitted
from rankdad.local.privacy.cells import StepNumbers, cells_of_row, check_numbers
from rankdad.local.privacy.disclosed import of_steps
from rankdad.local.privacy.usual import usual_inputs
from tests.conftest import run_spec

COLUMNS, ROWS = 8, 16
NO_LIMIT = Policy(rows_per_rank=None)


def asked(units: int, method: dict[str, Any] | None = None, shape: tuple[int, ...] = (COLUMNS,)) -> RunSpec:
    return run_spec(
        data={"shape": list(shape)},
        model={"name": "mlp", "hidden": [units]},
        training={"batch_size": ROWS},
        method=method or {"name": "rank-dad", "rank": 4},
    )


def table(*, alike: int = 0) -> SiteData:
    """64 samples, of which some columns are all the same."""
    inputs = torch.randn(64, COLUMNS, generator=torch.Generator().manual_seed(0))
    inputs[:, :alike] = 1.0
    none = torch.arange(0)
    return SiteData(Samples(inputs, torch.arange(64) % 2), (Split(torch.arange(64), none, none),))


def numbers(spec: RunSpec, data: SiteData, policy: Policy | None = None) -> StepNumbers:
    return StepNumbers.of(policy or Policy(), spec, make_plan(spec, build_model(spec)), data)


@pytest.mark.parametrize(("units", "rows"), [(8, 4), (16, 4), (30, 2), (40, 1), (70, 0)])
def test_of_wide_networks_fewer_rows_leave(units: int, rows: int) -> None:
    spec, data = asked(units), table()
    step = numbers(spec, data)
    assert step.rows(ROWS) == rows
    assert numbers(spec, data, NO_LIMIT).rows(ROWS) is None
    if rows:
        assert step.sent(ROWS) <= ROWS * (COLUMNS + 1)
        return
    with pytest.raises(FewSamplesError) as caught:
        admitted(Policy(), spec, make_plan(spec, build_model(spec)), data)
    assert (caught.value.code, caught.value.field) == ("step-of-too-many-numbers", "model")
    check_numbers(Policy().mended(caught.value.change), spec, make_plan(spec, build_model(spec)), data, ROWS)
    check_numbers(Policy(), spec, make_plan(spec, build_model(spec)), data, 2 * ROWS)
    (most,) = re.findall(r"at most (\d+) units", str(caught.value))
    assert (numbers(asked(int(most)), data).rows(ROWS), numbers(asked(int(most) + 1), data).rows(ROWS)) == (1, 0)


def test_columns_that_are_the_same_in_all_rows_are_neither_numbers_nor_cells() -> None:
    narrow = validate(RunSpec, asked(16).model_dump(mode="json") | {"data": {"shape": [COLUMNS - 3]}})
    inputs = table(alike=3).samples.inputs
    assert isinstance(inputs, torch.Tensor)
    few = SiteData(Samples(inputs[:, 3:], torch.arange(64) % 2), table().splits)
    assert numbers(asked(16), table(alike=3)).sent(ROWS) == numbers(narrow, few).sent(ROWS)
    assert numbers(asked(16), table(alike=3)).most(ROWS) == numbers(narrow, few).most(ROWS)
    assert numbers(asked(16), table(alike=8)).most(ROWS) == float("inf")


@pytest.mark.slow
@pytest.mark.parametrize(("units", "rank"), [(40, 2), (70, 0)])
def test_a_step_is_solved_without_the_limit_and_not_with_it(units: int, rank: int) -> None:
    if not rank:
        free = attack(ROWS, COLUMNS, units, "both", 3)
        assert (free.rank, free.rows) == (4, 16)
    held = attack(ROWS, COLUMNS, units, "both", 3, limited=True)
    assert (held.rank, held.rows) == (rank, 0)


def test_a_table_of_two_axes_is_a_table() -> None:
    """Of shape [8, 1] a network saw the same columns, and nothing was counted: a program had 48 of 48 patients."""
    flat = table().samples.inputs
    assert isinstance(flat, torch.Tensor)
    data = SiteData(Samples(flat[:, :, None], torch.arange(64) % 2), table().splits)
    spec = asked(30, shape=(COLUMNS, 1))
    assert numbers(spec, data).most(ROWS) == numbers(asked(30), table()).most(ROWS)
    assert numbers(spec, data).rows(ROWS) == numbers(asked(30), table()).rows(ROWS)
    rare = flat.clone()
    rare[:, 0] = 0.0
    rare[5, 0] = 1.0  # one patient alone
    for shape in ((COLUMNS,), (COLUMNS, 1)):
        own = usual_inputs(asked(8, shape=shape), rare.reshape(64, *shape), Policy().min_level, None, None)
        assert not own.flatten(1)[5, 0]


@pytest.mark.parametrize(
    ("what", "cells"),
    [("all differ", 9.0), ("three have another value", 8 + 3 / 63), ("another unit", 8.0), ("two visits", 4.5)],
)
def test_cells_that_need_no_solving_do_not_count(what: str, cells: float) -> None:
    inputs, groups = table().samples.inputs.clone(), None  # type: ignore[union-attr]
    if what == "three have another value":
        inputs[:, 0] = 0.0
        inputs[:3, 0] = 1.0
    if what == "another unit":
        inputs[:, 0] = 3 - 2.5 * inputs[:, 1]
    if what == "two visits":
        inputs, groups = inputs[::2].repeat_interleave(2, 0), torch.arange(64) // 2
    data = SiteData(Samples(inputs, torch.arange(64) % 2), table().splits, groups=groups)
    found = numbers(asked(8), data).most(1)
    assert found == pytest.approx(cells, abs=0.1)


def test_columns_that_never_differ_hide_no_rare_ones() -> None:
    """An owner may list a thousand levels that nobody has: each rare flag then counted as a whole cell."""
    inputs = torch.zeros(64, 1200)
    inputs[:, :2] = torch.randn(64, 2)
    for flag in range(2, 22):
        inputs[flag : flag + 3, flag] = 1.0
    data = SiteData(Samples(inputs, torch.arange(64) % 2), table().splits)
    assert numbers(asked(8, shape=(1200,)), data).most(1) == pytest.approx(3 + 20 * 3 / 63)
    wide = (torch.arange(64)[:, None] < torch.tensor([3] * 1100)).float() + torch.arange(1100)
    found = numbers(asked(8, shape=(1100,)), SiteData(Samples(wide, torch.arange(64) % 2), table().splits))
    assert found.most(1) == pytest.approx(1 + 1100 * 3 / 63)


def test_of_several_visits_each_batch_may_have_all_patients() -> None:
    """16 patients with four visits each, in batches of 16: a program had all rows and all labels."""
    inputs, groups = torch.randn(64, COLUMNS), torch.arange(64) // 4
    data = SiteData(Samples(inputs, torch.arange(64) % 2), table().splits, groups=groups)
    spec = asked(8)
    plan = make_plan(spec, build_model(spec))
    for size, steps in ((16, 4), (15, 0)):
        told = list(of_steps(Policy(), spec, plan, data, [[size] * 4]))
        assert [len(one.rows) for one in told] == [64] * bool(steps)


def test_columns_that_follow_from_others_do_not_count() -> None:
    """In other units, rounded, in bands, or of two others: programs had 72 of 80 patients by four units of each."""
    random = torch.Generator().manual_seed(0)
    kg, cm, age = (low + high * torch.rand(80, generator=random) for low, high in ((50, 50), (150, 40), (20, 60)))
    follow = [
        (kg * 2.2046).round(decimals=1),
        kg.log(),
        kg / (cm / 100) ** 2,
        2026 - age,
        (age / 10).floor(),
        (age > 50).float(),
        (9 / 5 * cm + 32).half().float(),
    ]
    columns = torch.stack([*follow, kg, cm, age], 1)
    data = SiteData(Samples(columns, torch.arange(80) % 2), table().splits)
    assert numbers(asked(8, shape=(10,)), data).most(1) == pytest.approx(4, abs=0.1)
    wide = torch.randn(40, 4, generator=random) @ torch.randn(4, 24, generator=random)
    data = SiteData(Samples(wide, torch.arange(40) % 2), (Split(torch.arange(40), *[torch.arange(0)] * 2),))
    assert numbers(asked(8, shape=(24,)), data).most(1) == pytest.approx(5, abs=0.1)


@pytest.mark.parametrize(("stored", "cells"), [(4, 17), (32, 1025)])
def test_a_picture_that_was_scaled_up_has_no_more_cells_than_its_file_has_pixels(
    tmp_path: Path, stored: int, cells: int
) -> None:
    """A program from outside had 4 × 4 pixels counted as 1,024, and so wide networks let in."""
    drawn = np.random.default_rng(0)
    for place in range(12):
        (tmp_path / "data" / str(place % 2)).mkdir(parents=True, exist_ok=True)
        pixels = drawn.integers(0, 256, (stored, stored), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "data" / str(place % 2) / f"{place}.png")
    data = {"reader": "images", "size": [32, 32], "mode": "grey", "resize": True, "values": ["0", "1"]}
    spec = run_spec(task={"name": "classification", "classes": 2}, data=data)
    assert cells_of_row(spec, read_site(spec, tmp_path / "data", 0)) == pytest.approx(cells, abs=1)


@pytest.mark.parametrize(("stays", "cells"), [(True, 7), (False, 1201)])
def test_a_channel_that_stays_for_a_patient_has_one_cell(stays: bool, cells: int) -> None:
    """Of 200 times each counted, where more columns differ than are looked at one by one."""
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(80, 1 if stays else 200, 6, generator=random).expand(-1, 200, -1)
    data = SiteData(Samples(inputs, torch.arange(80) % 2), ())
    assert cells_of_row(asked(8, shape=(200, 6)), data) == pytest.approx(cells, rel=0.02)
