"""Compare methods by the tables: paired differences, times to a target, ratios and growth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from benchmarks.paper.compared_methods import METHODS
from benchmarks.paper.panels import Panel

# A singular value of this part of the largest counts into an effective rank: it has 4 % of its energy. With less than
# that nearly all of ten values count for long, and their number says little.
THRESHOLD = 0.2
ENDS = 0.1  # part of the epochs that is the beginning, and the end
CRUDE = "top-rows"  # the paper's baseline, whose last AUC the others are to reach
REFERENCES = ("dsgd", "dsgd-per-tensor")  # denominators of times

Tables = Mapping[str, pd.DataFrame]


def filled(tables: Tables) -> dict[str, pd.DataFrame]:
    """Return the tables that have rows."""
    return {name: table for name, table in tables.items() if len(table)}


@dataclass(frozen=True)
class Difference:
    """The AUC of one method minus that of another, over pairs of the same fold and site.

    Args:
        mean: of all pairs.
        error: standard error of the mean, of pairs or of folds' means, whichever is larger: the sites of a fold test
            the same weights, so they are not independent.
        folds: how many are in.
        epoch: at which both were tested.
    """

    mean: float
    error: float
    folds: int
    epoch: int


def panels_of(table: pd.DataFrame, panels: Mapping[str, Panel]) -> list[Panel]:
    """Return the panels that a table has rows of, in their own order."""
    there = set(table["panel"])
    return [panel for key, panel in panels.items() if key in there]


def methods_of(table: pd.DataFrame) -> list[str]:
    """Return the methods that a table has rows of, in the order of `METHODS`."""
    there = set(table["method"])
    return [key for key in METHODS if key in there]


def differences(curves: pd.DataFrame, panel: str, one: str, other: str) -> list[Difference]:
    """Return the difference of two methods' AUC at every epoch that both were tested at, in order.

    Args:
        curves: with columns panel, method, fold, epoch, site and auc.
        panel: key of the panel.
        one: key of the method.
        other: key of the method that is subtracted.
    """
    rows = curves[(curves["panel"] == panel) & curves["method"].isin([one, other])]
    wide = rows.pivot_table(index=["epoch", "fold", "site"], columns="method", values="auc", aggfunc="last")
    if not {one, other} <= set(wide.columns):
        return []
    above = (wide[one] - wide[other]).dropna()
    return [_difference(part, int(str(epoch))) for epoch, part in above.groupby("epoch")]


def _difference(pairs: pd.Series[float], epoch: int) -> Difference:
    folds = pairs.groupby("fold").mean()
    errors = [float(values.std() / math.sqrt(len(values))) for values in (pairs, folds) if len(values) > 1]
    return Difference(float(pairs.mean()), max(errors, default=0.0), len(folds), epoch)


def ends(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the last epoch of every panel, method and fold, with bytes per step as `bytes`, both ways."""
    last = curves.groupby(["panel", "method", "fold"])["epoch"].transform("max")
    rows = curves[curves["epoch"] == last]
    return rows.assign(bytes=(rows["bytes_up"] + rows["bytes_down"]) / rows["step"])


def threshold_of(spectra: pd.DataFrame) -> float:
    """Return the smallest counted singular value relative to the largest; 0 for the authors' code."""
    return 0.0 if {METHODS[key].family for key in spectra["method"]} == {"authors"} else THRESHOLD


def counted(spectra: pd.DataFrame) -> str:
    """Describe the definition of the effective rank."""
    threshold = threshold_of(spectra)
    return f"values ≥ {threshold:g} of the largest" if threshold else "rows on the wire"


def effective_ranks(spectra: pd.DataFrame, threshold: float | None = None) -> pd.DataFrame:
    """Return how many singular values of an update are at least `threshold` of the largest.

    Args:
        spectra: columns panel, method, fold, epoch, layer, and value_1, value_2, … over the largest; NaN beyond the
            last.
        threshold: below which a value does not count; None asks `threshold_of`.

    Returns:
        Columns panel, method, fold, epoch, layer and rank.
    """
    values = spectra.filter(regex=r"^value_\d+$")
    ranks = (values >= (threshold_of(spectra) if threshold is None else threshold)).sum(axis=1)
    return spectra[["panel", "method", "fold", "epoch", "layer"]].assign(rank=ranks)


