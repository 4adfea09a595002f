"""Judge the paper's claims and our own: pure functions from tables to statements and verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from benchmarks.paper.compared_methods import METHODS
from benchmarks.paper.comparing import (
    CRUDE,
    Difference,
    Tables,
    counted,
    differences,
    effective_ranks,
    ends,
    every,
    falls,
    filled,
    growth,
    ratios,
    speedups,
)
from benchmarks.paper.sizes import MAX_HEADER

Verdict = Literal["holds", "equal", "misses", "open"]

PAPER_RATIOS = {4: 0.063, 6: 0.055, 8: 0.049, 10: 0.046, 12: 0.039, 14: 0.040, 16: 0.037, 18: 0.038}  # by sites
NOISE = 2  # standard errors within which a difference says nothing
ROUNDING = 0.02  # share of the bytes that headers and biases may take
STAYS = 0.5  # a smaller change of an effective rank says nothing
WITH_FEEDBACK = ("ours", "rows", "int8")  # families of this project's own
FACTORS = ("ours", "rows", "int8", "published", "powersgd", "powersgd-plain")  # families that send rows of factors
PARTNERS = {"powersgd-plain": "neither has feedback", "powersgd": "only PowerSGD has feedback"}
FORGOTTEN = {
    "published": "As published, what a rank leaves out of a step is lost. The same rank with feedback, which sends it "
    "later",
    "rows": "In rows, a residual keeps the leading part of what a rank leaves out of a step. The same rank with "
    "residuals as matrices, which forget nothing",
}
SHARED = (
    "All sites share this machine's processors. The more sites, the longer computing takes, and it hides what fewer "
    "bytes save. Both methods compute the same gradients; only one reduces them. The slower the link, the more of the "
    "saving shows."
)
RELATIVE = (
    "The rank is counted relative to the largest singular value of the same update: it says how evenly a gradient is "
    "spread over its directions, not how large it is."
)


@dataclass(frozen=True)
class Near:
    """One of our own claims: a method's AUC is close to dSGD's.

    Args:
        panel: key of the panel.
        method: key of the method.
        within: how far below it may be.
        after: epochs, from which on it holds; None asks only for the last one.
    """

    panel: str
    method: str
    within: float
    after: int | None = None


NEAR = (
    Near("mnist", "rank-dad-4", 0.001, after=2),
    Near("mnist", "rank-dad-2", 0.001, after=6),
    Near("mnist", "rank-dad-rows-4", 0.001, after=2),
    Near("mnist", "rank-dad-rows-2", 0.001, after=6),
    Near("mnist", "rank-dad-int8-8", 0.0005),
    Near("spoken-arabic-digits", "rank-dad-4", 0.01),
    Near("natops", "rank-dad-4", 0.01),
    Near("pendigits", "rank-dad-4", 0.01),
    Near("cifar10", "rank-dad-4", 0.02),
)
WITHIN = {near.panel: near.within for near in NEAR if near.method == "rank-dad-4"}  # tolerance from dSGD's AUC


@dataclass(frozen=True)
class Claim:
    """A statement and its verdict.

    Args:
        figure: name of the table that it is judged by.
        paper: whether the claim is the paper's; the others are this project's own.
        panel: key of the panel; empty where it is of none.
        statement: in words.
        measured: what was found, in numbers.
        verdict: `equal` is a difference within the noise, `open` says that the tables lack what it needs.
        outcome: the verdict in words, with what is missing.
        why: an explanation, if there is something to explain.
    """

    figure: str
    paper: bool
    panel: str
    statement: str
    measured: str
    verdict: Verdict
    outcome: str
    why: str = ""


def claims(tables: Tables) -> list[Claim]:
    """Judge every claim of the figures with existing tables.

    Args:
        tables: by the name of their file.
    """
    judges = {
        "figure-2": _curves,
        "figure-3": _effective_rank,
        "figure-4": _curves,
        "figure-5": _curves,
        "figure-5-seconds": _speed,
        "figure-6": _sizes,
        "table-3": _timing,
    }
    tables = filled(tables)
    return [claim for name, judge in judges.items() if name in tables for claim in judge(name, tables)]


def _curves(name: str, tables: Tables) -> Iterator[Claim]:
    """Judge a table of AUC by epoch."""
    table = tables[name]
    for panel in dict.fromkeys(table["panel"]):
        rows = table[table["panel"] == panel]
        for near in NEAR:
            if near.panel == panel:
                yield _near(name, rows, near)
        there = [key for key in METHODS if key in set(rows["method"])]
        for key in there:
            if METHODS[key].family in WITH_FEEDBACK:
                yield _equal_bytes(name, rows, panel, key)
        for key in there:
            if METHODS[key].family == "published":
                yield from _published(name, rows, panel, key)
                yield from _feedback(name, rows, panel, key)


def _near(name: str, table: pd.DataFrame, near: Near) -> Claim:
    when = "at the last epoch" if near.after is None else f"from epoch {near.after} on"
    says = f"{METHODS[near.method].label}: AUC within {near.within:g} of dSGD's {when}"
    gaps = differences(table, near.panel, near.method, "dsgd")
    asked = gaps[-1:] if near.after is None else [each for each in gaps if each.epoch >= near.after]
    if not asked:
        return _open(name, near.panel, says, f"needs dsgd and {near.method} up to epoch {near.after or 'the last'}")
    worst = min(asked, key=lambda each: each.mean)
    measured = _said(worst)
    if worst is not asked[-1]:
        measured = f"at worst {measured}; {_said(asked[-1])}"
    short = -worst.mean - near.within
    if short <= 0:
        return Claim(name, False, near.panel, says, measured, "holds", "holds")
    outcome = f"misses by {_small(short)}" + (", within the noise" if short < NOISE * worst.error else "")
    why = f"{_lag(gaps)} {_forgotten(table, near.panel, near.method)}".strip()
    return Claim(name, False, near.panel, says, measured, "misses", outcome, why)


def _equal_bytes(name: str, table: pd.DataFrame, panel: str, key: str) -> Claim:
    """Compare a method with feedback to the PowerSGD that sends the fewest bytes, but no fewer than it."""
    says = f"{METHODS[key].label}: AUC at least that of PowerSGD with feedback at equal bytes"
    sent = ends(table).groupby("method")["bytes"].mean()
    shares = {str(other): sent[key] / sent[other] for other in sent.index if METHODS[str(other)].family == "powersgd"}
    other = max((each for each in shares if shares[each] <= 1 + ROUNDING), key=lambda each: shares[each], default="")
    gaps = differences(table, panel, key, other)
    if not gaps:
        return _open(name, panel, says, f"needs {key}, and in the same fold a PowerSGD that sends no less")
    share, rank = shares[other], METHODS[other].rank
    why = f"{_trend(gaps)} {_forgotten(table, panel, key)}".rstrip()
    if share < 1 - ROUNDING:
        why += f" PowerSGD's r={rank}, the lowest that sends no less, sends {1 / share:.2f} times its bytes."
    return _at_least(name, False, panel, says, gaps, why.strip(), f", with {share:.3f} of the bytes of r={rank}")


def _published(name: str, table: pd.DataFrame, panel: str, key: str) -> Iterator[Claim]:
    """Judge the paper's claims about its own method, which has no feedback."""
    method, within = METHODS[key], WITHIN[panel]
    says = f"{method.label}: dSGD's AUC at the last epoch (within {within:g})"
    gaps = differences(table, panel, key, "dsgd")
    if not gaps:
        yield _open(name, panel, says, f"needs dsgd and {key} in the same fold", paper=True)
    elif (short := -gaps[-1].mean - within) <= 0:
        yield Claim(name, True, panel, says, _said(gaps[-1]), "holds", "holds")
    else:
        why = _forgotten(table, panel, key)
        yield Claim(name, True, panel, says, _said(gaps[-1]), "misses", f"misses by {_small(short)}", why)
    for family, note in PARTNERS.items():
        other = f"{family}-{method.rank}"
        if gaps := differences(table, panel, key, other):
            says = f"{method.label}: AUC at least that of {METHODS[other].label} ({note})"
            why = _forgotten(table, panel, key) if family == "powersgd" else ""
            yield _at_least(name, True, panel, says, gaps, why)


