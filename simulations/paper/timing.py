"""Table 3: seconds of a step by method, number of sites and link, of real processes.

All sites share this machine's processors, so that a site's computing takes longer the more sites there are. Bytes pass
through memory, or through the relay, which gives every site's connection a link of its own: as fast as its bandwidth,
as long as the relay keeps up with all of them. `relay` is one without any limit, and tells what the relay itself costs.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from common.documents import load_json, validate
from common.errors import DataError, RankdadError, SpecError, UserError
from local.timings import STRETCHES
from simulations.pools import ArrayPool
from simulations.sources import Folders
from simulations.spec import SimulationFile

WARM_UP = 3  # steps left out of every figure
LINKS: Mapping[str, dict[str, Any] | None] = {
    "unshaped": None,
    "relay": {},
    "1 Gbit/s": {"bandwidth": 125e6},
    "100 Mbit/s": {"bandwidth": 12.5e6},
}
METHODS: Mapping[str, dict[str, Any]] = {
    "rank-dad as published": {"name": "rank-dad", "rank": 10, "preset": "paper"},
    "rank-dad": {"name": "rank-dad", "rank": 10},
    "dsgd": {"name": "dsgd"},
    "dsgd per tensor": {"name": "dsgd", "exchanges": "per-tensor"},
}
SITES = (4, 6, 8, 10, 12, 14, 16, 18)
PUBLISHED = (0.063, 0.055, 0.049, 0.046, 0.039, 0.040, 0.037, 0.038)  # rank-dad's over dsgd's, for these sites


@dataclass(frozen=True)
class Timing:
    """A step of one run.

    Args:
        seconds: between two updates, median over steps.
        low: lower quartile.
        high: upper quartile.
        steps: how many.
        bytes_up: bodies of one site and step, mean over sites and steps.
        bytes_down: the same of what it receives.
        compute: seconds of a site for gradients and optimizer, median over sites and steps, as all that follow.
        reduce: for the method.
        pack: for making and reading messages.
        wait: from a message until its answer: transmission, slower sites, and the aggregator.
        aggregation: seconds of the aggregator from the last contribution to the answer.
        relay: seconds of a processor that the relay needs to carry a step of all sites; 0 without one.
        connections: that the relay has carried; 0 without one.
    """

    seconds: float
    low: float
    high: float
    steps: int
    bytes_up: float
    bytes_down: float
    compute: float
    reduce: float
    pack: float
    wait: float
    aggregation: float
    relay: float
    connections: int


def arrange(
    document: dict[str, Any], method: dict[str, Any], sites: int, relay: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the document of a simulation with another method, number of sites and relay, such as one of `LINKS`."""
    names = [f"site-{number + 1:02d}" for number in range(sites)]
    return {
        "run": document["run"] | {"method": method, "federation": {"sites": names}},
        "simulation": document["simulation"] | {"relay": relay},
    }


