"""What tests of texts share: hospitals with notes, and runs on them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from rankdad.common.data import SiteData, read_site
from rankdad.common.spec import RunSpec
from tests.conftest import run_spec

SITES = ("alpha", "beta", "gamma", "delta")
WORDS = {"no": ("calm", "fine", "resting"), "yes": ("pain", "fever", "worse")}
MODEL: dict[str, Any] = {"name": "transformer", "width": 8, "depth": 2, "heads": 2}
DATA: dict[str, Any] = {"reader": "text", "file": "notes.csv", "column": "note", "length": 32}
LABEL: dict[str, Any] = {"label": "ill", "values": ["no", "yes"]}
CLASSES: dict[str, Any] = {"name": "classification", "classes": 2}
EXACT: dict[str, Any] = {"dtype": "float64", "batch_size": 100, "optimizer": {"name": "sgd", "lr": 0.5}}


def text_spec(**changes: Any) -> RunSpec:
    """A run on texts; `data`, `model` and `training` are merged, everything else replaced."""
    task = changes.pop("task", CLASSES)
    data = DATA | (LABEL if task == CLASSES else {}) | changes.pop("data", {})
    given = {"federation": {"sites": list(SITES)}, "task": task, "model": MODEL | changes.pop("model", {})} | changes
    return run_spec(data=data, **given)


def notes(count: int, seed: int, words: tuple[int, int] = (1, 3)) -> list[tuple[str, str, str]]:
    """Patient, note and label of some rows; `words` has the least and the largest number of one's words."""
    drawn, found = random.Random(seed), list[tuple[str, str, str]]()
    for row in range(count):
        label = drawn.choice(("no", "yes"))
        own = drawn.choices(WORDS[label], k=drawn.randint(*words)) + drawn.choices(("seen", "today"), k=1)
        found.append((f"{seed}-{row}", " ".join(own), label))
    return found


def write_notes(folder: Path, rows: list[tuple[str, str, str]]) -> Path:
    """Write a hospital's table."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["patient,note,ill", *map(",".join, rows)]
    (folder / "notes.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def text_data(
    folder: Path, spec: RunSpec, counts: tuple[int, ...] = (24, 18, 9, 15), words: tuple[int, int] = (1, 3)
) -> dict[str, SiteData]:
    """Data of sites of unequal size."""
    sizes = zip(SITES, counts, strict=True)
    return {
        site: read_site(spec, write_notes(folder / site, notes(count, place, words)), place)
        for place, (site, count) in enumerate(sizes)
    }
