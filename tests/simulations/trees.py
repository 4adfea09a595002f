"""A tree of six sites and three regions, and the sites' trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankdad.common.data import SiteData, read_site
from rankdad.common.policy import EVERYTHING
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.local.training import TrainingState, train
from rankdad.simulations.tree import Tree
from tests.conftest import run_spec, write_site

SITES = ("s0", "s1", "s2", "s3", "s4", "s5")
REGIONS = {"north": ["s0", "s1", "s2"], "south": ["s4", "far-south"], "far-south": ["s5"]}


def spec_of(*, regions: dict[str, list[str]] | None = None, **changes: Any) -> RunSpec:
    training = {"dtype": "float64"} | changes.pop("training", {})
    federation = {"sites": list(SITES), "regions": REGIONS if regions is None else regions, "compare_every": 5}
    return run_spec(federation=federation, training=training, **changes)


def data_of(spec: RunSpec, folder: Path) -> dict[str, SiteData]:
    counts = dict(zip(SITES, (48, 32, 17, 20, 9, 30), strict=True))
    folders = {site: write_site(folder / site, count, at) for at, (site, count) in enumerate(counts.items())}
    return {site: read_site(spec, folder, at) for at, (site, folder) in enumerate(folders.items())}


def trainings(spec: RunSpec, tree: Tree, data: dict[str, SiteData]) -> dict[str, Any]:
    plan = tree.top.plan
    states = {site: TrainingState(site, RunState(spec, plan, Replica(spec))) for site in SITES}
    return {site: train(spec, plan, data[site], states[site], EVERYTHING) for site in SITES}
