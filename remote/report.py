"""`rankdad report`: one page about a run, to keep and to print, made of what its directory holds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from remote.page import facts, heading, image, page, paragraph, section, table
from remote.results import Results, metric_rows, read_results, rows_of
from remote.view import size

NO_FIGURES = "figures need matplotlib, which is not installed: pip install 'rankdad[plots]'"
HEADS = {"auc": "AUC", "auc_error": "AUC's largest error"}
DIGITS = {"samples": ".0f", "auc": ".5f", "auc_error": ".2g"}
CAPTIONS = {
    "loss_over_epochs": "Training and validation loss of all sites together, by epoch.",
    "loss_over_steps": "Training loss of all sites together, by optimizer step.",
    "auc_over_epochs": "Validation AUC by epoch.",
    "accuracy_over_epochs": "Validation accuracy by epoch.",
    "test_auc_by_site": "Test AUC of each site, and of all sites' samples together.",
    "test_accuracy_by_site": "Test accuracy of each site, and of all sites' samples together.",
}
STATUS = {
    "completed": "The run is complete.",
    "failed": "The run failed.",
    "interrupted": "The run was interrupted.",
    "running": "The run is not over: when this page was made it was going on, or had been cut off.",
}
SENDS_INPUTS = ("dad", "edad", "top-rows")

Figures = Callable[[pd.DataFrame, pd.DataFrame, Mapping[str, Any]], dict[str, bytes]]


def drawer() -> Figures | None:
    """Return what draws the figures, or None where matplotlib is missing."""
    try:
        from remote.figures import figures
    except ImportError:
        return None
    return figures


def report(directory: Path) -> str:
    """Return a page about a run, however it ended, as HTML that needs no other file.

    Args:
        directory: of the run.

    Raises:
        UserError: it holds no run, or a file in it cannot be read.
    """
    run = read_results(directory)
    parts = (_head, _quality, _ending, _pictures, _what, _traffic, _reading, _privacy, _versions)
    return page(run.spec.name, (part(run) for part in parts))


def _head(run: Results) -> str:
    summary = run.summary
    said = STATUS.get(summary.status, f"The run's status is {summary.status}.")
    said += f" Reason: {summary.reason}" if summary.reason else ""
    sites, epochs, steps = len(run.spec.federation.sites), summary.epochs, summary.steps
    counts = f"{_count(sites, 'site')}, {_count(epochs, 'epoch')}, {_count(steps, 'step')}, {_time(summary.seconds)}"
    mood = "good" if summary.status == "completed" else "bad"
    return "\n".join([heading(run.spec.name), paragraph(said, mood), paragraph(counts)])


def _quality(run: Results) -> str:
    pooled, sites = metric_rows(run.metrics)
    if pooled or sites:
        said = f"On samples set aside from training, by the model of the best epoch, {run.summary.best_epoch + 1}."
        return section("Test", paragraph(said), _metrics({"pooled": pooled, **sites}))
    validation = run.metrics[run.metrics["split"] == "validation"]
    if validation.empty:
        return section("Test", paragraph("There are no results yet: no epoch is complete."))
    last = validation["epoch"].max()
    said = f"There is no test yet, for it ends a run. This is the validation after epoch {last + 1:.0f}."
    return section("Validation", paragraph(said), _metrics(rows_of(validation[validation["epoch"] == last])))


def _metrics(rows: Mapping[str, Mapping[str, float]]) -> str:
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    head = ["", *(HEADS.get(name, name) for name in names)]
    return table(
        head,
        [
            ["all sites together" if site == "pooled" else site]
            + [_number(row.get(name), DIGITS.get(name, ".4f")) for name in names]
            for site, row in rows.items()
        ],
    )


def _ending(run: Results) -> str:
    summary = run.summary
    best = f"{summary.best_epoch + 1} of {summary.epochs}, by validation {run.spec.monitor}"
    left = [f"{site} ({count} of {_count(summary.steps, 'step')})" for site, count in summary.left_out.items()]
    resets = [f"{reset.site} (in round {reset.round})" for reset in summary.resets]
    drift = f"{_number(summary.drift, '.1g')} of the weights' size (at most {run.spec.federation.drift:g} is tolerated)"
    return section(
        "How it ended",
        facts(
            {
                "status": summary.status,
                "reason": summary.reason or "–",
                "best epoch": best if summary.epochs else "–",
                "sites left out of steps": ", ".join(left) or "none",
                "sites that lost their state": ", ".join(resets) or "none",
                "largest drift between sites": "–" if summary.drift is None else drift,
                "final weights": _weights(run),
            }
        ),
    )


def _weights(run: Results) -> str:
    digests, own = run.summary.weights_sha256, run.summary.aggregator_sha256
    if not digests:
        return "–"
    if len(set(digests.values())) > 1:
        each = ", ".join(f"{site} {digest[:16]}…" for site, digest in digests.items())
        return f"DIFFERENT between sites, sha256: {each}"
    digest = next(iter(digests.values()))
    silent = [site for site in run.spec.federation.sites if site not in digests]
    said = f"equal at all sites but {', '.join(silent)}, of which nothing is known" if silent else "equal at all sites"
    if own:
        said += " and at the aggregator" if own == digest else f", DIFFERENT at the aggregator ({own[:16]}…)"
    return f"{said}, sha256 {digest}"


def _pictures(run: Results) -> str:
    draw = drawer()
    if draw is None:
        return section("Figures", paragraph(f"This page has none: {NO_FIGURES}"))
    pictures = draw(run.metrics, run.steps, run.summary.model_dump())
    parts = [image(png, CAPTIONS.get(name, name)) for name, png in pictures.items()]
    return section("Figures", *(parts or [paragraph("There is nothing to draw yet.")]))


def _what(run: Results) -> str:
    spec, plan = run.spec, run.plan
    parts = {name: getattr(spec, name) for name in ("task", "model", "data", "training", "method", "federation")}
    said = {"name": spec.name, "sites": ", ".join(spec.federation.sites), "seed": str(spec.seed)}
    for name, part in parts.items():
        document = part.model_dump(mode="json", exclude={"sites"}, exclude_none=True)
        said[name] = "; ".join(
            _plain(value) if key == "name" else f"{key} {_plain(value)}" for key, value in document.items()
        )
    said["trained parameters"] = f"{run.summary.dense_bytes // 4:,}" if run.summary.dense_bytes else "–"
    said["sha256 of the specification"] = spec.sha256()
    said["sha256 of the first weights"] = plan.weights_sha256 or "–"
    said |= {"mind": " ".join(plan.warnings)} if plan.warnings else {}
    return section("What was run", facts(said))


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _traffic(run: Results) -> str:
    summary, steps = run.summary, run.steps
    if not summary.steps:
        return section("Traffic and time", paragraph("No step is complete yet."))
    dense, ratio = size(summary.dense_bytes), summary.times_fewer_bytes_than_dense
    return section(
        "Traffic and time",
        facts(
            {
                "up, per site and step": f"{size(summary.bytes_up_per_site_step)}; a full gradient is {dense}",
                "down, per site and step": f"{size(summary.bytes_down_per_site_step)}; a full gradient is {dense}",
                "against full gradients": f"{_number(ratio, '.1f')} times fewer bytes, both ways together",
                "all steps, all sites": f"{size(steps['bytes_up'].sum())} up, {size(steps['bytes_down'].sum())} down",
                "the whole run": _time(summary.seconds),
                "a step": f"{summary.seconds_per_step:.3f} s on average, {_number(steps['seconds'].median(), '.3f')} s "
                f"in the median, of which the aggregator {_number(steps['aggregation_seconds'].median(), '.3f')} s",
            }
        ),
    )


def _reading(run: Results) -> str:
    pooled, sites = metric_rows(run.metrics)
    said = [
        "All sites together means all their samples as if they lay in one place; yet no site sent a sample, a score or "
        "a label. Loss is the mean cross-entropy in nats, accuracy the proportion of samples whose class was right, "
        "AUC the chance that a sample of a class gets a higher score for it than another, averaged over classes.",
        "The AUC comes from histograms of scores, not from the scores themselves. It differs from the exact one by at "
        "most the largest error beside it" + (f", here {pooled['auc_error']:.2g}." if "auc_error" in pooled else "."),
    ]
    counted = {site: row["samples"] for site, row in sites.items() if row.get("samples")}
    few = "Figures of single sites are uncertain where samples are few, and say little about differences between sites."
    if counted:
        least = min(counted, key=lambda site: counted[site])
        few += (
            f" The fewest test samples, {counted[least]:.0f}, are those of {least}: chance alone moves an accuracy "
            f"there by up to about ± {1 / math.sqrt(counted[least]):.2f} (twice the largest standard error)."
        )
    best = (
        "The best epoch is chosen on validation samples, so their metrics look a little better than those of the test."
    )
    return section("How to read this", *map(paragraph, [*said, few, best, "– stands for what was not measured."]))


def _privacy(run: Results) -> str:
    said = [
        "A low rank is not privacy. What a site sends says as much about its data as the gradient that it comes from, "
        "and attacks recover training samples from gradients of small batches. A low rank saves bytes, and no more.",
        "This page names sites, and tells how many samples they have and how well the model does there: mind who sees "
        "it.",
    ]
    if run.spec.method.name in SENDS_INPUTS:
        said.insert(1, f"The method of this run, {run.spec.method.name}, sends raw inputs of the first layer.")
    if len(run.spec.federation.sites) == 2:
        said.insert(1, "There are two sites: each can subtract its own part from what comes back, and has the other's.")
    return section("What a low rank does not promise", *map(paragraph, said))


def _versions(run: Results) -> str:
    return section("Versions and machine of the aggregator", facts({**run.summary.versions, **run.summary.machine}))


def _number(value: float | None, digits: str) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:{digits}}"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.1f} min" if minutes < 120 else f"{hours:.1f} h"