def falls(ranks: pd.DataFrame) -> pd.DataFrame:
    """Return effective ranks at the beginning and at the end of training.

    Args:
        ranks: of `effective_ranks`.

    Returns:
        Rows by panel and layer: first and last, means over folds.
    """
    longest = ranks.groupby("panel")["epoch"].transform("max")
    begun, over = ranks["epoch"] <= ENDS * longest, ranks["epoch"] > (1 - ENDS) * longest
    by = ["panel", "layer"]
    groups = {"first": ranks[begun].groupby(by, sort=False), "last": ranks[over].groupby(by, sort=False)}
    return pd.DataFrame({name: group["rank"].mean() for name, group in groups.items()}).dropna().reset_index()


def speedups(curves: pd.DataFrame, seconds: pd.DataFrame) -> pd.DataFrame:
    """Return how soon each method reaches the crude baseline's final AUC, fold by fold.

    Args:
        curves: of `figure-5.csv`.
        seconds: of `figure-5-seconds.csv`: panel, method, link and seconds per step.

    Returns:
        Columns panel, link, method, fold, target (AUC), epoch and minutes (not a number if it is never reached) and
        log2, of the baseline's minutes over the method's; no rows of a link that the baseline has no seconds of.
    """
    means = curves.groupby(["panel", "method", "fold", "epoch", "step"], as_index=False)["auc"].mean()
    crude = means[means["method"] == CRUDE].sort_values("epoch").groupby(["panel", "fold"])["auc"].last()
    means = means.join(crude.rename("target"), on=["panel", "fold"], how="inner")
    reached = means[means["auc"] >= means["target"]].sort_values("epoch")
    first = reached.groupby(["panel", "method", "fold"])[["epoch", "step"]].first()
    trained = means[["panel", "method", "fold", "target"]].drop_duplicates()
    times: pd.DataFrame = trained.join(first, on=["panel", "method", "fold"]).merge(seconds, on=["panel", "method"])
    times["minutes"] = times["step"] * times["seconds"] / 60
    key = ["panel", "link", "fold"]
    base = times[times["method"] == CRUDE].set_index(key)["minutes"].rename("base")
    times = times.join(base, on=key, how="inner")
    times["log2"] = np.log2(times["base"] / times["minutes"])
    return times.filter(["panel", "link", "method", "fold", "target", "epoch", "minutes", "log2"])


def ratios(timing: pd.DataFrame) -> pd.DataFrame:
    """Return the time per step of each method over that of each reference, at the same link and number of sites.

    Returns:
        Columns link, reference, method, sites, ratio, and low and high of the method's own spread.
    """
    refers = timing["method"].isin(REFERENCES)
    bases = timing[refers].rename(columns={"method": "reference", "seconds": "base"})
    table = timing[~refers].merge(bases[["link", "sites", "reference", "base"]], on=["link", "sites"])
    for name, key in {"ratio": "seconds", "low": "low", "high": "high"}.items():
        table[name] = table[key] / table["base"]
    order = table["reference"].map(REFERENCES.index)
    table = table.assign(order=order).sort_values(["order", "sites"], kind="stable", ignore_index=True)
    return table[["link", "reference", "method", "sites", "ratio", "low", "high"]]


def every(table: pd.DataFrame, *columns: str) -> list[tuple[tuple[str, ...], pd.DataFrame]]:
    """Group a table by some columns, as text, in order of appearance: pairs of the columns' values and the rows."""
    return [
        (tuple(map(str, key)), rows) for key, rows in table.groupby(list(columns), sort=False) if isinstance(key, tuple)
    ]


def growth(sizes: Iterable[float], values: Iterable[float]) -> float:
    """Return the exponent with which values grow between the two largest sizes: 1 is linear, 2 quadratic."""
    (small, few), (large, many) = sorted(zip(sizes, values, strict=True))[-2:]
    return math.log(many / few) / math.log(large / small)
