from __future__ import annotations

import sys

import pytest


@pytest.fixture
def figures() -> None:
    """Asked for by a test that looks at figures."""


@pytest.fixture(autouse=True)
def _figures_are_drawn_where_a_test_looks_at_them(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere it is as if matplotlib were missing: drawing takes four fifths of a small run's time."""
    if "figures" not in request.fixturenames:
        monkeypatch.setitem(sys.modules, "rankdad.remote.report.run_plots", None)
