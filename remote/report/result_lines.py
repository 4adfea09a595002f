"""A run's result in a few lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rankdad.common.errors import counted
from rankdad.common.metrics.site_calibration import differing
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import decimals, shown
from rankdad.remote.report.words import span, warned
from rankdad.remote.results.coefficients import opposite_coefficients, uncompared_sites
from rankdad.remote.results.run_summary import RunMetrics, RunSummary, TunedModel
from rankdad.remote.results.solving import solved
from rankdad.remote.results.table_one import outcome_names
from rankdad.remote.view import compared, figures, size

MAX_SITES = 5  # named in a line
DIFFERING = {"in_the_large": "observed/expected", "slope": "calibration slope"}


def _study(metrics: RunMetrics, spec: RunSpec) -> Iterator[str]:
    for name, interval in metrics.intervals.items():
        method = interval.method.replace("over groups", f"over {spec.group_noun}s")
        ends = span(interval.low, interval.high, partial(_figure, name))
        yield f"         95 % interval of {shown(name)}: {ends} ({method})"
    within, alone = metrics.within_sites.get("auc"), metrics.site_alone.get("auc")
    if within is not None and alone is not None:
        guess = f"of a guess that knows only the site {alone:.4f}"
        yield f"         AUC within sites {within:.4f} (weighted by their pairs), {guess}"
    for one in metrics.calibration_by_site:
        named = outcome_names(spec)(one["outcome"])
        for name, values in differing(one).items():
            each = ", ".join(f"{site} {value:.2f}" for site, value in values.items())
            yield f"         calibration differs between sites: {DIFFERING[name]} of {named}: {each}"
    for over, spreads in (("folds", metrics.folds), ("sites", metrics.sites)):
        several = [
            f"{shown(name)} {_figure(name, one.mean)} ± {_figure(name, one.sd)}"
            for name, one in spreads.items()
            if one.mean is not None and one.sd is not None
        ]
        if several:
            yield f"         mean over {over}: {', '.join(several)}"


def _figure(name: str, value: float) -> str:
    return f"{value:.{decimals(name, value, 4)}f}"


def _errors(coefficients: dict[str, Any]) -> Iterator[str]:
    if (fit := coefficients.get("pooled")) and fit["why"]:
        yield f"warning: the coefficients have no standard errors: {fit['why']} ({fit['problem']})"


def _effects(coefficients: dict[str, Any], spec: RunSpec) -> Iterator[str]:
    for name, estimates in opposite_coefficients(coefficients)[0].items():
        each = ", ".join(f"{site} {estimate:.2g}" for site, estimate in estimates.items())
        yield f"         effects are opposite between sites: {name}: {each}"
    none, lacking = uncompared_sites(coefficients, spec.federation.sites)
    if none or lacking:
        where = [*none, *(f"{site} ({', '.join(names)})" for site, names in lacking.items())]
        yield f"         effects are not compared, without coefficients of its own: {', '.join(where)}"


def _best(summary: RunSummary, spec: RunSpec) -> str:
    """Name the training that the epochs belong to, and the best epoch if there was validation."""
    validated = (summary.metrics.validation or {}).get("samples")
    chosen = f", best epoch {summary.best_epoch}" if validated else ""
    again = summary.repeats_left_out * spec.folds_per_repeat * (1 + len(spec.candidates))
    return f" in the last of {summary.folds - again} trainings{chosen}" if summary.folds > 1 else chosen


def _partitions(summary: RunSummary) -> Iterator[str]:
    """Describe how many repeats are different partitions of each site's samples."""
    known, again = summary.partitions, summary.repeats_left_out
    if not known:
        return
    if again:
        yield f"repeats: {again} of {known['repeats']} equal an earlier one at every site and are skipped"
    counts = sorted(known["sites"].items(), key=lambda one: int(one[1]))
    named = _some([f"{site} {count}" for site, count in counts])
    yield f"{' ' * 8 if again else 'repeats:'} different partitions of {known['repeats']}: {named}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_SITES]) + ", …" * (len(names) > MAX_SITES)


