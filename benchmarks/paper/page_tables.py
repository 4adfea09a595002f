"""Rows of the page's tables as text, from the tables of measurements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from benchmarks.paper.claims import PAPER_RATIOS, Claim
from benchmarks.paper.compared_methods import METHODS
from benchmarks.paper.comparing import (
    CRUDE,
    REFERENCES,
    THRESHOLD,
    effective_ranks,
    ends,
    every,
    falls,
    methods_of,
    panels_of,
    ratios,
    speedups,
)
from benchmarks.paper.panels import FOLDS, Panel
from benchmarks.paper.timing import unaccounted

THRESHOLDS = (0.0, THRESHOLD, 0.1, 0.01)  # of an effective rank: the first counts rows on the wire
RELAY_SHARE = 0.25  # of a step's time that neither computing nor the link accounts for
BASELINE, REFERENCE = METHODS[CRUDE].label, METHODS[REFERENCES[0]].label

Rows = list[list[str]]


def judged(claims: Sequence[Claim], figure: str) -> Iterator[tuple[str, Rows, dict[str, list[str]]]]:
    """Yield for each panel of a figure its key, a row for each claim, and the claims that each explanation is for."""
    numbered = list(enumerate((claim for claim in claims if claim.figure == figure), 1))
    for panel in dict.fromkeys(claim.panel for _, claim in numbered):
        rows: Rows = []
        reasons: dict[str, list[str]] = {}
        for number, claim in numbered:
            if claim.panel != panel:
                continue
            source = "paper" if claim.paper else "ours"
            rows.append([str(number), source, claim.statement, claim.measured, f"**{claim.outcome}**"])
            if claim.why:
                reasons.setdefault(claim.why, []).append(str(number))
        yield panel, rows, reasons


def trained(curves: pd.DataFrame, panels: Mapping[str, Panel]) -> Rows:
    """Return a row about training for each panel."""
    rows = []
    for panel, last in _last(curves, panels):
        folds = last.groupby("method")["fold"].nunique()
        fewer = [f"{METHODS[key].label}: {folds[key]}" for key in methods_of(last) if folds[key] < folds.max()]
        end = last["epoch"].max()
        rows.append(
            [
                panel.title,
                f"{panel.samples:,}, at random" if panel.samples else "all",
                f"`{', '.join(f'{key} {value}' for key, value in panel.model.items())}`",
                f"{folds.max()} of {FOLDS}" + (f" ({', '.join(fewer)})" if fewer else ""),
                f"{end} ({last['step'].max() // end} steps each)",
                ", ".join(METHODS[key].label for key in panel.methods if key not in folds) or "–",
            ]
        )
    return rows


def at_the_end(curves: pd.DataFrame, panels: Mapping[str, Panel]) -> Iterator[tuple[Panel, Rows]]:
    """Yield for each panel the AUC and bytes of every method at the last epoch."""
    for panel, last in _last(curves, panels):
        by = last.groupby("method")
        mean, spread, sent = by["auc"].mean(), by["auc"].std().fillna(0), by["bytes"].mean()
        dense = sent.get("dsgd", math.nan)
        yield (
            panel,
            [
                [
                    METHODS[key].label,
                    f"{mean[key]:.5f} ± {spread[key]:.5f}",
                    str(by["fold"].nunique()[key]),
                    _size(sent[key]) if sent[key] else "–",
                    f"{dense / sent[key]:.1f}" if sent[key] and dense == dense else "–",
                ]
                for key in methods_of(last)
            ],
        )


def _last(curves: pd.DataFrame, panels: Mapping[str, Panel]) -> Iterator[tuple[Panel, pd.DataFrame]]:
    last = ends(curves)
    for panel in panels_of(curves, panels):
        yield panel, last[last["panel"] == panel.key]


def ranks(spectra: pd.DataFrame, panels: Mapping[str, Panel]) -> tuple[list[str], Rows]:
    """Return ranks by several thresholds, for the one that claims are judged by is our choice: head and rows."""
    folds = spectra.groupby("panel")["fold"].nunique()
    by = [falls(effective_ranks(spectra, threshold)).set_index(["panel", "layer"]) for threshold in THRESHOLDS]
    rows = [
        [panels[panel].title, f"`{layer}`", f"{folds[panel]} of {FOLDS}"]
        + [f"{fall['first'][panel, layer]:.1f} to {fall['last'][panel, layer]:.1f}" for fall in by]
        for panel, layer in by[0].index
    ]
    return ["data", "layer", "folds in", "rows", *(f"rank, values ≥ {t:g}" for t in THRESHOLDS[1:])], rows


def speed(curves: pd.DataFrame, seconds: pd.DataFrame) -> Rows:
    """Return when each method reaches the baseline's AUC: a row for each link and method."""
    rows = []
    folds = dict(every(speedups(curves, seconds), "panel", "link", "method"))
    for line in seconds.itertuples():
        of_folds = folds.get((str(line.panel), str(line.link), str(line.method)))
        if of_folds is None:
            continue
        reached = of_folds.dropna()
        epoch, minutes, log2 = reached[["epoch", "minutes", "log2"]].mean()
        rows.append(
            [
                str(line.link),
                METHODS[str(line.method)].label,
                f"{line.seconds:.3f} ({line.low:.3f} to {line.high:.3f})",
                *([f"{epoch:.1f}", f"{minutes:.2f}", f"{log2:+.2f}"] if len(reached) else ["never", "–", "–"]),
                f"{len(reached)} of {len(of_folds)}",
            ]
        )
    return rows


