"""Figures of a server for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rankdad.common.errors import ProtocolError
from rankdad.remote.results.run_summary import RunFigures

if TYPE_CHECKING:
    from prometheus_client import Metric

    from rankdad.remote.open_run import Runs


def figures(runs: Runs, now: float) -> bytes:
    """Return the figures in Prometheus' text format.

    Args:
        runs: its runs.
        now: seconds since 1970.

    Raises:
        ProtocolError: 501 without the extra `metrics`.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.registry import Collector
    except ImportError:
        raise ProtocolError(
            501, "the service was installed without the extra `metrics` (prometheus_client)", code="not-installed"
        ) from None

    class Figures(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from _collect(runs, now)

    registry = CollectorRegistry()
    registry.register(Figures())
    return generate_latest(registry)


def _collect(runs: Runs, now: float) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    states = GaugeMetricFamily("rankdad_runs", "Runs by state.", labels=["state"])
    for state, count in runs.counts().items():
        states.add_metric([state], count)
    yield states
    heard = GaugeMetricFamily(
        "rankdad_agent_silence_seconds", "Seconds since the last request of a site's agent.", labels=["site"]
    )
    for site, seen in runs.agents.items():
        heard.add_metric([site], now - seen.time)
    yield heard
    steps = CounterMetricFamily("rankdad_steps", "Steps done in an active run.", labels=["run"])
    planned = GaugeMetricFamily("rankdad_planned_steps", "Planned steps of an active run.", labels=["run"])
    sent = CounterMetricFamily("rankdad_bytes", "Bytes of all steps, summed over sites.", labels=["run", "direction"])
    loss = GaugeMetricFamily("rankdad_loss", "Pooled training loss of the last step.", labels=["run"])
    waiting = GaugeMetricFamily("rankdad_waiting_sites", "Sites that the open round waits for.", labels=["run"])
    for name, run in runs.running.items():
        if run.host is None:
            continue
        p, status = RunFigures.of(run.host.aggregator.recorder.progress), run.host.aggregator.status
        steps.add_metric([name], p.steps)
        planned.add_metric([name], p.planned_steps)
        sent.add_metric([name, "up"], p.bytes_up)
        sent.add_metric([name, "down"], p.bytes_down)
        waiting.add_metric([name], len(status.waiting_for))
        if p.loss is not None:
            loss.add_metric([name], p.loss)
    yield from (steps, planned, sent, loss, waiting)
