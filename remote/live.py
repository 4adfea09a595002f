"""What the live page says of an aggregator's run, by part."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from starlette.requests import Request

from rankdad.common.spec.run import training_name
from rankdad.common.spec.tasks import Metric, shown
from rankdad.page.serving import Guard, Page
from rankdad.page.stream import Stream
from rankdad.page.tail import Line, Tail
from rankdad.remote.auth import hashed
from rankdad.remote.connections import VIEWER, ConnectionRegistry
from rankdad.remote.host import Host
from rankdad.remote.progress import Progress
from rankdad.remote.standing import Kind, standings

MAX_WARNINGS = 5  # of a site
WORDS: Mapping[Kind, str] = {
    "absent": "not here yet",
    "gone": "gone: no connection",
    "behind": "late: the round goes on without it",
    "awaited": "works",
    "in": "is in",
}


class Live:
    """A run as the page tells of it.

    Args:
        host: of the run.
        lines: returns the last ones of the log.
    """

    def __init__(self, host: Host, lines: Callable[[], list[Line]]) -> None:
        self._host, self._lines = host, lines
        self._aggregator, self._recorder = host.aggregator, host.aggregator.recorder
        self._epoch = time.time() - time.perf_counter()  # the moment that its clock counts from

    def document(self) -> dict[str, Any]:
        """Return all parts: a part is told again when it has changed."""
        p, status = self._recorder.progress, self._aggregator.status
        outcome, reason = self._aggregator.outcome
        ended = p.status if p.status != "running" else outcome
        return {
            "run": self._run(p),
            "stand": _stand(p, self._aggregator.spec.training.monitor, ended, p.reason or reason),
            "waiting": {
                "sites": list(status.waiting_for),
                "since": round(self._epoch + status.round_began, 1),
                "without": list(status.without),
            },
            "traffic": {
                "up": p.up,
                "down": p.down,
                "dense": p.dense_bytes,
                "step_up": round(p.per_site_step(p.up)),
                "step_down": round(p.per_site_step(p.down)),
                "ratio": round(p.ratio, 2),
            },
            "times": self._recorder.history.times(),
            "sites": self._sites(p, ended),
            "seen": {site: round(seen) for site, seen in dict(self._host.seen).items()},
            "log": self._lines(),
        }

    def _run(self, p: Progress) -> dict[str, Any]:
        spec = self._aggregator.spec
        return {
            "name": p.name,
            "method": p.method,
            "members": p.members,
            "noun": p.member,
            "sites": list(p.sites),
            "layers": list(self._recorder.history.layers),
            "metric": str(spec.training.monitor),
            "metric_name": shown(spec.training.monitor),
            "id": self._aggregator.run_id,
        }

    def _sites(self, p: Progress, ended: str) -> list[dict[str, Any]]:
        """Return a row for each site."""
        refused, rows = self._host.audit.refusals, []
        for standing in standings(self._host):
            site, kind = standing.site, standing.kind
            words = f"cannot take part: {standing.problem}" if kind == "stopped" else WORDS[kind]
            count, refusal = refused.get(site, (0, ""))
            warnings = [name.replace("-", " ") for name, sites in dict(p.warnings).items() if site in sites]
            warnings += [f"{p.dropped[site]} rows left out"] if p.dropped.get(site) else []
            rows.append(
                {
                    "name": site,
                    "kind": "" if ended != "running" else kind,
                    "state": ended if ended != "running" else words,
                    "rows": standing.rows,
                    "version": self._aggregator.plan.version if standing.rows is not None else "",
                    "left_out": p.left_out.get(site, 0),
                    "refused": count,
                    "refusal": refusal,
                    "warnings": warnings[:MAX_WARNINGS],
                }
            )
        return rows


def _stand(p: Progress, monitor: Metric, status: str, reason: str) -> dict[str, Any]:
    """Return how far the run is."""
    values = p.validation.values if p.validation else {}
    ends = round(time.time() + p.seconds_left) if p.step and status == "running" else None
    where = "waits for all to say hello"
    fold = f"{training_name(min(p.fold, p.folds - 1), p.tested_folds, p.folds, p.candidates)}, " * (p.folds > 1)
    if p.solver.get("name") == "exact":
        where = f"{fold}solved exactly, without steps"
    elif p.steps:
        where = f"{fold}epoch {min(p.epoch + 1, p.epochs)} of {p.epochs}"
    return {
        "status": status,
        "reason": reason,
        "where": where,
        "warning": p.undertrained.get("warning", "") or p.solver.get("warning", ""),
        "step": p.step,
        "steps": p.steps,
        "epoch": p.epoch,
        "loss": p.loss,
        "validation": values.get(monitor),
        "best_epoch": p.best_epoch + 1 if p.epoch and p.validation and p.validation.samples else None,
        "best_value": p.best_value,
        "seconds": round(p.seconds, 1),
        "step_seconds": p.step_seconds / max(1, p.step),
        "ends": ends,
    }


def page_of(host: Host, registry: ConnectionRegistry, viewers: Callable[[], Collection[str]]) -> Page:
    """Return the page about a run.

    Args:
        host: of the run.
        registry: of all connections.
        viewers: returns the hashed tokens of those who may see it.
    """
    tail = Tail()
    stream = Stream(Live(host, tail.lines).document, host.aggregator.recorder.history)

    def allowed(_: Request, token: str) -> bool:
        given = hashed(token)
        return any(secrets.compare_digest(known, given) for known in viewers())

    return Page(host.aggregator.spec.name, stream, guard_of(registry, allowed), closing=tail.stop)


def guard_of(
    registry: ConnectionRegistry, allowed: Callable[[Request, str], bool], path: str = "", asks: str = Guard.ASKS
) -> Guard:
    """Return what guards a page: connections of those whom it lets in are viewers', and others are in the audit log."""

    def admitted(request: Request) -> None:
        connection = request.scope["state"]["connection"]
        if connection.site != VIEWER:
            registry.identify(connection, VIEWER)

    def refused(request: Request, status: int, reason: str) -> None:
        registry.audit.refused(request.client.host if request.client else "", "", status, reason)

    return Guard(allowed, admitted, refused, path, asks)
