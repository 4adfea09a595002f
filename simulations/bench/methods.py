"""`rankdad bench methods`: the same run by several methods, each as real processes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common.errors import RankdadError, UserError
from simulations.spec import read_simulation

COLUMNS = (
    "method",
    "seed",
    "steps",
    "test AUC",
    "accuracy",
    "bytes up",
    "bytes down",
    "times fewer",
    "s/step",
    "weights",
)


def bench_methods(
    file: Path, assignments: list[str], data: Path | None, seeds: list[int], methods: list[str] | None
) -> list[dict[str, Any]]:
    """Print a table (Markdown) with a row per method and seed, bytes per site and step; return the summaries."""
    own = read_simulation(file, assignments, data=data).run.method.model_dump_json()
    rows = []
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for seed in seeds:
        baseline: dict[str, Any] | None = None
        for method in methods or ['{"name": "dsgd"}', own]:
            summary = _run(file, [*assignments, f"run.method={method}", f"run.seed={seed}"], data)
            baseline = baseline or summary
            rows.append(summary)
            print(_row(summary, baseline, seed, method), flush=True)
    return rows


def _run(file: Path, assignments: list[str], data: Path | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rankdad", "simulate", str(file), "--output", f"{folder}/run", "--json"]
        command += [word for assignment in assignments for word in ("--set", assignment)]
        command += ["--data", str(data)] if data else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == UserError.exit_code:
        raise UserError(done.stderr.strip().removeprefix("error: "))
    if done.returncode:
        raise RankdadError(done.stderr.strip())
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def _row(summary: dict[str, Any], baseline: dict[str, Any], seed: int, method: str) -> str:
    """Return a line of the table; bytes compare with the first method's, whole bodies up and down."""
    test = {key: math.nan if value is None else value for key, value in (summary["metrics"]["test"] or {}).items()}
    up, down = summary["bytes_up_per_site_step"], summary["bytes_down_per_site_step"]
    fewer = (baseline["bytes_up_per_site_step"] + baseline["bytes_down_per_site_step"]) / (up + down)
    spec = json.loads(method)
    kind = f" r={spec['rank']} {spec.get('reducer', 'spi')}" if "rank" in spec else ""
    equal = len(set(summary["weights_sha256"].values())) == 1
    cells = (
        summary["method"] + kind,
        seed,
        summary["steps"],
        f"{test['auc']:.5f}",
        f"{test['accuracy']:.4f}",
        f"{up:,.0f}",
        f"{down:,.0f}",
        f"{fewer:.1f}",
        f"{summary['seconds_per_step']:.3f}",
        ("equal " if equal else "DIFFER ") + next(iter(summary["weights_sha256"].values()))[:8],
    )
    return "| " + " | ".join(map(str, cells)) + " |"
