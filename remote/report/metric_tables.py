"""Tables of test metrics: pooled, by site, and by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rankdad.common.metrics.sites import Spread
from rankdad.common.metrics.summary import bound
from rankdad.common.spec import LeaveOneSiteOut
from rankdad.common.spec.tasks import Classification, decimals, measured
from rankdad.remote.report.words import NAMES, NONE, between, number, percent, significant, span
from rankdad.remote.results.run_results import (
    BASELINE,
    LABEL_CELLS,
    RANKED,
    RunResults,
    class_names,
    finite,
    metrics_by_site,
)


@dataclass(frozen=True)
class NumberTable:
    """A table whose rows begin with their name.

    Args:
        head: column names.
        rows: cells, one for each column.
        groups: names above the head, each with its number of columns.
        ids: anchors of the rows for links, or none.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    groups: Sequence[tuple[str, int]] = ()
    ids: Sequence[str] = ()

    @property
    def labels(self) -> list[str]:
        """Column names with the group's name prefixed."""
        above = [name for name, width in self.groups for _ in range(width)] or [""] * len(self.head)
        return [f"{group} {name}".strip() for group, name in zip(above, self.head, strict=True)]


def metrics_table(run: RunResults) -> NumberTable:
    """Build a row for every metric: pooled with interval, and its spread over folds and sites."""
    metrics, test = run.summary.metrics, run.test
    baseline, within = finite(metrics.baseline), finite(metrics.within_sites)
    alone = finite(metrics.site_alone)
    unseen = isinstance(run.spec.evaluation, LeaveOneSiteOut)
    rows = []
    for name in run.spec.task.metrics:
        digits, interval = decimals(name, test.get(name)), metrics.intervals.get(name)
        sites, folds = metrics.sites.get(name, Spread()), metrics.folds.get(name, Spread())
        having = f"{sites.count} of {sites.count + sites.missing}"
        row = {
            "": NAMES[name],
            "all rows": number(test.get(name), digits),
            "95 % interval": between(interval.low, interval.high, digits) if interval else NONE,
            "folds: mean ± SD": _spread(folds, digits) if run.spec.tested_folds > 1 and not unseen else "–",
            "hospitals: mean ± SD": _spread(sites, digits),
            "hospitals with it": having if sites.count + sites.missing else "–",
            "within hospitals": number(within.get(name), digits),
            "hospital alone": number(alone.get(name), digits),
            "guess without hospital" if unseen else "hospital-only guess": number(
                None if name in alone else baseline.get(name), digits
            ),
        }
        rows.append(row)
    head = [column for column in rows[0] if {row[column] for row in rows} != {"–"}]
    return NumberTable(head, [[row[column] for column in head] for row in rows])


def site_table(run: RunResults, rows: Mapping[str, Mapping[str, float]]) -> NumberTable:
    """Build a row for every site, with the model's and the baseline's metrics.

    Args:
        run: the run.
        rows: metrics by site; `pooled` is all sites together.
    """
    names = [name for name in measured(run.spec.task) if any(name in row for row in rows.values())]
    absent = any(row.get("absent") for row in rows.values())
    head = ["hospital", "rows", *(["classes without AUC"] if absent else [])]
    groups, columns = [("", len(head))], []
    for name in names:
        both = name not in RANKED and any(BASELINE + name in row for row in rows.values())
        digits = decimals(name, median(row[name] for row in rows.values() if name in row))
        columns += [(key, digits) for key in ([name, BASELINE + name] if both else [name])]
        weighted = name == "auc" and any("auc_weight" in row for row in rows.values())
        columns += [("auc_weight", 3)] * weighted
        groups.append((NAMES[name], 1 + both + weighted))
        head += ["model", *["guess"] * both, *["weight"] * weighted]
    cells = [
        ["all hospitals together" if site == "pooled" else site, number(row.get("samples"), 0)]
        + ([number(row.get("absent"), 0)] if absent else [])
        + [number(row.get(name), digits) for name, digits in columns]
        for site, row in rows.items()
    ]
    return NumberTable(head, cells, groups)


def threshold_table(one: Mapping[str, Any]) -> NumberTable:
    """Build a row for each named threshold: share called positive, sensitivity, specificity, PPV, NPV."""
    names = ["flagged", "sensitivity", "specificity", "ppv", "npv"]
    rows = [
        [row["name"], percent(row["risk"], 1), *(_within(row[name]) for name in names)] for row in one["thresholds"]
    ]
    head = ["threshold", "risk from", "called positive", "sensitivity", "specificity", "PPV", "NPV"]
    return NumberTable(head, rows)