def layer_bytes(sizes: pd.DataFrame) -> Rows:
    """Return the bytes of the widest layer: a row for each method and direction."""
    rows = []
    widths = dict(every(sizes, "method", "direction"))
    for method in methods_of(sizes):
        for direction in ("up", "down"):
            if (method, direction) in widths:
                layers = widths[method, direction].sort_values("size")
                last, header = layers.iloc[-1], layers["header"].dropna()
                extra = f"{header.min():.0f} to {header.max():.0f} bytes" if len(header) else "not sent"
                rows.append([METHODS[method].label, direction, f"{last['size']:,}", _size(last["formula"]), extra])
    return rows


def time_ratios(timings: pd.DataFrame) -> tuple[list[str], Rows]:
    """Return the time per batch over dSGD's by number of sites: the head and the rows."""
    table = ratios(timings)
    counts = sorted(set(table["sites"]))
    rows = [["the paper's", "", "dSGD", *(f"{PAPER_RATIOS[n]:.3f}" if n in PAPER_RATIOS else "–" for n in counts)]]
    for (link, reference, method), of_sites in every(table, "link", "reference", "method"):
        by = dict(zip(of_sites["sites"], of_sites["ratio"], strict=True))
        cells = [f"{by[count]:.3f}" if count in by else "–" for count in counts]
        rows.append([METHODS[method].label, link, METHODS[reference].label, *cells])
    return ["method", "link", "over", *(f"{count} sites" for count in counts)], rows


def batch_seconds(timings: pd.DataFrame) -> tuple[list[str], Rows]:
    """Return seconds per batch by number of sites: the head and the rows."""
    times = timings.pivot_table(index=["link", "method"], columns="sites", values="seconds", sort=False)
    rows = [
        [link, METHODS[method].label, *("–" if math.isnan(value) else f"{value:.4f}" for value in line)]
        for (link, method), line in zip(times.index, times.to_numpy(), strict=True)
    ]
    return ["link", "method", *(f"{count} sites" for count in times.columns)], rows


def relayed(timings: pd.DataFrame) -> list[str]:
    """Return the settings in which the relay, not the link, was the bottleneck."""
    beyond = timings.assign(beyond=unaccounted(timings)).query("beyond > @RELAY_SHARE")
    return [
        f"{link}, {METHODS[method].label}: {', '.join(rows['sites'].astype(str))} sites"
        for (link, method), rows in every(beyond, "link", "method")
    ]


def _size(count: float) -> str:
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} bytes"
