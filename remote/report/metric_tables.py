"""Tables of test metrics as a paper prints them: over all samples, by site, and the confusion of classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rankdad.common.metrics import Spread
from rankdad.common.spec import LeaveOneSiteOut
from rankdad.common.tasks import Classification
from rankdad.remote.report.narrative import NAMES, number
from rankdad.remote.report.run_results import BASELINE, LABEL_CELLS, RANKED, RunResults, class_names, finite, rows_of


@dataclass(frozen=True)
class NumberTable:
    """A table whose rows begin with their name.

    Args:
        head: a name for every column.
        rows: a cell for every column.
        groups: names above the head, each with the number of columns below it.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    groups: Sequence[tuple[str, int]] = ()


def metrics_table(run: RunResults) -> NumberTable:
    """Return a row for every metric: over all samples, its interval, and its spread over folds and sites."""
    metrics, test = run.summary.metrics, run.test
    baseline, within = finite(metrics.baseline), finite(metrics.within_sites)
    unseen = isinstance(run.spec.evaluation, LeaveOneSiteOut)
    rows = []
    for name in run.spec.task.metrics:
        digits, interval = _digits(name, test.get(name, 0.0)), metrics.intervals.get(name)
        sites, folds = metrics.sites.get(name, Spread()), metrics.folds.get(name, Spread())
        having = f"{sites.count} of {sites.count + sites.missing}"
        row = {
            "": NAMES[name],
            "all samples": number(test.get(name), digits),
            "95 % interval": f"{number(interval.low, digits)} to {number(interval.high, digits)}" if interval else "–",
            "folds: mean ± SD": _spread(folds, digits) if run.spec.tested_folds > 1 and not unseen else "–",
            "sites: mean ± SD": _spread(sites, digits),
            "sites with it": having if sites.count + sites.missing else "–",
            "within sites": number(within.get(name), digits),
            "guess without site" if unseen else "site-only guess": number(baseline.get(name), digits),
        }
        rows.append(row)
    head = [column for column in rows[0] if {row[column] for row in rows} != {"–"}]
    return NumberTable(head, [[row[column] for column in head] for row in rows])


def site_table(run: RunResults, rows: Mapping[str, Mapping[str, float]]) -> NumberTable:
    """Return a row for every site, with the baseline's metrics beside the model's.

    Args:
        run: the rows are of.
        rows: metrics by site; `pooled` is all sites together.
    """
    names = [name for name in run.spec.task.metrics if any(name in row for row in rows.values())]
    absent = any(row.get("absent") for row in rows.values())
    head = ["site", "samples", *(["classes without AUC"] if absent else [])]
    groups, columns = [("", len(head))], []
    for name in names:
        both = name not in RANKED and any(BASELINE + name in row for row in rows.values())
        digits = _digits(name, median(row[name] for row in rows.values() if name in row))
        columns += [(key, digits) for key in ([name, BASELINE + name] if both else [name])]
        groups.append((NAMES[name], 1 + both))
        head += ["model", "guess"] if both else ["model"]
    cells = [
        ["all sites together" if site == "pooled" else site, number(row.get("samples"), 0)]
        + ([number(row.get("absent"), 0)] if absent else [])
        + [number(row.get(name), digits) for name, digits in columns]
        for site, row in rows.items()
    ]
    return NumberTable(head, cells, groups)


def last_validation(run: RunResults) -> tuple[str, NumberTable] | None:
    """Return when the sites were last validated, in words, and their metrics; None where no sample was validated."""
    rows = run.metrics[run.metrics["split"] == "validation"]
    if rows.empty:
        return None
    last = rows.iloc[-1]
    of_site = rows_of(rows[(rows["epoch"] == last["epoch"]) & (rows["fold"] == last["fold"])])
    if not any(row.get("samples") for row in of_site.values()):
        return None
    fold = f" of fold {last['fold'] + 1:.0f}" if run.spec.folds > 1 else ""
    return f"epoch {last['epoch'] + 1:.0f}{fold}", site_table(run, of_site)


def confusion_table(run: RunResults) -> NumberTable | None:
    """Return counts by true and predicted class, or hits and misses by label; None where nothing was counted."""
    counts, names = run.confusion, class_names(run.spec)
    if not counts:
        return None
    rows = []
    if isinstance(run.spec.task, Classification):
        for place, (name, row) in enumerate(zip(names, counts, strict=True)):
            rows.append([name, *(f"{count:,}" for count in row), _share(row[place], sum(row))])
        return NumberTable(["true class", *names, "recall"], rows)
    for name, row in zip(names, counts, strict=True):
        negative, false_positive, false_negative, positive = row
        shares = _share(positive, positive + false_negative), _share(negative, negative + false_positive)
        rows.append([name, *(f"{count:,}" for count in row), *shares])
    return NumberTable(["label", *LABEL_CELLS, "sensitivity", "specificity"], rows)


def _spread(spread: Spread, digits: int) -> str:
    return number(spread.mean, digits) + (f" ± {number(spread.sd, digits)}" if spread.sd else "")


def _digits(name: str, value: float) -> int:
    """Return decimals: three, or for a small number without bounds as many as show three digits of it."""
    return 2 - math.floor(math.log10(abs(value))) if name in ("loss", "mae") and 1e-30 < abs(value) < 0.1 else 3


def _share(count: int, whole: int) -> str:
    return number(count / whole if whole else None)
