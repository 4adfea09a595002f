"""What the page keeps of a run: bounded, the same means as of all points, and told piece by piece."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankdad.page.curves import Bins
from rankdad.page.history import MAX_SPECTRUM, History, Seen

MANY_SITES, MANY_STEPS = [f"hospital-{number:02}" for number in range(64)], 100_000


NUMBERS = st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf])


@given(st.lists(NUMBERS, max_size=200), st.sampled_from([2, 4, 16]))
def test_bins_are_the_means_of_equally_many_points(values: list[float], most: int) -> None:
    bins = Bins(["a"], most)
    for value in values:
        bins.add([value])
    assert len(bins) <= most
    assert bins.width & (bins.width - 1) == 0
    parts = [values[at : at + bins.width] for at in range(0, len(values), bins.width)]
    assert bins.ends() == [min(len(values), (place + 1) * bins.width) for place in range(len(parts))]
    for mean, part in zip(bins.means()[:, 0], parts, strict=True):
        finite = [value for value in part if math.isfinite(value)]
        assert mean == pytest.approx(np.mean(finite), abs=1e-6) if finite else math.isnan(mean)


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def told(curves: dict[str, Any], patches: str) -> None:
    """Put patches to curves as page.js does."""
    for name, patch in json.loads(patches).items():
        first, count = patch["first"], len(patch["x"])
        if not first:
            curves[name] = {"x": [], "y": {}}
        curve = curves[name]
        curve["x"][first:] = patch["x"]
        for column in {*curve["y"], *patch["y"]}:
            own = curve["y"].setdefault(column, [])
            own += [None] * (first - len(own))
            own[first:] = patch["y"].get(column, [None] * count)


@given(st.lists(st.sampled_from(["step", "epoch", "fold", "spectra", "tell"]), max_size=120))
def test_pieces_add_up_to_the_whole(events: list[str]) -> None:
    history, curves, seen = History(["a", "b"], ["w"], ["auc"]), dict[str, Any](), dict[str, Seen]()
    for number, event in enumerate([*events, "tell"]):
        if event == "step":
            for part in range(50):
                losses = {"b": float(part)} if number % 3 else {}
                history.add_step(number + part / 50, 0.1, math.nan, [2.0], losses)
        elif event == "epoch":
            history.add_epoch({"pooled": {"auc": 0.5 + number / 1000}, "a": {"train_loss": float(number)}})
        elif event == "fold":
            history.begin_fold()
        elif event == "spectra":
            history.add_spectra(number, {"w": [3.0, 2.0, 1.0]})
        else:
            patches, seen = history.patches(seen)
            told(curves, patches)
    whole = json.loads(history.patches({})[0])
    for name, curve in curves.items():
        expected = whole.get(name, {"x": [], "y": {}})
        assert curve["x"] == expected["x"]
        for column, values in curve["y"].items():
            assert values == expected["y"].get(column, [None] * len(curve["x"]))
    assert set(whole) <= set(curves)
    assert history.patches(seen)[0] == "{}"


@pytest.mark.slow
@pytest.mark.alone
def test_64_sites_and_100_000_steps_take_30_mb_and_half_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 40 layers, spectra every 50 steps and 1,000 epochs."""
    layers, noise = [f"layer{number}.weight" for number in range(40)], np.random.default_rng(0)
    own, ranks = noise.random((100, 64, 4)), noise.integers(1, 16, (100, 40)).tolist()
    losses = [dict(zip(MANY_SITES, row[:, 0].tolist(), strict=True)) for row in own]
    times = [dict(zip(MANY_SITES, map(tuple, row[:, 1:].tolist()), strict=True)) for row in own]
    names = ("train_loss", "loss", "auc")
    rows = [{site: dict.fromkeys(names, loss) for site, loss in {**row, "pooled": 0.5}.items()} for row in losses]
    before = resident()
    history = History(MANY_SITES, layers, ["loss", "auc"])
    began = time.thread_time()
    for step in range(MANY_STEPS):
        history.add_step(1 / (1 + step), 0.1, 0.01, ranks[step % 100], losses[step % 100], times[step % 100])
        if step % 50 == 0:
            history.add_spectra(step, {layer: [1.0] * MAX_SPECTRUM for layer in layers})
        if step % 100 == 0:
            history.add_epoch(rows[step // 100 % 100])
    per_step = (time.thread_time() - began) / MANY_STEPS
    began = time.thread_time()
    whole, _ = history.patches({})
    seconds = time.thread_time() - began
    taken = resident() - before
    with capsys.disabled():
        print(
            f"\n64 sites, 100,000 steps: {taken / 1e6:.1f} MB of memory, all of it told in {1000 * seconds:.0f} ms "
            f"({len(whole) / 1e6:.2f} MB), {1e6 * per_step:.0f} µs a step"
        )
    assert taken < 30e6
    assert seconds < 0.5
    assert len(json.loads(whole)["steps"]["x"]) <= 400
