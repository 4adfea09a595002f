from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from rankdad.remote.results.run_results import RunResults

FIGURES = {name: b"\x89PNG" + name.encode() for name in ("loss_over_steps", "calibration", "confusion")}


def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[RunResults]:
    """Stand in for matplotlib, which would take four fifths of a small run's time; return what was drawn."""
    drawn: list[RunResults] = []

    def run_plots(run: RunResults) -> dict[str, bytes]:
        drawn.append(run)
        return FIGURES

    inline = {name: f"<svg>{name}</svg>" for name in FIGURES}
    module = SimpleNamespace(run_plots=run_plots, run_drawings=lambda run, captions: inline)
    monkeypatch.setitem(sys.modules, "rankdad.remote.report.run_plots", module)
    return drawn


@pytest.fixture(autouse=True)
def drawings(monkeypatch: pytest.MonkeyPatch) -> list[RunResults]:
    """Return what is drawn in place of figures."""
    return stand_in(monkeypatch)