def risk_table(run: RunResults) -> NumberTable:
    """Build a row for every outcome: events, discrimination and calibration."""
    rows, metrics = [], run.summary.metrics
    for name, one in run.outcomes.items():
        found, interval = one["recalibration"], one["auc_interval"]
        cells = [number(one["auc"]) + (f" ({between(*interval)})" if interval else "")]
        smooth = metrics.smooth_scores  # binning is then the smaller error
        cells += [_bounded(one["average_precision"], one["average_precision_error"])]
        cells += [f"{number(one['brier'])} ({number(one['brier_of_prevalence'])})"]
        cells += [_estimate(found.get(key), smooth) for key in ("slope", "intercept", "in_the_large")]
        rows.append([name, f"{one['events']:,} of {one['samples']:,}", *cells])
    head = ["outcome", "events", "AUC", "average precision", "Brier score (of the base rate)", "calibration slope"]
    head += ["intercept", "intercept at slope 1"]
    if len(rows) == 1:  # one outcome reads better transposed
        figures = dict(zip(head[1:], rows[0][1:], strict=True))
        beside = {
            "AUC within hospitals": metrics.within_sites,
            "AUC of a guess that knows only the hospital": metrics.site_alone,
        }
        figures |= {label: number(found["auc"]) for label, found in beside.items() if "auc" in found}
        order = sorted(figures, key=lambda label: label not in ("events", "AUC", *beside))
        return NumberTable(["", rows[0][0]], [[label, figures[label]] for label in order])
    return NumberTable(head, rows)


def agreement_table(found: Mapping[str, Any]) -> NumberTable:
    """Build a table of the differences between predicted and true numbers."""
    low, high = found["mean_interval"]
    rows = [
        ["mean difference", f"{significant(found['mean'])} ({span(low, high, significant)})"],
        ["SD of differences", significant(found["sd"])],
        ["slope of difference on mean", significant(found["slope"])],
    ]
    if middle := found.get("middle"):
        between_ends = f"{percent(middle['share'])} of residuals lie"
        rows.append([between_ends, span(middle["low"], middle["high"], significant)])
    for share, (low, high) in found["quantiles"].items():
        rows.append([f"{percent(float(share))} of residuals are below", span(low, high, significant)])
    return NumberTable(["prediction − label", "value"], rows)


def estimate(one: Mapping[str, float] | None) -> str:
    """Format an estimate with its interval to two decimals."""
    return NONE if one is None else f"{number(one['value'], 2)} ({between(one['low'], one['high'], 2)})"


def _within(share: Mapping[str, float] | None) -> str:
    return (
        NONE if share is None else f"{percent(share['value'])} ({100 * share['low']:.0f} to {100 * share['high']:.0f})"
    )


def _bounded(value: float | None, error: float | None) -> str:
    return number(value) + (f" ± {bound(error)}" if error else "")


def _estimate(one: Mapping[str, Any] | None, smooth: bool) -> str:
    error = one["error"] if one and not smooth else 0.0
    return estimate(one) + (f", ± {bound(error)}" if error >= 0.005 else "")


def last_validation(run: RunResults) -> tuple[str, NumberTable] | None:
    """Return the name of the last validated epoch and its metrics by site; None if no sample was validated."""
    rows = run.metrics[run.metrics["split"] == "validation"]
    if rows.empty:
        return None
    last = rows.iloc[-1]
    of_site = metrics_by_site(rows[(rows["epoch"] == last["epoch"]) & (rows["fold"] == last["fold"])])
    if not any(row.get("samples") for row in of_site.values()):
        return None
    fold = f" of fold {last['fold'] + 1:.0f}" if run.spec.folds > 1 else ""
    return f"epoch {last['epoch']:.0f}{fold}", site_table(run, of_site)


def confusion_table(run: RunResults) -> NumberTable | None:
    """Build the confusion matrix, or hits and misses by label; None if nothing was counted."""
    counts, names = run.confusion, class_names(run.spec)
    if not counts:
        return None
    named = list(zip(names, counts, run.recalls.values(), strict=True))
    cells = [[name, *(f"{count:,}" for count in row), number(recall)] for name, row, recall in named]
    if isinstance(run.spec.task, Classification):
        return NumberTable(["true class", *names, "recall"], cells)
    for row, (_, (negative, false_positive, _, _), _) in zip(cells, named, strict=True):
        tested = negative + false_positive
        row.append(number(negative / tested if tested else None))
    return NumberTable(["label", *LABEL_CELLS, "sensitivity", "specificity"], cells)


def _spread(spread: Spread, digits: int) -> str:
    return number(spread.mean, digits) + (f" ± {number(spread.sd, digits)}" if spread.sd else "")
