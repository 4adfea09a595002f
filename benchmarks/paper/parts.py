"""Which jobs each figure and table needs, and the tables that their results make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.archives import ARCHIVES
from benchmarks.paper.jobs import CurveJob, Job, SizeJob, TimingJob
from benchmarks.paper.panels import FOLDS, SITES
from benchmarks.paper.settings import Setting
from benchmarks.paper.timing import LINKS
from rankdad.common.errors import UserError

PARTS = ("figure-2", "figure-3", "figure-4", "figure-5", "figure-6", "table-3")
CURVES: Mapping[str, tuple[str, ...]] = {  # panels of each figure
    "figure-2": ("mnist", "spoken-arabic-digits"),
    "figure-3": ("mnist", "spoken-arabic-digits"),
    "figure-4": ("natops", "pendigits"),
    "figure-5": ("cifar10",),
}
SPECTRA = "authors-10"  # the method whose ranks figure 3 shows
SIZED = ("dsgd", "dad", "edad", "powersgd-4", "rank-dad-4", "rank-dad-int8-8", "top-rows")  # in figure 6


def jobs(parts: Sequence[str], setting: Setting) -> list[Job]:
    """Return the jobs of some parts, by fold; jobs that run alone come last."""
    curves = [job for part in parts if part in CURVES for job in _curves(part, setting)]
    needed: list[Job] = [*sorted(curves, key=lambda job: job.fold)]
    if "figure-6" in parts:
        needed += [SizeJob(method, size) for method in SIZED for size in setting.sizes]
    if "figure-5" in parts:
        needed += _seconds(setting)
    if "table-3" in parts:
        needed += _timings(setting)
    return needed


def _curves(part: str, setting: Setting) -> list[CurveJob]:
    panels = [setting.panels[key] for key in CURVES[part]]
    return [
        CurveJob(panel, method, fold)
        for fold in range(setting.folds)
        for panel in panels
        for method in ((SPECTRA,) if part == "figure-3" else panel.methods)
    ]


def _seconds(setting: Setting) -> list[TimingJob]:
    panel = setting.panels["cifar10"]
    sent = [method for method in panel.methods if method not in ("pooled", "dad")]
    return [TimingJob(panel, method, len(SITES), link, setting.steps) for link in LINKS for method in sent]


def _timings(setting: Setting) -> list[TimingJob]:
    panel, timing = setting.panels["mnist"], setting.timing
    return [
        TimingJob(panel, method, sites, link, timing.steps)
        for sites in timing.sites
        for link in LINKS
        for method in timing.methods
    ]


def check_data(parts: Sequence[str], setting: Setting, data: Path) -> None:
    """Check that all data files exist.

    Raises:
        UserError: a file is not: which, where it can be had, what needs it, and what can be made without.
    """
    needed = {part: _files(part, setting, data) for part in PARTS}
    missing = [path for path in dict.fromkeys(p for part in parts for p in needed[part]) if not path.exists()]
    if not missing:
        return
    sentences = []
    for path in missing:
        panel = next(panel for panel in setting.panels.values() if panel.file == path.name)
        without = ", ".join(part for part in parts if path in needed[part])
        sentences.append(f"{path}: does not exist; {without} needs it; it is made of {ARCHIVES[panel.source].found_at}")
    possible = [part for part in PARTS if all(path.exists() for path in needed[part])]
    rest = f"what can be made without: {' '.join(possible)}; --data says where the files are"
    raise UserError("; ".join([*sentences, rest]), code="file-missing")


def _files(part: str, setting: Setting, data: Path) -> list[Path]:
    keys = CURVES.get(part, ()) or (("mnist",) if part == "table-3" else ())
    return [data / setting.panels[key].file for key in keys]


def tables(setting: Setting, output: Path) -> dict[str, pd.DataFrame]:
    """Return tables of all results that are there, by the names of their files; none is empty.

    Of folds all that are there count, also those beyond the setting's own.
    """
    setting = replace(setting, folds=FOLDS)
    made = {
        "figure-3": _table(_curves("figure-3", setting), output, _spectra),
        "figure-5-seconds": _table(_seconds(setting), output, _seconds_row),
        "figure-6": _table(jobs(["figure-6"], setting), output, lambda _, result: result["rows"]),
        "table-3": _table(_timings(setting), output, _timing_row),
    }
    for part in ("figure-2", "figure-4", "figure-5"):
        made[part] = _table(_curves(part, setting), output, _auc)
    return {name: table for name, table in sorted(made.items()) if len(table)}


def where(setting: Setting, output: Path) -> str:
    """Return in words on which machines the results that are there were made."""
    machines = {job.where(output): None for job in jobs(PARTS, replace(setting, folds=FOLDS))}
    return "; ".join(place for place in machines if place)


def _table(
    of: Iterable[Job], output: Path, rows: Callable[[Any, dict[str, Any]], list[dict[str, Any]]]
) -> pd.DataFrame:
    return pd.DataFrame([row for job in of if (result := job.result(output)) is not None for row in rows(job, result)])


def _auc(job: CurveJob, result: dict[str, Any]) -> list[dict[str, Any]]:
    known = {"panel": job.panel.key, "method": job.method, "fold": job.fold + 1}
    return [{**known, **row, "auc": round(row["auc"], 6)} for row in result["auc"]]


def _spectra(job: CurveJob, result: dict[str, Any]) -> list[dict[str, Any]]:
    known = {"panel": job.panel.key, "method": job.method, "fold": job.fold + 1}
    per_epoch = result["auc"][0]["step"] / result["auc"][0]["epoch"]
    return [
        {**known, "step": row["step"], "epoch": row["step"] / per_epoch, "layer": row["layer"]}
        | {f"value_{place}": value for place, value in enumerate(row["values"], start=1)}
        for row in result["spectra"]
    ]


def _seconds_row(job: TimingJob, result: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"panel": job.panel.key, **row} for row in _timing_row(job, result)]


def _timing_row(job: TimingJob, result: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"link": job.link, "method": job.method, "sites": job.sites, **result}]
