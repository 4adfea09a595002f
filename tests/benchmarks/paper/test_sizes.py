"""Bytes per layer: what a run sends is what the paper's formulas say, and a message's header."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.paper import sizes
from benchmarks.paper.top_rows import TopRows
from rankdad.common.spec import MethodSpec
from tests.conftest import run_spec

METHODS: dict[str, dict[str, Any]] = {
    "dsgd": {"name": "dsgd"},
    "dad": {"name": "dad"},
    "edad": {"name": "edad"},
    "rank-dad": {"name": "rank-dad", "rank": 4},
    "rank-dad int8": {"name": "rank-dad", "rank": 8, "wire": "int8"},
    "rank-dad as published": {"name": "rank-dad", "rank": 4, "preset": "converged"},
    "powersgd": {"name": "powersgd", "rank": 4},
    "top-k": {"name": "top-k", "density": 0.01, "wire": "int8"},
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("size", [16, pytest.param(64, marks=pytest.mark.slow)])
def test_what_is_sent_is_the_formula_and_a_header(name: str, size: int) -> None:
    for row in sizes.sizes_of(name, METHODS[name], size):
        assert row.fits, row
        assert (row.method, row.size, row.sent) == (name, size, row.formula + row.header)


def test_formulas_are_those_of_the_paper() -> None:
    """Of a layer 1024 by 1024 with bias, in float32: floats of S n (in + out), r (in + out) and so on."""
    n, s, h = sizes.SAMPLES, sizes.SITES, 1024
    floats = {
        "dsgd": (h * h + h, h * h + h),
        "dad": (n * (h + h + 1), s * n * (h + h + 1)),
        "edad": (n * h, s * n * h),
        "rank-dad": (4 * (h + h + 1), 4 * (h + h + 1)),
        "rank-dad as published": (4 * (h + h) + h, 4 * (h + h) + h),
        "powersgd": (4 * (h + h) + h, 4 * (h + h) + h),
    }
    for name, (up, down) in floats.items():
        assert _formula(name, h) == (4 * up, 4 * down), name
    top_rows = TopRows(name="top-rows")
    assert sizes.formula(top_rows, h, h) == (4 * (3 * (h + h) + h), 4 * (s * 3 * (h + h) + h))
    int8 = 8 * (h + h + 1) + 4 * 8 * (16 + 17)  # codes, and a scale for every 64 of a row
    assert _formula("rank-dad int8", h) == (int8, int8)
    assert _formula("dad", 64) == _formula("dsgd", 64), "64 rows of such a layer are larger than its matrix"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dsgd", "powersgd", "rank-dad int8"])
def test_a_wrong_formula_fails(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Too much up and too little down, each by a column of ones for four rows; two messages leave twice that room."""
    right, wrong = sizes.formula, 32 if name == "powersgd" else 16

    def formula(method: MethodSpec, out: int, inputs: int, *, last: bool = False) -> tuple[int, int]:
        up, down = right(method, out, inputs, last=last)
        return (up, down) if last else (up + wrong, down - wrong)

    monkeypatch.setattr(sizes, "formula", formula)
    assert not any(row.fits for row in sizes.sizes_of(name, METHODS[name], 16))


def _formula(name: str, size: int) -> tuple[int, int]:
    return sizes.formula(run_spec(method=METHODS[name]).method, size, size)
