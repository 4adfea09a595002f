"""Seconds of a step: of real processes over a slow link, and beside one another."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks.paper.timing import WARM_UP, arrange, measure, unaccounted
from rankdad.common.errors import DataError, SpecError
from tests.conftest import OPEN, run_document, write_site


def document(folder: Path, samples: int, **changes: Any) -> dict[str, Any]:
    pool = write_site(folder, samples, 0, split=np.repeat([2, 0], [10, samples - 10])) / "data.npz"
    source = {"name": "npz", "path": str(pool)}
    return {"run": run_document(**changes), "simulation": {"source": source, "policy": OPEN}}


@pytest.mark.exhaustive
def test_a_step_of_dsgd_takes_at_least_its_bytes_time_on_the_link(tmp_path: Path) -> None:
    """Two times 0.26 MB at 12.5 MB/s, one after the other; the site's own stretches add up to the step."""
    small = document(tmp_path, 106, model={"name": "mlp", "hidden": [250, 250]})
    found = measure(arrange(small, 2, "100 Mbit/s"), steps=6)
    assert found.steps == 6 - WARM_UP
    assert found.connections == 2, "each site has one connection, and so one link"
    on_the_way = (found.bytes_up + found.bytes_down) / 12.5e6
    assert on_the_way > 0.03
    assert on_the_way <= found.low <= found.seconds <= found.high
    assert found.wait >= on_the_way
    assert 0 < found.aggregation < found.wait
    assert 0 < found.relay < found.wait


@pytest.mark.parametrize(
    ("simulation", "error", "said"),
    [
        ({}, DataError, "has 90 samples to train on, but 12 steps need 192"),
        ({"source": {"name": "folders", "path": "."}}, SpecError, "source 'folders'|partition"),
        ({"source": {"name": "diabetes"}}, SpecError, "diabetes does not fit data.reader npz"),
    ],
)
def test_what_cannot_be_measured_is_said(
    tmp_path: Path, simulation: dict[str, Any], error: type[Exception], said: str
) -> None:
    whole = arrange(document(tmp_path, 100), 2, "unshaped")
    with pytest.raises(error, match=said):
        measure(whole | {"simulation": whole["simulation"] | simulation})


def test_what_the_link_does_not_account_for_is_the_relay_s() -> None:
    """On the link 12.5 MB take 0.1 s: with the unshaped 0.2 s a step of 0.3 s is the link's, one of 0.6 s is not."""
    rows = [
        ("unshaped", "dsgd", 4, 0.2),
        ("1 Gbit/s", "dsgd", 4, 0.6),
        ("unshaped", "dad", 4, 0.1),
        ("1 Gbit/s", "dad", 4, 0.2),
        ("1 Gbit/s", "dad", 8, 0.8),
    ]
    timings = pd.DataFrame(rows, columns=["link", "method", "sites", "seconds"])
    found = unaccounted(timings.assign(bytes_up=6.5e6, bytes_down=6e6))
    assert list(found) == pytest.approx([0, 1, 0, 0, math.nan], nan_ok=True, abs=1e-12)
