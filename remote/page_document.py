"""What the page says of a run, by part, from its figures alone: of one that goes on and of one that is over alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import LOWER_IS_BETTER, shown
from rankdad.page.tail import Line
from rankdad.remote.results.run_summary import RunFigures

MAX_WARNINGS = 5  # of a site
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
    """Return all parts: a part is told again when it has changed.

    Args:
        figures: of the run.
        spec: of the run.
        layers: whose ranks are in the curves.
        lines: the last ones of the log.
        id_: of the run.
        ends: seconds since 1970 at which it will be over.
        waiting: whom the present round waits for.
        times: of each site's last step.
        states: kind and words of how each site stands; the run's own status without.
        refused: how often each site was refused, and why.
        seen: when each was last heard of, in seconds since 1970.
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
    """Return a site's row."""
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