def _feedback(name: str, table: pd.DataFrame, panel: str, published: str) -> Iterator[Claim]:
    """Judge whether feedback helps, against the same rank without it."""
    key = f"rank-dad-{METHODS[published].rank}"
    if gaps := differences(table, panel, key, published):
        says = f"{METHODS[key].label}: AUC at least that of the same rank without"
        yield _at_least(name, False, panel, says, gaps, _trend(gaps))


def _at_least(
    name: str, paper: bool, panel: str, says: str, gaps: Sequence[Difference], why: str, note: str = ""
) -> Claim:
    """Judge a difference that should not be below zero at the last epoch."""
    last = gaps[-1]
    measured = _said(last) + note
    if abs(last.mean) < NOISE * last.error:
        return Claim(name, paper, panel, says, measured, "equal", "equal within the noise")
    if last.mean >= 0:
        return Claim(name, paper, panel, says, measured, "holds", "holds")
    return Claim(name, paper, panel, says, measured, "misses", f"worse by {_small(-last.mean)}", why)


def _effective_rank(name: str, tables: Tables) -> Iterator[Claim]:
    """Judge whether the effective rank of each layer's gradient falls."""
    ranks = effective_ranks(tables[name])
    folds = ranks.groupby("panel")["fold"].nunique()
    for panel, layer, first, last in falls(ranks).itertuples(index=False):
        says = f"the effective rank of `{layer}` falls during training"
        measured = (
            f"{first:.1f} in the first tenth, {last:.1f} in the last ({counted(tables[name])}), {_folds(folds[panel])}"
        )
        if abs(last - first) < STAYS:
            yield Claim(name, True, panel, says, measured, "equal", f"stays within {STAYS:g}")
        elif last < first:
            yield Claim(name, True, panel, says, measured, "holds", "holds")
        else:
            yield Claim(name, True, panel, says, measured, "misses", f"rises by {last - first:.1f}", RELATIVE)


