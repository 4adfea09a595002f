"""Says what a run has come to, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankdad.common.errors import counted
from rankdad.common.metrics.site_calibration import differing
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import shown
from rankdad.remote.results.coefficients import not_compared, opposite
from rankdad.remote.results.solving import solved
from rankdad.remote.results.table_one import outcome_names
from rankdad.remote.view import figures, size, times_fewer

MAX_SITES = 5  # that a line names
DIFFERING = {"in_the_large": "observed/expected", "slope": "calibration slope"}


def _study(metrics: dict[str, Any], spec: RunSpec) -> Iterator[str]:
    for name, interval in metrics["intervals"].items():
        label, low, high = shown(name), interval["low"], interval["high"]
        method = interval["method"].replace("over groups", f"over {spec.group_noun}s")
        yield f"         95 % interval of {label}: {low:.4f} to {high:.4f} ({method})"
    within, alone = metrics["within_sites"].get("auc"), metrics.get("site_alone", {}).get("auc")
    if within is not None and alone is not None:
        yield f"         AUC within sites {within:.4f} (weighted by their pairs), of the site alone {alone:.4f}"
    for one in metrics.get("calibration_by_site", []):
        named = outcome_names(spec)(one["outcome"])
        for name, values in differing(one).items():
            each = ", ".join(f"{site} {value:.2f}" for site, value in values.items())
            yield f"         calibration differs between sites: {DIFFERING[name]} of {named}: {each}"
    spreads = {"folds": metrics["folds"], "sites": metrics["sites"]}
    for over, by_metric in spreads.items():
        several = {name: spread for name, spread in by_metric.items() if spread["sd"] is not None}
        if several:
            words = (f"{shown(name)} {one['mean']:.4f} ± {one['sd']:.4f}" for name, one in several.items())
            yield f"         mean over {over}: {', '.join(words)}"


def _effects(coefficients: dict[str, Any], spec: RunSpec) -> Iterator[str]:
    for name, estimates in opposite(coefficients)[0].items():
        each = ", ".join(f"{site} {estimate:.2g}" for site, estimate in estimates.items())
        yield f"         effects are opposite between sites: {name}: {each}"
    none, lacking = not_compared(coefficients, spec.federation.sites)
    if none or lacking:
        where = [*none, *(f"{site} ({', '.join(names)})" for site, names in lacking.items())]
        yield f"         effects are not compared, for want of coefficients of its own rows: {', '.join(where)}"


def _best(summary: dict[str, Any], spec: RunSpec) -> str:
    """Say whose epochs these are, and which one's weights were kept, where samples were there to tell."""
    validation = summary["metrics"]["validation"]
    chosen = f", best epoch {summary['best_epoch']}" if validation and validation["samples"] else ""
    again = _not_run(summary) * spec.folds_per_repeat * (1 + len(spec.candidates))
    return f" in the last of {summary['folds'] - again} trainings{chosen}" if summary["folds"] > 1 else chosen


def _not_run(summary: dict[str, Any]) -> int:
    """Return how many repeats of the folds are equal to one before at every site."""
    known = summary.get("partitions")
    return known["repeats"] - known["run"] if known else 0


def _partitions(summary: dict[str, Any]) -> Iterator[str]:
    """Say how many of the repeats are different partitions of each site's samples."""
    known, again = summary.get("partitions"), _not_run(summary)
    if not known:
        return
    if again:
        yield f"repeats: {again} of {known['repeats']} are equal to one before at every site, and not run again"
    counts = sorted(known["sites"].items(), key=lambda one: int(one[1]))  # those of fewest first
    named = ", ".join(f"{site} {count}" for site, count in counts[:MAX_SITES]) + ", …" * (len(counts) > MAX_SITES)
    yield f"{' ' * 8 if again else 'repeats:'} different partitions of {known['repeats']}: {named}"