def measure(document: dict[str, Any], *, steps: int = 12) -> Timing:
    """Run the first steps of a simulation as real processes, without validation and test, and time them.

    Args:
        document: of a `SimulationFile` whose source has arrays.
        steps: how many; the first three do not count.

    Raises:
        UserError: the document is wrong, or its data are too few.
        RankdadError: the run could not go on.
    """
    with tempfile.TemporaryDirectory() as folder:
        file, run = Path(folder) / "file.json", Path(folder) / "run"
        file.write_text(json.dumps(_shortened(document, steps, Path(folder) / "pool.npz")), encoding="utf-8")
        command = [sys.executable, "-m", "rankdad", "simulate", str(file), "--output", str(run), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == UserError.exit_code:
            raise UserError(done.stderr.strip().removeprefix("error: "))
        if done.returncode:
            raise RankdadError(done.stderr.strip())
        return _timing(run)


def _shortened(document: dict[str, Any], steps: int, pool: Path) -> dict[str, Any]:
    """Return the document of so many steps, and write the samples that they need.

    Raises:
        UserError: the document is wrong, or its data are too few.
    """
    training = document["run"]["training"] | {"epochs": 1, "validation": 0.0, "test": 0.0, "early_stopping": None}
    run = document["run"] | {"training": training, "evaluation": {"name": "holdout"}}
    run["federation"] = run["federation"] | {"compare_every": 0}
    simulation = document["simulation"] | {"partition": {"name": "iid"}}
    file = validate(SimulationFile, {"run": run, "simulation": simulation})
    source = file.simulation.source
    samples = None if isinstance(source, Folders) else source.load()
    if not isinstance(samples, ArrayPool):
        raise SpecError("simulation.source", f"got {source.name}, expected one of arrays: digits, mnist or npz")
    rows = np.flatnonzero(samples.marks() == 0)
    needed = steps * file.run.training.step_size * len(file.run.federation.sites)
    if len(rows) < needed:
        raise DataError(samples.origin, f"has {len(rows)} samples to train on, but {steps} steps need {needed}")
    samples.write(rows[:needed], file.run, pool)
    return {"run": run, "simulation": simulation | {"source": {"name": "npz", "path": str(pool)}}}


def _timing(run: Path) -> Timing:
    """Return what a run's directory says of its steps."""
    sites = sorted((run / "sites").iterdir())
    steps = pd.read_csv(run / "steps.csv")[WARM_UP:]
    stretches = pd.concat(pd.read_csv(site / "timings.csv")[WARM_UP:] for site in sites)
    low, median, high = np.quantile(steps["seconds"], (0.25, 0.5, 0.75))
    up, down = steps["bytes_up"].mean(), steps["bytes_down"].mean()
    relay, connections = 0.0, 0
    if (run / "relay.json").exists():
        report = load_json(run / "relay.json")
        relay = report["processor_seconds"] * (up + down) / sum(report["bytes"].values())
        connections = report["connections"]
    return Timing(
        seconds=float(median),
        low=float(low),
        high=float(high),
        steps=len(steps),
        bytes_up=float(up / len(sites)),
        bytes_down=float(down / len(sites)),
        **{name: float(stretches[name].median()) for name in STRETCHES},
        aggregation=float(steps["aggregation_seconds"].median()),
        relay=float(relay),
        connections=connections,
    )


def compare(timings: pd.DataFrame) -> pd.DataFrame:
    """Return timings beside those of full gradients, and beside what the link accounts for.

    Args:
        timings: a row for each: link, method, sites, and the fields of `Timing`.

    Returns:
        The same with `over_dsgd` and `over_per_tensor`, seconds over those of the same link and number of sites;
        `on_link`, seconds that the link takes for a step's bytes, up and then down; and `beyond`, by which part the
        step is longer than that and the unshaped step together: links do not account for more, so the rest is the
        relay's, which then limits the step. NaN where the row to compare with is missing.
    """
    found = timings.copy()
    for column, method in (("over_dsgd", "dsgd"), ("over_per_tensor", "dsgd per tensor")):
        found[column] = found["seconds"] / _beside(found, ["link", "sites"], found["method"] == method)
    bandwidths = {name: (link or {}).get("bandwidth", math.inf) for name, link in LINKS.items()}
    found["on_link"] = (found["bytes_up"] + found["bytes_down"]) / found["link"].map(bandwidths)
    unshaped = _beside(found, ["method", "sites"], found["link"] == "unshaped")
    found["beyond"] = found["seconds"] / (unshaped + found["on_link"]) - 1
    return found


def _beside(timings: pd.DataFrame, keys: list[str], chosen: pd.Series[bool]) -> pd.Series[float]:
    """Return for every row the seconds of the chosen row with the same keys, NaN without one."""
    seconds = timings[chosen].set_index(keys)["seconds"]
    return seconds.reindex(pd.MultiIndex.from_frame(timings[keys])).set_axis(timings.index)
