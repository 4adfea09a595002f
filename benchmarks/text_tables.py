"""The table and the picture of `python -m benchmarks text`, from the results of its runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.methods import words

COLUMNS = (
    *("task", "sites", "method", "seeds", "steps", "test loss", "over full gradients'", "AUC or bits per byte"),
    *("difference", "KB a site and step", "times fewer", "MB a site to the target", "times fewer to the target"),
)
TARGET = 1.05  # times the best validation loss with full gradients, of the same seed
Case = Mapping[str, Any]
Results = dict[tuple[str, str], dict[str, dict[int, Case]]]  # by task and kind of sites, method, and seed


def results(output: Path, methods: Sequence[str]) -> Results:
    """Read the results of all runs in a folder; methods are in their order, the first with full gradients."""
    found: Results = {}
    cases = [json.loads(place.read_text(encoding="utf-8")) for place in sorted(output.glob("*.json"))]
    for case in sorted(
        (one for one in cases if one["method"] in methods), key=lambda one: methods.index(one["method"])
    ):
        own = found.setdefault((case["task"], case["kind"]), {})
        own.setdefault(case["method"], {})[case["seed"]] = case
    return dict(sorted(found.items()))


def table(found: Results, full: str) -> str:
    """Return the means over seeds as Markdown; a method is compared with full gradients of the same seeds."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|---|---|" + "--:|" * (len(COLUMNS) - 3)]
    for (task, kind), methods in found.items():
        for method, cases in methods.items():
            seeds, steps = ", ".join(map(str, sorted(cases))), str(next(iter(cases.values()))["summary"]["steps"])
            cells = (task, kind, words(method), seeds, steps, *_cells(cases, methods.get(full, {})))
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cells(cases: Mapping[int, Case], full: Mapping[int, Case]) -> tuple[str, ...]:
    pairs = [(case, full[seed]) for seed, case in sorted(cases.items()) if seed in full]
    loss, other, sent = (_mean(key, cases.values()) for key in (_loss, _other, _kilobytes))
    own = f"{loss:.4f}", "–", f"{other:.4f}", "–", f"{sent:,.1f}", "–", "–", "–"
    if not pairs:
        return own
    ours, theirs = ([pair[side] for pair in pairs] for side in (0, 1))
    needed = [(_to_target(ours, theirs), _to_target(theirs, theirs)) for ours, theirs in pairs]
    reached = [(ours, theirs) for ours, theirs in needed if ours is not None and theirs is not None]
    least = mean(ours for ours, _ in reached) if reached else None
    missed = f" ({len(reached)} of {len(needed)})" * (len(reached) < len(needed))
    return (
        own[0],
        f"{_mean(_loss, ours) / _mean(_loss, theirs):.4f}",
        own[2],
        f"{_mean(_other, ours) - _mean(_other, theirs):+.4f}",
        own[4],
        f"{_mean(_bytes, theirs) / _mean(_bytes, ours):.1f}",
        "–" if least is None else f"{least:.2f}{missed}",
        "–" if least is None else f"{mean(theirs for _, theirs in reached) / least:.1f}",
    )


def picture(found: Results) -> bytes:
    """Return a PNG file: the best validation loss so far against megabytes, a line for each method and seed."""
    from matplotlib import style

    from rankdad.remote.report.plot_style import blank, dress, png, wheel

    tasks, kinds = (list(dict.fromkeys(key[at] for key in found)) for at in (0, 1))
    named = list(dict.fromkeys(method for methods in found.values() for method in methods))
    with style.context("default"):
        figure = blank()
        figure.set_size_inches(10.4, 3.4 * len(tasks) + 0.2 * len(named))
        grid = figure.subplots(len(tasks), len(kinds), squeeze=False)
        lines = {}
        for (task, kind), methods in found.items():
            axes = grid[tasks.index(task)][kinds.index(kind)]
            dress(axes, "megabytes a site, both ways (log)", f"{task}, sites {kind}\nvalidation loss, best so far")
            axes.set_xscale("log")
            for method, cases in methods.items():
                for case in cases.values():
                    sent, losses = zip(*case["curve"], strict=True)
                    place = named.index(method)
                    (line,) = axes.plot(sent, np.minimum.accumulate(losses), color=wheel(place), lw=1.1)
                    lines[words(method)] = line
        figure.legend(lines.values(), lines.keys(), loc="outside lower center", frameon=False, fontsize=8, ncols=2)
        return png(figure, ())


def _to_target(case: Case, full: Case) -> float | None:
    """Return the megabytes of a site until the loss is near that of full gradients; None if it never is."""
    target = TARGET * min(loss for _, loss in full["curve"])
    return next((sent for sent, loss in case["curve"] if loss <= target), None)


def _mean(key: Any, cases: Any) -> float:
    return float(mean(map(key, cases)))


def _loss(case: Case) -> float:
    return float(case["summary"]["metrics"]["test"]["loss"])


def _other(case: Case) -> float:
    test = case["summary"]["metrics"]["test"]
    return float(test["bits_per_byte" if case["task"] == "language model" else "auc"])


def _kilobytes(case: Case) -> float:
    return float(case["summary"]["bytes_up_per_site_step"] + case["summary"]["bytes_down_per_site_step"]) / 2e3


def _bytes(case: Case) -> float:
    """Return a site's kilobytes of a whole training, up or down on average."""
    return _kilobytes(case) * float(case["summary"]["steps"])
