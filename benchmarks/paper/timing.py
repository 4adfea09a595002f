"""Table 3: seconds of a step by method, number of sites and link, of real processes.

All sites share this machine's processors, so that a site's computing takes longer the more sites there are. Bytes pass
through memory, or through the relay, which gives every site's connection a link of its own: as fast as its bandwidth,
as long as the relay keeps up with all of them.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.relay.cli import REPORT
from rankdad.common.documents import load_json, validate
from rankdad.common.errors import DataError, SpecError
from rankdad.local.timings import STRETCHES
from rankdad.simulate_command import command, summary_of
from rankdad.simulations.datasets import ArrayDataset
from rankdad.simulations.sources import Folders
from rankdad.simulations.spec import SimulationFile

WARM_UP = 3  # steps left out of every figure
LINKS: Mapping[str, dict[str, Any] | None] = {
    "unshaped": None,
    "1 Gbit/s": {"bandwidth": 125e6},
    "100 Mbit/s": {"bandwidth": 12.5e6},
}


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


def arrange(document: dict[str, Any], sites: int, link: str) -> dict[str, Any]:
    """Return the document of a simulation with so many sites, and one of `LINKS`."""
    federation = {"sites": [f"site-{number + 1:02d}" for number in range(sites)]}
    run = document["run"] | {"federation": federation}
    return {"run": run, "simulation": document["simulation"], "relay": LINKS[link]}


def measure(document: dict[str, Any], *, steps: int = 12) -> Timing:
    """Run the first steps of a simulation as real processes, without validation and test, and time them.

    Args:
        document: of a `SimulationFile` whose source has arrays, and of a relay or None.
        steps: how many; the first three do not count.

    Raises:
        UserError: the document is wrong, or its data are too few.
        RankdadError: the run failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file, run, relay = (Path(folder) / name for name in ("file.json", "run", "relay.json"))
        file.write_text(json.dumps(_shortened(document, steps, Path(folder) / "pool.npz")), encoding="utf-8")
        words = command(file, run)
        if document["relay"] is not None:
            relay.write_text(json.dumps(document["relay"]), encoding="utf-8")
            words = [sys.executable, "-m", "benchmarks", "behind", str(relay), str(file), "--output", str(run)]
        summary_of(words)
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
    if not isinstance(samples, ArrayDataset):
        raise SpecError(
            "simulation.source",
            f"got {source.name}, expected one of arrays: digits or npz",
            code="source-unexpected",
        )
    rows = np.flatnonzero(samples.marks() == 0)
    needed = steps * file.run.training.step_size * len(file.run.federation.sites)
    if len(rows) < needed:
        raise DataError(
            samples.origin,
            f"has {len(rows)} samples to train on, but {steps} steps need {needed}",
            code="too-few-samples",
        )
    samples.write(rows[:needed], file.run, pool)
    return {"run": run, "simulation": simulation | {"source": {"name": "npz", "path": str(pool)}}}


def _timing(run: Path) -> Timing:
    """Return the times of steps in a run's directory."""
    sites = sorted((run / "sites").iterdir())
    steps = pd.read_csv(run / "steps.csv")[WARM_UP:]
    stretches = pd.concat(pd.read_csv(site / "timings.csv")[WARM_UP:] for site in sites)
    low, median, high = np.quantile(steps["seconds"], (0.25, 0.5, 0.75))
    up, down = steps["bytes_up"].mean(), steps["bytes_down"].mean()
    relay, connections = 0.0, 0
    if (run / REPORT).exists():
        report = load_json(run / REPORT)
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


def unaccounted(timings: pd.DataFrame) -> pd.Series[float]:
    """Return a step's excess over the unshaped step plus the transfer time of its bytes, as a share.

    Links do not account for more: the rest is the relay's, which then limits the step. 0 where a link has no limit, NaN
    where the unshaped step is not known.

    Args:
        timings: a row for each: link, method, sites, seconds, bytes_up and bytes_down.
    """
    bandwidths = {name: (link or {}).get("bandwidth", math.inf) for name, link in LINKS.items()}
    on_link = (timings["bytes_up"] + timings["bytes_down"]) / timings["link"].map(bandwidths)
    keys = ["method", "sites"]
    unshaped = timings[timings["link"] == "unshaped"].set_index(keys)["seconds"]
    beside = unshaped.reindex(pd.MultiIndex.from_frame(timings[keys])).set_axis(timings.index)
    return timings["seconds"] / (beside + on_link) - 1
