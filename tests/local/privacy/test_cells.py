"""How many numbers of a step a site's table allows: fewer rows of a wide network leave, or none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.privacy.one_step import attack
from rankdad.common.documents import validate
from rankdad.common.errors import FewSamplesError
from rankdad.common.models import build_model
from rankdad.common.policy import Policy
from rankdad.common.protocol.plan import make_plan
from rankdad.common.spec import RunSpec
from rankdad.local.admission import admitted
from rankdad.local.data import Samples, SiteData
from rankdad.local.data.folds import Split
from rankdad.local.privacy.cells import StepNumbers, check_numbers
from tests.conftest import run_spec

COLUMNS, ROWS = 8, 16
NO_LIMIT = Policy(rows_per_rank=None)


def asked(units: int, method: dict[str, Any] | None = None) -> RunSpec:
    return run_spec(
        data={"shape": [COLUMNS]},
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


def test_columns_that_are_the_same_in_all_rows_are_neither_numbers_nor_cells() -> None:
    narrow = validate(RunSpec, asked(16).model_dump(mode="json") | {"data": {"shape": [COLUMNS - 3]}})
    inputs = table(alike=3).samples.inputs
    assert isinstance(inputs, torch.Tensor)
    few = SiteData(Samples(inputs[:, 3:], torch.arange(64) % 2), table().splits)
    assert numbers(asked(16), table(alike=3)).sent(ROWS) == numbers(narrow, few).sent(ROWS)
    assert numbers(asked(16), table(alike=3)).most(ROWS) == numbers(narrow, few).most(ROWS)
    assert numbers(asked(16), table(alike=8)).most(ROWS) == float("inf")


@pytest.mark.parametrize(("units", "rank"), [(40, 2), (70, 0)])
def test_a_step_is_solved_without_the_limit_and_not_with_it(units: int, rank: int) -> None:
    if not rank:
        free = attack(ROWS, COLUMNS, units, "both", 3)
        assert (free.rank, free.rows) == (4, 16)
    held = attack(ROWS, COLUMNS, units, "both", 3, limited=True)
    assert (held.rank, held.rows) == (rank, 0)