def _settings(model: dict[str, Any]) -> str:
    """Say which settings were chosen for a model, and by which metric."""
    candidates, metric = model["candidates"], shown(model["metric"])
    best = candidates[model["chosen"] - 1]
    rank = "" if best["rank"] is None else f"rank {best['rank']}, "
    reached = "–" if best["validation"] is None else f"{best['validation']:.4f}"
    settings = f"weight decay {best['weight_decay']:g}, {rank}{best['best_epoch']} epochs"
    return (
        f"{settings} for the {model['model']}, of {len(candidates)} candidates, by a validation {metric} of {reached}"
    )


def show_result(summary: dict[str, Any], directory: Path, spec: RunSpec) -> None:
    """Print a run's result in a few lines.

    Args:
        summary: of the run.
        directory: of the run.
        spec: of the run.
    """
    print("", *result_lines(summary, spec), f"output:  {directory} (rankdad predict {directory} DATA)", sep="\n")


def result_lines(summary: dict[str, Any], spec: RunSpec) -> Iterator[str]:
    """Return lines that say what a run has come to.

    Args:
        summary: of the run.
        spec: of the run.
    """
    test = summary["metrics"]["test"] or {}
    equal = len(set(summary["weights_sha256"].values())) == 1
    member = "member" if summary.get("regions") else "site"
    members = counted(len(summary["sites"]), member)
    exact = summary["solver"].get("name") == "exact"
    steps = (
        f"{summary['method']}, {members}, {counted(summary['steps'], 'step')}, {counted(summary['epochs'], 'epoch')}"
    )
    trained = f"{solved(summary['solver'])}, {members}" if exact else f"{steps}{_best(summary, spec)}"
    yield f"{trained}, {summary['seconds']:.1f} s"
    if test.get("samples"):
        known = {
            name: value for name, value in test.items() if name not in ("samples", "groups", "auc_error", "absent")
        }
        groups = f"{counted(test['groups'], spec.group_noun)}, " if "groups" in test else ""
        yield f"test:    {', '.join(figures(known, test['auc_error']))}, {groups}{counted(test['samples'], 'sample')}"
        yield from _study(summary["metrics"], spec)
        yield from _effects(summary["coefficients"], spec)
    yield from _partitions(summary)
    for model in summary.get("tuning", [])[-1:]:  # the one that is kept
        if model["chosen"]:
            yield f"chosen:  {_settings(model)}"
    if exact or "code" in summary["solver"]:
        yield f"solver:  {summary['solver']['name']}: {summary['solver']['why']}"
    if "warning" in summary["solver"]:
        yield f"warning: {summary['solver']['warning']}"
    if summary["undertrained"]:
        yield f"warning: {summary['undertrained']['warning']}"
    for warning, sites in summary["warnings"].items():
        named = ", ".join(sites[:MAX_SITES]) + ", …" * (len(sites) > MAX_SITES)
        yield f"warning: {warning.replace('-', ' ')}: {counted(len(sites), 'site')} ({named})"
    if summary["rows_dropped"]:
        rows, where = sum(summary["rows_dropped"].values()), len(summary["rows_dropped"])
        yield f"dropped: {counted(rows, 'row')} of data at {counted(where, 'site')}"
    if exact:
        yield from _weights(summary, equal)
        return
    up, down = summary["bytes_up_per_site_step"], summary["bytes_down_per_site_step"]
    ratio = summary["times_fewer_bytes_than_dense"] or 0.0
    yield f"traffic: {size(up)} up, {size(down)} down per {member} and step, {times_fewer(ratio)} than full gradients"
    for site, steps in summary["left_out"].items():
        late = summary.get("late", {}).get(site, 0)
        joined = f", {late} of its contributions joined a later one" if late else ""
        yield f"quorum:  {site} was left out of {steps} of {summary['steps']} steps{joined}"
    yield from _weights(summary, equal)


def _weights(summary: dict[str, Any], equal: bool) -> Iterator[str]:
    digest = next(iter(summary["weights_sha256"].values()), "")
    apart = "" if equal else f" by {summary['drift'] or 0:.0e} of their size"
    yield f"weights: {'equal at all sites' if equal else f'DIFFERENT between sites{apart}'}, sha256 {digest[:16]}…"
