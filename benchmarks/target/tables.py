"""What was trained, as tables, printed and written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import pandas as pd

from benchmarks.methods import words
from benchmarks.target.curves import Curve, Target, best, first_reaching, least_lead
from benchmarks.target.settings import DSGD, FEDAVG
from rankdad.common.spec.tasks import shown

ON_LINK = "s at 100 Mbit/s (computed)"
NOTES = (
    "MB: both ways. Seconds: of all sites one after another on one thread, of a process for each with --processes, of "
    "Flower as it runs; computed: the same side by side, and the bytes on a link of each site's own."
)


@dataclass(frozen=True)
class Trained:
    """One training.

    Args:
        sites: how samples were dealt out.
        method: in words.
        seed: of the run.
        curve: its tests in order; none where Flower is not installed.
    """

    sites: str
    method: str
    seed: int
    curve: Curve


def curves(trained: Sequence[Trained]) -> pd.DataFrame:
    """Return a row for every test."""
    rows = []
    for one in trained:
        for point in one.curve:
            place = {"sites": one.sites, "method": one.method, "seed": one.seed, "epoch": round(point.epoch, 4)}
            sent = {"exchanges": point.exchanges, "bytes_up": point.bytes_up, "bytes_down": point.bytes_down}
            times = {"seconds": point.seconds, "parallel": point.parallel, "on_100_mbit": point.seconds_on_link}
            values = {name: round(value, 6) for name, value in point.values.items()}
            rows.append(place | sent | {name: round(value, 3) for name, value in times.items()} | values)
    return pd.DataFrame(rows)


def to_targets(trained: Sequence[Trained], targets: Sequence[Target]) -> pd.DataFrame:
    """Return a row for every kind of sites, method and target: what it takes, the mean of the seeds that reach it."""
    rows = []
    for (sites, method), runs in _groups(trained).items():
        for target in targets:
            found = [point for one in runs if (point := first_reaching(one.curve, target)) is not None]
            row: dict[str, object] = {"sites": sites, "method": method, "target": _goal(target)}
            row["reached"] = f"{len(found)} of {len(runs)}" if runs[0].curve else "not installed"
            for name, figures in {
                "epochs": [point.epoch for point in found],
                "exchanges": [float(point.exchanges) for point in found],
                "MB a site": [point.bytes / 1e6 for point in found],
                "seconds": [point.seconds for point in found],
                ON_LINK: [point.seconds_on_link for point in found],
            }.items():
                row[name] = mean(figures) if figures else None
            rows.append(row)
    return pd.DataFrame(rows)


def to_quality(trained: Sequence[Trained], metric: str) -> pd.DataFrame:
    """Return a row for every kind of sites and method: how good the model was, beside dsgd's and beside FedAvg's."""
    rows = []
    groups = _groups(trained)
    for (sites, method), runs in groups.items():
        if not runs[0].curve:
            continue
        row: dict[str, object] = {
            "sites": sites,
            "method": method,
            "MB a site": mean(r.curve[-1].bytes for r in runs) / 1e6,
        }
        row[f"best {shown(metric)}"] = mean(best(one.curve, metric) for one in runs)
        row["at the end"] = mean(one.curve[-1].values[metric] for one in runs)
        beside = _by_seed(groups.get((sites, words(DSGD)), []))
        if all(one.seed in beside for one in runs):
            less = [one.curve[-1].values[metric] - beside[one.seed][-1].values[metric] for one in runs]
            row["less dsgd's"] = mean(less)
        beside = _by_seed(groups.get((sites, words(FEDAVG)), []))
        if all(one.seed in beside for one in runs):
            leads = [least_lead(one.curve, beside[one.seed], metric) for one in runs]
            row["least lead over FedAvg"], row["at MB"] = min(leads)[0], min(leads)[1] / 1e6
        rows.append(row)
    return pd.DataFrame(rows)


def write(trained: Sequence[Trained], targets: Sequence[Target], folder: Path) -> None:
    """Write tables and picture of what there is so far."""
    from benchmarks.target.plot import picture

    folder.mkdir(parents=True, exist_ok=True)
    found = curves(trained)
    found.to_csv(folder / "curves.csv", index=False, lineterminator="\n")
    to_targets(trained, targets).to_csv(folder / "targets.csv", index=False, lineterminator="\n")
    (folder / "targets.png").write_bytes(picture(trained, targets))


def markdown(table: pd.DataFrame) -> str:
    """Return a table as a page has it."""
    lines = [list(table.columns), ["---"] * len(table.columns)]
    lines += [[_cell(str(name), value) for name, value in row.items()] for row in table.to_dict("records")]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _cell(column: str, value: object) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    if value != value:  # NaN, as pandas has what is missing
        return "–"
    digits = {"epochs": 1, "exchanges": 0, "seconds": 0, ON_LINK: 0, "MB a site": 2, "at MB": 2}.get(column, 5)
    return f"{value:.{digits}f}"


def _goal(target: Target) -> str:
    return f"{shown(target[0])} {target[1]:g}"


def _groups(trained: Sequence[Trained]) -> dict[tuple[str, str], list[Trained]]:
    found: dict[tuple[str, str], list[Trained]] = {}
    for one in trained:
        found.setdefault((one.sites, one.method), []).append(one)
    return found


def _by_seed(runs: Sequence[Trained]) -> dict[int, Curve]:
    return {one.seed: one.curve for one in runs}