def _speed(name: str, tables: Tables) -> Iterator[Claim]:
    """Judge the time until a method reaches the crude baseline's final AUC."""
    if "figure-5" not in tables:
        return
    speeds = speedups(tables["figure-5"], tables[name])
    for (panel, link, method), rows in every(speeds, "panel", "link", "method"):
        if METHODS[method].family not in ("ours", "published"):
            continue
        paper = METHODS[method].family == "published"
        says = f"{METHODS[method].label}, {link}: reaches the AUC that {METHODS[CRUDE].label} end with in less time"
        share, folds = rows["log2"].mean(), len(rows)
        if never := int(rows["minutes"].isna().sum()):
            measured, outcome = f"not reached in {never} of {folds} folds", "misses: not reached"
            yield Claim("figure-5", paper, panel, says, measured, "misses", outcome)
            continue
        measured = (
            f"{2**share:.2g} times as fast (log2 = {share:+.1f}), by epoch {rows['epoch'].mean():.0f}, {_folds(folds)}"
        )
        if share > 0:
            yield Claim("figure-5", paper, panel, says, measured, "holds", "holds")
        else:
            yield Claim("figure-5", paper, panel, says, measured, "misses", f"takes {2**-share:.2g} times as long")


def _sizes(name: str, tables: Tables) -> Iterator[Claim]:
    """Judge bytes per layer: whether they match the formula, and how they grow with the width."""
    table = tables[name]
    for method, rows in table.dropna(subset=["sent"]).groupby("method", sort=False):
        label, family = METHODS[str(method)].label, METHODS[str(method)].family
        header = MAX_HEADER * (2 if family.startswith("powersgd") else 1)
        low, high = (rows["sent"] - rows["formula"]).agg(["min", "max"])
        says = f"{label}: what is sent matches the formula within the header (at most {header} bytes)"
        measured = f"{low:.0f} to {high:.0f} bytes more, {len(rows)} layers and directions"
        if low >= 0 and high <= header:
            yield Claim(name, False, "", says, measured, "holds", "holds")
        else:
            worst = max(-low, high - header)
            yield Claim(name, False, "", says, measured, "misses", f"misses by {worst:.0f} bytes")
    for method, rows in table[table["direction"] == "up"].dropna(subset=["sent"]).groupby("method", sort=False):
        family = METHODS[str(method)].family
        linear = family in FACTORS
        if len(rows) < 2 or not (linear or method == "dsgd"):
            continue
        power = growth(rows["size"], rows["sent"])
        kind, expected = ("linearly", 1) if linear else ("quadratically", 2)
        says = f"{METHODS[str(method)].label}: bytes grow {kind} with the layer's width"
        measured = f"as sent: with the width's power {power:.2f}, between the two largest"
        good = abs(power - expected) < 0.1
        outcome = "holds" if good else f"misses by {abs(power - expected):.2f}"
        paper = family in ("exact", "ours", "published")  # with feedback rank-dAD sends as much as without
        yield Claim(name, paper, "", says, measured, "holds" if good else "misses", outcome)


