"""`python -m benchmarks methods`: the same run by several methods, as real processes or all in one."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from rankdad.common.policy import EVERYTHING
from rankdad.simulate_command import command, summary_of
from rankdad.simulations.spec import read_simulation

COLUMNS = (
    "method",
    "seed",
    "steps",
    "train loss",
    "test AUC",
    "accuracy",
    "bytes up",
    "bytes down",
    "MB a site",
    "times fewer",
    "s/step",
    "weights",
)


def bench_methods(
    file: Path,
    assignments: list[str],
    data: Path | None,
    seeds: list[int],
    methods: list[str] | None,
    *,
    lockstep: bool = False,
) -> list[dict[str, Any]]:
    """Print a table (Markdown) with a row per method and seed, bytes per site and step; return the summaries.

    "MB a site" and "times fewer" are of the whole training, both ways: steps may be of one batch or of many.

    Several seeds are followed by their means.

    Args:
        file: a run and its simulation.
        assignments: as `--set` takes them.
        data: the source's data file, in place of the file's own path.
        seeds: of the runs.
        methods: each as JSON; dsgd and the file's own without them. Bytes compare with the first.
        lockstep: train all in one process, where only quality and bytes are asked for.
    """
    assignments = [f"simulation.policy={EVERYTHING.text()}", *assignments]  # no data leave a site here
    own = read_simulation(file, assignments, data=data).run.method.model_dump_json(exclude_defaults=True)
    methods = methods or ['{"name": "dsgd"}', own]
    rows: list[dict[str, Any]] = []
    _print(COLUMNS, "---|" * len(COLUMNS))
    for seed in seeds:
        for at, method in enumerate(methods):
            options = ["--lockstep"] if lockstep else []
            summary = _run(file, [*assignments, f"run.method={method}", f"run.seed={seed}"], data, options)
            rows.append(summary)
            _print(_row(summary, rows[-1 - at], seed, method))
    if len(seeds) > 1:
        _print_means(rows, methods)
    return rows


def _print_means(rows: list[dict[str, Any]], methods: list[str]) -> None:
    print()
    _print(("method", "train loss", "test AUC", "times fewer"), "---|" * 4)
    for at, method in enumerate(methods):
        own, first = rows[at :: len(methods)], rows[:: len(methods)]
        losses = [summary["train_loss"] for summary in own]
        aucs = [summary["metrics"]["test"]["auc"] for summary in own]
        fewer = sum(map(_bytes, first)) / sum(map(_bytes, own))
        _print((words(method), f"{mean(losses):.5f}", f"{mean(aucs):.5f}", f"{fewer:.1f}"))


def _print(cells: Sequence[object], rule: str = "") -> None:
    print("| " + " | ".join(map(str, cells)) + " |" + (f"\n|{rule}" if rule else ""), flush=True)


def _run(file: Path, assignments: list[str], data: Path | None, options: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return summary_of([*command(file, Path(folder) / "run", assignments, data), *options])


def _row(summary: dict[str, Any], baseline: dict[str, Any], seed: int, method: str) -> tuple[object, ...]:
    test = {key: math.nan if value is None else value for key, value in (summary["metrics"]["test"] or {}).items()}
    equal = len(set(summary["weights_sha256"].values())) == 1
    return (
        words(method),
        seed,
        summary["steps"],
        f"{summary['train_loss']:.5f}",
        f"{test['auc']:.5f}",
        f"{test['accuracy']:.4f}",
        f"{summary['bytes_up_per_site_step']:,.0f}",
        f"{summary['bytes_down_per_site_step']:,.0f}",
        f"{_bytes(summary) / 1e6:.2f}",
        f"{_bytes(baseline) / _bytes(summary):.1f}",
        f"{summary['seconds_per_step']:.3f}",
        ("equal " if equal else "DIFFER ") + next(iter(summary["weights_sha256"].values()))[:8],
    )


def _bytes(summary: dict[str, Any]) -> float:
    """Return a site's whole bodies of the whole training, up and down."""
    return float(summary["bytes_up_per_site_step"] + summary["bytes_down_per_site_step"]) * float(summary["steps"])


def words(method: str) -> str:
    """Name a method by its settings."""
    spec: dict[str, Any] = json.loads(method)
    rank = f" r={spec.pop('rank')}" if "rank" in spec else ""
    named = [spec.pop("name") + rank]
    named += [value if isinstance(value, str) else f"{key} {json.dumps(value)}" for key, value in spec.items()]
    return " ".join(named)
