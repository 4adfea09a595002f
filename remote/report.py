"""`rankdad report`: one page about a run, to keep and to print, made of what its directory holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from remote.page import facts, heading, image, page, paragraph, section
from remote.quality import epochs, quality, warned
from remote.reading import guide, number
from remote.results import Results, read_results
from remote.view import size

NO_FIGURES = "figures need matplotlib, which is not installed: pip install 'rankdad[plots]'"
CAPTIONS = {
    "loss_over_epochs": "Training and validation loss of all sites together, by epoch.",
    "loss_over_steps": "Training loss of all sites together, by optimizer step.",
    "auc_over_epochs": "Validation AUC by epoch.",
    "accuracy_over_epochs": "Validation accuracy by epoch.",
    "mae_over_epochs": "Validation mean absolute error by epoch.",
    "pearson_r_over_epochs": "Validation correlation by epoch.",
    "test_auc_by_site": "Test AUC of each site that has one, and of all samples together.",
    "test_accuracy_by_site": "Test accuracy of each site, and of all samples together.",
    "test_mae_by_site": "Test mean absolute error of each site, and of all samples together.",
    "test_pearson_r_by_site": "Test correlation within each site, and of all samples together.",
    "confusion": "Test samples by true and predicted value, coloured by their part of the true value's samples.",
    "calibration": "Test predictions by confidence in 15 equal bins: how often they are right, and how many they are.",
}
STATUS = {
    "completed": "The run is complete.",
    "failed": "The run failed.",
    "interrupted": "The run was interrupted.",
    "running": "The run is not over: when this page was made it was going on, or had been cut off.",
}
LISTED = 30  # entries of a list in the specification
PARTS = ("task", "model", "data", "preparation", "evaluation", "training", "method", "federation")
SENDS_INPUTS = ("dad", "edad", "top-rows")

Figures = Callable[[Results], dict[str, bytes]]


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
    parts = (_head, quality, warned, _ending, _pictures, _what, _traffic, _reading, _privacy, _versions)
    return page(run.spec.name, (part(run) for part in parts))


def _head(run: Results) -> str:
    summary = run.summary
    said = STATUS.get(summary.status, f"The run's status is {summary.status}.")
    said += f" Reason: {summary.reason}" if summary.reason else ""
    sites, steps = len(run.spec.federation.sites), summary.steps
    tested, folds, most = run.spec.tested_folds, run.spec.folds, _count(run.spec.training.epochs, "epoch")
    trained = _count(summary.epochs, "epoch") if folds == 1 else f"{_count(tested, 'fold')} of at most {most}"
    trained += ", then all samples once more" if folds > tested else ""
    counts = f"{_count(sites, 'site')}, {trained}, {_count(steps, 'step')}, {_time(summary.seconds)}"
    mood = "good" if summary.status == "completed" else "bad"
    problems = [paragraph(f"{name}: {problem}", "bad") for name, problem in summary.problems.items()]
    return "\n".join([heading(run.spec.name), paragraph(said, mood), *problems, paragraph(counts)])


def _ending(run: Results) -> str:
    summary = run.summary
    left = [f"{site} ({count} of {_count(summary.steps, 'step')})" for site, count in summary.left_out.items()]
    resets = [f"{reset.site} (in round {reset.round})" for reset in summary.resets]
    drift = f"{summary.drift or 0:.1g} of the weights' size (at most {run.spec.federation.drift:g} is tolerated)"
    return section(
        "How it ended",
        facts(
            {
                "status": summary.status,
                "reason": summary.reason or "–",
                "model": epochs(run) if summary.epochs else "–",
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
    pictures = draw(run)
    parts = [image(png, CAPTIONS.get(name, name)) for name, png in pictures.items()]
    return section("Figures", *(parts or [paragraph("There is nothing to draw yet.")]))


def _what(run: Results) -> str:
    spec, plan = run.spec, run.plan
    parts = {name: getattr(spec, name) for name in PARTS}
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
    if isinstance(value, list) and len(value) > LISTED:
        return f"{json.dumps(value[:LISTED], ensure_ascii=False)[:-1]}, … ({len(value)} in all)]"
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
                "against full gradients": f"{number(ratio, 1)} times fewer bytes, both ways together",
                "all steps, all sites": f"{size(steps['bytes_up'].sum())} up, {size(steps['bytes_down'].sum())} down",
                "the whole run": _time(summary.seconds),
                "a step": f"{summary.seconds_per_step:.3f} s on average, {number(steps['seconds'].median())} s "
                f"in the median, of which the aggregator {number(steps['aggregation_seconds'].median())} s",
            }
        ),
    )


def _reading(run: Results) -> str:
    return section("How to read this", *map(paragraph, guide(run)))


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


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.1f} min" if minutes < 120 else f"{hours:.1f} h"