def _timing(name: str, tables: Tables) -> Iterator[Claim]:
    """Judge the time of a step over that of dSGD."""
    for (link, reference, method), rows in every(ratios(tables[name]), "link", "reference", "method"):
        what = f"{METHODS[method].label}, over {METHODS[reference].label}, {link}"
        few, many = int(rows["sites"].iloc[0]), int(rows["sites"].iloc[-1])
        first, last = float(rows["ratio"].iloc[0]), float(rows["ratio"].iloc[-1])
        measured = f"{first:.3f} with {few} sites, {last:.3f} with {many}"
        if METHODS[method].family != "published":
            good = bool((rows["ratio"] < 1).all())
            outcome = "holds" if good else f"up to {rows['ratio'].max():.2f} times the time"
            says = f"{what}: less time per batch"
            yield Claim(name, False, "", says, measured, "holds" if good else "misses", outcome, "" if good else SHARED)
            continue
        over = float((rows["ratio"] / rows["sites"].map(PAPER_RATIOS)).max())
        good = over <= 1
        outcome = "holds" if good else f"up to {over:.1f} times the paper's"
        says = f"{what}: time per batch {_paper_ratio(few)}, {_paper_ratio(many)}"
        yield Claim(name, True, "", says, measured, "holds" if good else "misses", outcome, "" if good else SHARED)
        if many > few:
            good = last < first
            outcome = "holds" if good else f"rises by {last - first:.3f}"
            says = f"{what}: the more sites, the smaller"
            yield Claim(name, True, "", says, measured, "holds" if good else "misses", outcome, "" if good else SHARED)


def _paper_ratio(sites: int) -> str:
    return f"{PAPER_RATIOS[sites]:.3f} with {sites} sites" if sites in PAPER_RATIOS else f"unknown with {sites} sites"


def _open(name: str, panel: str, says: str, needs: str, *, paper: bool = False) -> Claim:
    return Claim(name, paper, panel, says, "–", "open", f"not measured: {needs}")


def _said(gap: Difference) -> str:
    return f"{gap.mean:+.6f} ± {gap.error:.6f} at epoch {gap.epoch}, {_folds(gap.folds)}"


def _folds(count: int) -> str:
    return f"{count} {'folds' if count > 1 else 'fold'}"


def _small(value: float) -> str:
    return f"{value:.1g}" if value < 1e-4 else f"{value:.5f}".rstrip("0")


def _trend(gaps: Sequence[Difference]) -> str:
    """Say whether a gap opens or closes during training."""
    first, last = gaps[0], gaps[-1]
    if first.epoch == last.epoch:
        return ""
    closes = abs(last.mean) < abs(first.mean)
    how = "turns" if first.mean * last.mean < 0 else "closes" if closes else "opens"
    return f"The gap {how}: {first.mean:+.4f} at epoch {first.epoch}, {last.mean:+.4f} at epoch {last.epoch}."


def _lag(gaps: Sequence[Difference]) -> str:
    """Say whether the gap to dSGD closes, and why."""
    closes = gaps[0].mean < gaps[-1].mean
    late = " Feedback delivers late what a rank leaves out of a step, so a low rank lags at first." if closes else ""
    return _trend(gaps) + late


def _forgotten(table: pd.DataFrame, panel: str, key: str) -> str:
    """Report the loss by a method's truncated residuals, if residuals as matrices do better at the same rank."""
    method = METHODS[key]
    gaps = differences(table, panel, f"rank-dad-{method.rank}", key)
    if method.family in FORGOTTEN and gaps and gaps[-1].mean > NOISE * gaps[-1].error:
        return f"{FORGOTTEN[method.family]}, ends {gaps[-1].mean:.4f} above."
    return ""
