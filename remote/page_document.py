"""The page's document about a run, active or ended, from its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rankdad.common.documents import load_json, validate
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import LOWER_IS_BETTER, shown
from rankdad.page.history import History, rebuild_history
from rankdad.page.tail import Line
from rankdad.remote.results.run_summary import RunFigures, RunSummary
from rankdad.remote.tables import rows_in, text_of

MAX_WARNINGS = 5  # for each site
NOBODY: Mapping[str, Any] = {"sites": [], "since": 0, "without": []}


def page_document(
    figures: RunFigures,
    spec: RunSpec,
    layers: Sequence[str],
    lines: list[Line],
    *,
    id_: str = "",
    ends: float | None = None,
    waiting: Mapping[str, Any] = NOBODY,
    times: Mapping[str, Any] | None = None,
    states: Mapping[str, tuple[str, str]] | None = None,
    refused: Mapping[str, tuple[int, str]] | None = None,
    seen: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Return all parts; the page receives a part when it changes.

    Args:
        figures: the run's.
        spec: the run's.
        layers: layers with curves of ranks.
        lines: the last lines of the log.
        id_: the run's identity.
        ends: estimated end, in seconds since 1970.
        waiting: sites that the present round waits for.
        times: of each site's last step.
        states: kind and text of each site's status; the run's status by default.
        refused: number and last reason of refusals by site.
        seen: each site's last request, in seconds since 1970.
    """
    monitor, p = spec.training.monitor, figures
    return {
        "run": {
            "name": spec.name,
            "method": p.method,
            "members": p.members,
            "noun": p.member,
            "sites": list(p.sites),
            "layers": list(layers),
            "metric": str(monitor),
            "metric_name": shown(monitor),
            "lower_is_better": monitor in LOWER_IS_BETTER,
            "id": id_,
        },
        "stand": {
            "status": p.status,
            "reason": p.reason,
            "where": ", ".join(p.where),
            "warning": p.undertrained.get("warning", "") or p.solver.get("warning", ""),
            "step": p.steps,
            "steps": p.planned_steps,
            "epoch": p.epochs,
            "loss": p.loss,
            "validation": (p.metrics.validation or {}).get(monitor),
            "best_epoch": p.best_epoch if p.best_epoch and p.best_value is not None else None,
            "best_value": p.best_value,
            "seconds": round(p.seconds, 1),
            "step_seconds": p.seconds_per_step,
            "ends": ends,
        },
        "waiting": dict(waiting),
        "traffic": {
            "up": p.bytes_up,
            "down": p.bytes_down,
            "dense": p.dense_bytes,
            "step_up": round(p.bytes_up_per_site_step),
            "step_down": round(p.bytes_down_per_site_step),
            "ratio": round(p.times_fewer_bytes_than_dense or 0.0, 2),
        },
        "times": dict(times or {}),
        "sites": [_site(p, site, (states or {}).get(site), (refused or {}).get(site)) for site in p.sites],
        "seen": dict(seen or {}),
        "log": lines,
    }


def _site(p: RunFigures, site: str, state: tuple[str, str] | None, refused: tuple[int, str] | None) -> dict[str, Any]:
    kind, words = state or ("", p.status)
    count, refusal = refused or (0, "")
    warnings = [name.replace("-", " ") for name, sites in p.warnings.items() if site in sites]
    warnings += [f"{p.rows_dropped[site]} rows left out"] if p.rows_dropped.get(site) else []
    return {
        "name": site,
        "kind": kind,
        "state": words,
        "rows": p.rows.get(site),
        "version": p.site_versions.get(site, ""),
        "left_out": p.left_out.get(site, 0),
        "refused": count,
        "refusal": refusal,
        "warnings": warnings[:MAX_WARNINGS],
    }


def past_page(directory: Path, state: str, reason: str, lines: Sequence[Line]) -> tuple[dict[str, Any], History]:
    """Return the document and curves of an ended run, from its directory.

    Args:
        directory: the run's.
        state: final status, if the summary still says "running".
        reason: for that status.
        lines: the last lines of its log.

    Raises:
        UserError: the spec cannot be read.
        OSError: another file cannot be read; `ValueError`, `KeyError` and `TypeError` if one is invalid.
    """
    spec = validate(RunSpec, load_json(directory / "run.json"), file=directory / "run.json")
    summary = validate(RunSummary, load_json(directory / "summary.json"), file=directory / "summary.json")
    head = text_of(directory, "steps").partition("\n")[0].split(",")
    layers = [name.removeprefix("rank:") for name in head if name.startswith("rank:")]
    history = History(summary.sites, layers, tuple(dict.fromkeys(("loss", spec.training.monitor))))
    rebuild_history(history, partial(rows_in, directory), layers)
    if summary.status == "running":
        summary = summary.model_copy(update={"status": state, "reason": reason})
    return page_document(summary, spec, layers, list(lines)), history