def _settings(model: TunedModel, chosen: int) -> str:
    """Describe a model's chosen settings and their validation metric."""
    best = model.candidates[chosen - 1]
    rank = "" if best.rank is None else f"rank {best.rank}, "
    reached = "–" if best.validation is None else f"{best.validation:.4f}"
    settings = f"weight decay {best.weight_decay:g}, {rank}{best.best_epoch} epochs"
    tried = f"of {len(model.candidates)} candidates, by a validation {shown(model.metric)} of {reached}"
    return f"{settings} for the {model.model}, {tried}"


def show_result(document: dict[str, Any], directory: Path, spec: RunSpec) -> None:
    """Print a run's result.

    Args:
        document: content of `summary.json`.
        directory: the run's directory.
        spec: the run's specification.
    """
    print("", *result_lines(document, spec), f"output:  {directory} (rankdad predict {directory} DATA)", sep="\n")


def result_lines(document: dict[str, Any], spec: RunSpec) -> Iterator[str]:
    """Yield the lines of a run's result.

    Args:
        document: content of `summary.json`.
        spec: the run's specification.
    """
    summary = RunSummary.model_validate(document)
    test, solver = summary.metrics.test or {}, summary.solver
    trained = f"{solved(solver)}, {summary.members}"
    if not summary.exact:
        steps, epochs = counted(summary.steps, "step"), counted(summary.epochs, "epoch")
        trained = f"{summary.method}, {summary.members}, {steps}, {epochs}{_best(summary, spec)}"
    yield f"{trained}, {summary.seconds:.1f} s"
    if samples := test.get("samples"):
        known = {name: test[name] for name in test if name not in ("samples", "groups", "auc_error", "absent")}
        groups = f"{counted(int(test['groups'] or 0), spec.group_noun)}, " if "groups" in test else ""
        yield f"test:    {', '.join(figures(known, test['auc_error']))}, {groups}{counted(int(samples), 'sample')}"
        yield from _study(summary.metrics, spec)
        yield from _errors(summary.coefficients)
        yield from _effects(summary.coefficients, spec)
    yield from _partitions(summary)
    for model in summary.tuning[-1:]:  # the final model
        if model.chosen:
            yield f"chosen:  {_settings(model, model.chosen)}"
    if summary.exact or "code" in solver:
        yield f"solver:  {solver['name']}: {solver['why']}"
    yield from (f"warning: {about['warning']}" for about in (solver, summary.undertrained) if "warning" in about)
    for warning, sites in summary.warnings.items():
        yield f"warning: {warned(warning, sites, MAX_SITES)}"
    if dropped := summary.rows_dropped:
        yield f"dropped: {counted(sum(dropped.values()), 'row')} of data at {counted(len(dropped), 'site')}"
    if not summary.exact:
        yield from _traffic(summary)
    digest, equal = next(iter(summary.weights_sha256.values()), ""), len(set(summary.weights_sha256.values())) == 1
    same = "equal at all sites" if equal else f"DIFFERENT between sites by {summary.drift or 0:.0e} of their size"
    yield f"weights: {same}, sha256 {digest[:16]}…"


def _traffic(summary: RunSummary) -> Iterator[str]:
    up, down = size(summary.bytes_up_per_site_step), size(summary.bytes_down_per_site_step)
    fewer = compared(summary)
    sent = f"traffic: {up} up, {down} down per {summary.member} and step"
    alone = f"a full gradient of {size(summary.dense_bytes)}, and the message around it"
    yield f"{sent}, {fewer} than full gradients" if fewer else f"{sent}: {alone}"
    for site, steps in summary.left_out.items():
        late = summary.late.get(site, 0)
        joined = f", {late} of its contributions joined a later one" if late else ""
        yield f"quorum:  {site} was left out of {steps} of {summary.steps} steps{joined}"
