"""Runs that the default policy allows or refuses, on whatever engine starts the sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.conftest import SITES, write_site

ALLOWED: dict[str, Any] = {
    "method": {"name": "rank-dad", "rank": 2},
    "training": {"epochs": 1, "batch_size": 32},
}
REFUSED: list[tuple[dict[str, Any], str]] = [  # changes of a run or of the rows at a site, and what is said of it
    ({"method": {"name": "dad"}}, "method.name: "),
    ({"method": {"name": "dsgd"}}, "method.name: steps-of-too-few"),
    ({"training": {"epochs": 1, "batch_size": 2}}, "(min_rows)"),
    ({"rows": 10}, "beta: data-refused"),
]


def settle(folder: Path, rows: int) -> None:
    """Give sites patients enough for the default policy, which holds at all of them; beta has so many rows."""
    for index, site in enumerate(SITES):
        write_site(folder / site / "data", rows if site == "beta" else 120, index)
        (folder / site / "policy.json").write_text("{}")
