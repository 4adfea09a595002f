from __future__ import annotations

import functools
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings

from rankdad.common.data import Samples, SiteData, read_site
from rankdad.common.documents import validate
from rankdad.common.policy import EVERYTHING
from rankdad.common.spec import RunSpec
from rankdad.local.config import SiteConfig

SITES = ("alpha", "beta", "gamma")
OPEN = EVERYTHING.model_dump(mode="json")  # the policy of sites in tests that are about something else
SHARED = Path(__file__).parent.parent.parent / "shared" / "data"

settings.register_profile("full", deadline=None)  # what `make slow` loads
settings.register_profile("quick", deadline=None, max_examples=5)
settings.load_profile("quick")
SAMPLED = 8  # cases of a slow test, of which `make sample` runs the first


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", action="store_true", help=f"of each test, the first of {SAMPLED} cases")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("exhaustive"):
            item.add_marker("slow")
    if not config.getoption("--sample"):
        return
    cases: Counter[str] = Counter()
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        test = item.nodeid.partition("[")[0]
        (left if item.get_closest_marker("exhaustive") or cases[test] % SAMPLED else kept).append(item)
        cases[test] += not item.get_closest_marker("exhaustive")
    config.hook.pytest_deselected(items=left)
    items[:] = kept


def examples(most: int) -> int:
    """Return how many examples a property is tried on: all in the full profile, else a twentieth."""
    assert settings.default is not None
    return max(4, most * settings.default.max_examples // 100)


def sampled(cases: Iterable[Any], every: int) -> list[Any]:
    """Return all cases of a test, of which `make test` runs one in so many."""
    rest = pytest.mark.slow
    return [
        case if not number % every else pytest.param(*case if isinstance(case, tuple) else (case,), marks=rest)
        for number, case in enumerate(cases)
    ]


def pytest_sessionstart() -> None:
    torch.set_num_threads(1)  # what fixtures of modules compute, too


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    logger = logging.getLogger("rankdad")
    yield
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)


def run_document(**changes: Any) -> dict[str, Any]:
    """A small run; `training` is merged, everything else replaced."""
    training = {"epochs": 2, "batch_size": 8, "optimizer": {"name": "adam", "lr": 0.01}}
    document: dict[str, Any] = {
        "name": "small",
        "task": {"name": "classification", "classes": 3},
        "model": {"name": "mlp", "hidden": [16, 16]},
        "data": {"shape": [6]},
        "method": {"name": "dsgd"},
        "federation": {"sites": list(SITES)},
    }
    return document | changes | {"training": training | changes.get("training", {})}


def run_spec(**changes: Any) -> RunSpec:
    return validate(RunSpec, run_document(**changes))


def write_site(folder: Path, count: int, seed: int, **arrays: Any) -> Path:
    """Three blobs in six dimensions, as a site's file."""
    generator = np.random.default_rng(seed)
    y = generator.integers(0, 3, count)
    x = generator.normal(size=(count, 6)) + np.eye(3, 6)[y] * 2
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "data.npz", **({"x": x, "y": y} | arrays))
    return folder


def write_policy(folder: Path, **changes: Any) -> str:
    """A site's policy that allows everything but what is changed."""
    path = folder / "policy.json"
    path.write_text(json.dumps(OPEN | changes))
    return str(path)


def site_config(port: int, **changes: Any) -> SiteConfig:
    """Return the configuration of a site whose aggregator listens on a port of this machine."""
    fields = {"name": "alpha", "aggregator": f"http://127.0.0.1:{port}", "data": "data", "output": "out"}
    return SiteConfig.model_validate(fields | changes)


def part_of(data: SiteData, name: str, fold: int = 0) -> Samples:
    """What a fold trains on, validates or tests with, as it was read."""
    return data.samples.take(getattr(data.splits[fold], name))


def written_data(folder: Path, spec: RunSpec, counts: tuple[int, ...] = (48, 32, 17)) -> dict[str, SiteData]:
    """Data of sites of unequal size, one of which runs out first."""
    folders = {s: write_site(folder / s, n, i) for i, (s, n) in enumerate(zip(SITES, counts, strict=True))}
    return {site: read_site(spec, folder, i) for i, (site, folder) in enumerate(folders.items())}


@pytest.fixture
def site_data(tmp_path: Path) -> Callable[..., dict[str, SiteData]]:
    return functools.partial(written_data, tmp_path / "data")
