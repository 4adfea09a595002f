"""A run's story is the same wherever it is told: page, terminal, figures for Prometheus, report and `summary.json`."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rankdad.common.data import SiteData
from rankdad.common.documents import load_json
from rankdad.common.spec import RunSpec
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.audit import Audit
from rankdad.remote.live import Live
from rankdad.remote.page_document import past_page
from rankdad.remote.report.result_lines import result_lines
from rankdad.remote.report.run_report import report
from rankdad.remote.report.words import number
from rankdad.remote.run_session import RunSession
from rankdad.remote.site_status import site_statuses
from rankdad.remote.view import LiveView, Waiting, figures, size, times_fewer
from rankdad.simulations import lockstep
from tests.conftest import run_spec

RUNS: dict[str, dict[str, Any]] = {
    "folds": {
        "method": {"name": "rank-dad", "rank": 2},
        "evaluation": {"name": "k-fold", "folds": 2},
        "training": {"validation": 0.2},
    },
    "regression": {
        "task": {"name": "regression"},
        "method": {"name": "dsgd"},
        "training": {"validation": 0.2, "monitor": "mae"},
    },
    "exact": {
        "method": {"name": "dsgd"},
        "model": {"name": "linear"},
        "training": {"validation": 0.0, "solver": "exact"},
        "preparation": {"standardise": "federated"},
    },
}


def page_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a page by the names that `summary.json` has for them."""
    stand, traffic, run = document["stand"], document["traffic"], document["run"]
    named = {
        "status": stand["status"],
        "reason": stand["reason"],
        "steps": stand["step"],
        "planned_steps": stand["steps"],
        "epochs": stand["epoch"],
        "loss": stand["loss"],
        "best_value": stand["best_value"],
        "seconds": stand["seconds"],
        "seconds_per_step": stand["step_seconds"],
        "bytes_up": traffic["up"],
        "bytes_down": traffic["down"],
        "dense_bytes": traffic["dense"],
        "bytes_up_per_site_step": traffic["step_up"],
        "bytes_down_per_site_step": traffic["step_down"],
        "times_fewer_bytes_than_dense": traffic["ratio"],
        "name": run["name"],
        "method": run["method"],
        "sites": run["sites"],
        "rows": {site["name"]: site["rows"] for site in document["sites"] if site["rows"] is not None},
        "left_out": {site["name"]: site["left_out"] for site in document["sites"] if site["left_out"]},
        "warned": [site["name"] for site in document["sites"] if site["warnings"]],
        "validation": stand["validation"],
    }
    return named | ({} if stand["best_epoch"] is None else {"best_epoch": stand["best_epoch"]})


def summary_of(summary: dict[str, Any], spec: RunSpec) -> dict[str, Any]:
    """Return the same figures of `summary.json`, rounded as the page rounds them."""
    warned = {site for sites in summary["warnings"].values() for site in sites} | summary["rows_dropped"].keys()
    known = {name: summary.get(name) for name in page_of(EMPTY) if name in summary} | {
        "seconds": round(summary["seconds"], 1),
        "bytes_up_per_site_step": round(summary["bytes_up_per_site_step"]),
        "bytes_down_per_site_step": round(summary["bytes_down_per_site_step"]),
        "times_fewer_bytes_than_dense": round(summary["times_fewer_bytes_than_dense"] or 0.0, 2),
        "warned": [site for site in summary["sites"] if site in warned],
        "validation": (summary["metrics"]["validation"] or {}).get(spec.training.monitor),
    }
    return known | ({"best_epoch": summary["best_epoch"]} if summary["best_value"] is not None else {})


EMPTY = {
    "stand": dict.fromkeys(
        ("status", "reason", "step", "steps", "epoch", "loss", "best_value", "seconds", "step_seconds", "validation")
    )
    | {"best_epoch": None},
    "traffic": dict.fromkeys(("up", "down", "dense", "step_up", "step_down", "ratio")),
    "run": dict.fromkeys(("name", "method", "sites")),
    "sites": [],
}


def terminal_of(aggregator: Aggregator, host: RunSession) -> str:
    """Return what the terminal shows, on lines as long as they need."""
    text, recorder = io.StringIO(), aggregator.recorder
    console = Console(file=text, width=400, height=50, force_terminal=False)
    console.print(LiveView(recorder.progress, Waiting, console, recorder.history, lambda: site_statuses(host)).drawn())
    return text.getvalue()


def words_of(summary: dict[str, Any]) -> list[str]:
    """Return what the terminal says of a run's figures."""
    up, down = (size(summary[f"bytes_{way}_per_site_step"]) for way in ("up", "down"))
    validation = dict(summary["metrics"]["validation"] or {})
    found = [
        summary["name"],
        summary["method"],
        *summary["sites"],
        *(f" {rows:,} " for rows in summary["rows"].values()),
    ]
    if summary["steps"]:
        found.append(f"{summary['steps']:,}/{summary['planned_steps']:,} steps")
        found.append(f"{up} up, {down} down per site and step")
        if (ratio := summary["times_fewer_bytes_than_dense"]) > 1 or summary["method"] != "dsgd":
            found.append(times_fewer(ratio))
    if validation.pop("samples", 0):
        error = validation.pop("auc_error")
        found.append(f"training loss {summary['train_loss']:.4f}")
        found += figures({name: validation[name] for name in [*validation][:3]}, error)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS)
def test_figures_agree_while_a_run_goes_on_and_when_it_is_over(
    tmp_path: Path, site_data: Callable[..., dict[str, SiteData]], changes: dict[str, Any]
) -> None:
    spec, told, directory = run_spec(**changes), list[int](), tmp_path / "run"
    with closing(Audit(tmp_path / "audit")) as audit:

        def look(aggregator: Aggregator) -> None:
            aggregator.recorder.summarise()
            summary, host = load_json(directory / "summary.json"), RunSession(aggregator, audit)
            page = page_of(Live(host, list).document())
            if aggregator.ended:  # the last summary is written when the run's files are closed
                page |= {"status": summary["status"], "reason": summary["reason"]}
            assert page == summary_of(summary, spec)
            told.append(len(page))
            terminal = terminal_of(aggregator, host)
            assert [word for word in words_of(summary) if word not in terminal] == []

        lockstep.run(spec, site_data(spec), directory, on_round=look)
    summary = load_json(directory / "summary.json")
    page = page_of(past_page(directory, "", "", [])[0])
    assert page == summary_of(summary, spec)
    assert summary["status"] == "completed"
    assert min(told) >= 22
    lines, shown = "\n".join(result_lines(summary, spec)), re.sub(r"<[^>]*>", " ", report(directory))
    test = summary["metrics"]["test"]
    for name in ("auc", "mae"):
        if name in test:
            assert f"{test[name]:.{5 if name == 'auc' else 4}f}" in lines
            assert number(test[name], 3 if name == "auc" else 2) in shown
    assert f"{test['samples']:,} sample" in lines
    assert f"{test['samples']:,}" in shown
    digest = next(iter(summary["weights_sha256"].values()))
    assert digest[:16] in lines
    assert digest in shown
