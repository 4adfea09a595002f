"""The page about all that was measured: claim by claim what the paper says, what was found, and by which command."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from simulations.paper.claims import NOISE, PAPER_RATIOS, Claim, Verdict, claims
from simulations.paper.comparing import (
    CRUDE,
    REFERENCES,
    THRESHOLD,
    Tables,
    effective_ranks,
    ends,
    every,
    falls,
    filled,
    methods_of,
    panels_of,
    ratios,
    speedups,
)
from simulations.paper.methods import METHODS
from simulations.paper.panels import BATCH, FOLDS, RATE, SITES, Panel
from simulations.paper.settings import Setting
from simulations.paper.timing import unaccounted

RELAYED = 0.25  # part by which a step is longer than its link accounts for
LOWER = (0.1, 0.01)  # thresholds of an effective rank beside the one that claims are judged by
VERDICTS: Mapping[Verdict, str] = {
    "holds": "holds",
    "equal": "within the noise",
    "misses": "misses",
    "open": "not measured",
}


@dataclass(frozen=True)
class Meta:
    """What the tables do not say.

    Args:
        setting: that they are of.
        options: of the command, such as " --quick".
        machine: on which they were made, in words.
        pictures: stems of the files that have been drawn.
    """

    setting: Setting
    options: str
    machine: str
    pictures: frozenset[str] = frozenset()

    def command(self, name: str) -> str:
        """Return the command that makes a table."""
        return f"`rankdad paper {name}{self.options}`"


@dataclass(frozen=True)
class Section:
    """What the page says of one figure or table, whatever was found.

    Args:
        name: of the figure, and of its first table.
        title: of the section.
        says: what the paper says.
        measured: what was measured here.
        pictures: captions by file stem.
        tables: that it takes.
        body: writes its numbers.
    """

    name: str
    title: str
    says: str
    measured: str
    pictures: Mapping[str, str]
    body: Callable[[str, Tables, Setting], str]
    tables: tuple[str, ...] = ()


def write(tables: Tables, meta: Meta) -> str:
    """Return the page in GitHub's markdown.

    Args:
        tables: by the name of their file; sections of those that are missing say by which command they are made.
        meta: what they do not say.
    """
    tables = filled(tables)
    found = claims(tables)
    parts = [_head(meta), _summary(found)]
    for section in SECTIONS:
        parts.append(_section(section, tables, meta, [each for each in found if each.figure == section.name]))
    return "\n\n".join(parts) + "\n"


def _head(meta: Meta) -> str:
    return f"""# The paper's claims, measured again

Source: arXiv 2102.09631, *Peering Beyond the Gradient Veil with Distributed Auto Differentiation* (rank-dAD).

**What was run.** Setting `{meta.setting.key}`: {meta.setting.about}. Folds of a {FOLDS}-fold stratified
cross-validation, {len(SITES)} sites with equal shares at random, batches of {BATCH} per site, Adam at a fixed rate of
{RATE:g}. How many folds are in is said beside every number; the commands below do {meta.setting.folds}, or as
many as `--folds` says. AUC is the mean over classes of one class against all others, of the test samples of a site.
All methods of a fold begin with the same weights and see the same batches.

**Where.** {meta.machine}

**How to repeat it.** {meta.command("all")}, or the command of each section.

**How to read it.** *rank-dAD as published* has no error feedback; *rank-dAD with feedback* keeps what a rank leaves
out of a step and sends it later, at sites and at the aggregator: as matrices, which forget nothing (`"residual":
"dense"`), or, *in rows*, the leading ones of it alone, which is the default, and faster where layers are wide.
*PowerSGD with feedback* is the method of Vogels et al. (2019), *PowerSGD* the same without. An AUC is given as mean ±
standard deviation over folds and sites. A difference between two methods is one of pairs, of the same fold and site,
given as mean ± standard error, of these pairs or of the folds' means, whichever is larger; up to {NOISE} standard
errors from zero it counts as noise. Sites of one fold test the same weights: what differs from training to training
shows only with several folds, and with one fold the error is that of the test samples alone."""


def _summary(found: Sequence[Claim]) -> str:
    rows = []
    for section in SECTIONS:
        own = [each.verdict for each in found if each.figure == section.name]
        if own:
            rows.append([section.title, *(str(own.count(verdict)) for verdict in VERDICTS)])
    return _table(["claims", *VERDICTS.values()], rows) if rows else "Nothing has been measured yet."


def _section(section: Section, tables: Tables, meta: Meta, found: Sequence[Claim]) -> str:
    head = f"## {section.title}"
    missing = [name for name in (section.name, *section.tables) if name not in tables]
    if section.name in missing:
        return f"{head}\n\nNot measured yet: {meta.command(section.name)} does it."
    files = ", ".join(f"[{name}.csv]({name}.csv)" for name in (section.name, *section.tables) if name not in missing)
    parts = [
        head,
        f"**What the paper says.** {section.says}",
        f"**What was measured here.** {section.measured} Made by {meta.command(section.name)}; numbers: {files}.",
    ]
    if missing:
        parts.append(f"Not measured yet: {', '.join(missing)}; {meta.command(section.name)} does it.")
    shown = {stem: caption for stem, caption in section.pictures.items() if stem in meta.pictures}
    parts += [f"![{caption}]({stem}.png)\n\n*{caption}*" for stem, caption in shown.items()]
    parts += [_judged(found, meta.setting.panels), section.body(section.name, tables, meta.setting)]
    return "\n\n".join(part for part in parts if part)


def _judged(found: Sequence[Claim], panels: Mapping[str, Panel]) -> str:
    """Return the claims, a table for each panel, and below it the explanations."""
    parts, numbers = [], {id(each): str(number) for number, each in enumerate(found, 1)}
    for panel in dict.fromkeys(each.panel for each in found):
        own = [each for each in found if each.panel == panel]
        title = f"### {panels[panel].title}\n\n" if panel else ""
        rows = [
            [numbers[id(each)], "paper" if each.paper else "ours", each.statement, each.measured, f"**{each.outcome}**"]
            for each in own
        ]
        reasons: dict[str, list[str]] = {}
        for each in own:
            if each.why:
                reasons.setdefault(each.why, []).append(numbers[id(each)])
        parts.append(title + _table(["", "of", "claim", "measured", "verdict"], rows))
        parts.append("\n".join(f"- Why {', '.join(which)}: {why}" for why, which in reasons.items()))
    return "\n\n".join(part for part in parts if part)


def _curves(name: str, tables: Tables, setting: Setting) -> str:
    """Return what was trained, and the AUC and bytes of every method at the last epoch."""
    curves = tables[name]
    last = ends(curves)
    trained, parts = [], []
    for panel in panels_of(curves, setting.panels):
        own = last[last["panel"] == panel.key]
        folds = own.groupby("method")["fold"].nunique()
        most = folds.max()
        fewer = ", ".join(f"{METHODS[key].label}: {folds[key]}" for key in methods_of(own) if folds[key] < most)
        absent = ", ".join(METHODS[key].label for key in panel.methods if key not in folds)
        samples = f"{panel.samples:,}, at random" if panel.samples else "all"
        end = own["epoch"].max()
        trained.append(
            [
                panel.title,
                samples,
                f"`{_document(panel.model)}`",
                f"{most} of {FOLDS}" + (f" ({fewer})" if fewer else ""),
                f"{end} ({own['step'].max() // end} steps each)",
                absent or "–",
            ]
        )
        parts.append(f"**{panel.title}, at the last epoch**\n\n{_methods(own, folds)}")
    head = ["data", "samples", "network", "folds in", "epochs", "methods not in yet"]
    return "\n\n".join([_table(head, trained), *parts])


def _methods(last: pd.DataFrame, folds: pd.Series[int]) -> str:
    by = last.groupby("method")
    mean, spread, sent = by["auc"].mean(), by["auc"].std().fillna(0), by["bytes"].mean()
    dense = sent.get("dsgd", float("nan"))
    rows = []
    for key in methods_of(last):
        fewer = f"{dense / sent[key]:.1f}" if sent[key] and dense == dense else "–"
        rows.append(
            [
                METHODS[key].label,
                f"{mean[key]:.5f} ± {spread[key]:.5f}",
                str(folds[key]),
                _size(sent[key]) if sent[key] else "–",
                fewer,
            ]
        )
    return _table(["method", "test AUC", "folds", "bytes per site and step, both ways", "times fewer than dSGD"], rows)


def _ranks(name: str, tables: Tables, setting: Setting) -> str:
    """Return ranks by several thresholds, for the claims are judged by one that is our choice."""
    folds = tables[name].groupby("panel")["fold"].nunique()
    by = {
        threshold: falls(effective_ranks(tables[name], threshold)).set_index(["panel", "layer"])
        for threshold in (THRESHOLD, *LOWER)
    }
    rows = [
        [setting.panels[panel].title, f"`{layer}`", f"{folds[panel]} of {FOLDS}"]
        + [f"{ranks['first'][panel, layer]:.1f} to {ranks['last'][panel, layer]:.1f}" for ranks in by.values()]
        for panel, layer in by[THRESHOLD].index
    ]
    head = ["data", "layer", "folds in", *(f"rank, values ≥ {threshold:g}" for threshold in by)]
    return f"Effective rank from the first to the last tenth of training, by threshold:\n\n{_table(head, rows)}"


def _speed(name: str, tables: Tables, setting: Setting) -> str:
    if "figure-5-seconds" not in tables:
        return _curves(name, tables, setting)
    seconds, rows = tables["figure-5-seconds"], []
    parts = dict(every(speedups(tables[name], seconds), "panel", "link", "method"))
    for line in seconds.itertuples():
        own = parts.get((str(line.panel), str(line.link), str(line.method)))
        if own is None:
            continue
        reached = own.dropna()
        means = [
            f"{reached[key].mean():{form}}" for key, form in (("epoch", ".1f"), ("minutes", ".2f"), ("log2", "+.2f"))
        ]
        rows.append(
            [
                str(line.link),
                METHODS[str(line.method)].label,
                f"{line.seconds:.3f} ({line.low:.3f} to {line.high:.3f})",
                *(means if len(reached) else ["never", "–", "–"]),
                f"{len(reached)} of {len(own)}",
            ]
        )
    head = ["link", "method", "seconds per step", "epoch", "minutes", "log2 of the speed-up", "reached in folds"]
    return f"{_table(head, rows)}\n\n{_curves(name, tables, setting)}"


def _sizes(name: str, tables: Tables, _: Setting) -> str:
    rows = []
    for key in methods_of(tables[name]):
        for direction in ("up", "down"):
            own = tables[name][(tables[name]["method"] == key) & (tables[name]["direction"] == direction)]
            if len(own):
                last = own.sort_values("size").iloc[-1]
                header = own["header"].dropna()
                extra = f"{header.min():.0f} to {header.max():.0f} bytes" if len(header) else "not sent"
                rows.append([METHODS[key].label, direction, f"{last['size']:,}", _size(last["formula"]), extra])
    return _table(["method", "direction", "largest width", "bytes by formula", "header as sent"], rows)


def _timing(name: str, tables: Tables, _: Setting) -> str:
    found = ratios(tables[name])
    counts = sorted(set(found["sites"]))
    paper = [f"{PAPER_RATIOS[count]:.3f}" if count in PAPER_RATIOS else "–" for count in counts]
    rows = [["the paper's", "", "dSGD", *paper]]
    for (link, reference, method), own in every(found, "link", "reference", "method"):
        by = dict(zip(own["sites"], own["ratio"], strict=True))
        cells = [f"{by[count]:.3f}" if count in by else "–" for count in counts]
        rows.append([METHODS[method].label, link, METHODS[reference].label, *cells])
    times = tables[name].pivot_table(index=["link", "method"], columns="sites", values="seconds", sort=False)
    seconds = [
        [link, METHODS[method].label, *("–" if math.isnan(value) else f"{value:.4f}" for value in line)]
        for (link, method), line in zip(times.index, times.to_numpy(), strict=True)
    ]
    sites = [f"{count} sites" for count in counts]
    timed = _table(["link", "method", *(f"{count} sites" for count in times.columns)], seconds)
    return (
        f"Time per batch over that of dSGD:\n\n{_table(['method', 'link', 'over', *sites], rows)}\n\n"
        f"Seconds per batch, median of {tables[name]['steps'].min()} steps:\n\n{timed}\n\n{_relayed(tables[name])}"
    )


def _relayed(timings: pd.DataFrame) -> str:
    """Return where the relay, and no longer the link, was what took time."""
    beyond = timings.assign(beyond=unaccounted(timings)).query("beyond > @RELAYED")
    said = [
        f"{link}, {METHODS[method].label}: {', '.join(rows['sites'].astype(str))} sites"
        for (link, method), rows in every(beyond, "link", "method")
    ]
    return (
        "The relay that makes the links is one process of this machine. Where a step takes more than "
        f"{RELAYED:.0%} longer than the unshaped one and its bytes' time on the link together, it is the relay that "
        f"limits the step, and a true link would be faster: {'; '.join(said) or 'nowhere'}. Where that is dSGD, the "
        "ratio to it is lower than it would be over true links."
    )


def _document(model: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in model.items())


def _size(count: float) -> str:
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} bytes"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


_BANDS = "means of folds and sites, with bands of one standard deviation; the axis is logarithmic in 1 − AUC."
_MARKS = "Test AUC of the last epoch against what a site sends and receives in a step, on average."
SECTIONS = (
    Section(
        "figure-2",
        "Figure 2: AUC over epochs",
        "Shown is the AUC by epoch of rank-dAD against PowerSGD for several ranks, on MNIST with a feed-forward "
        "network and on Spoken Arabic Digits with a recurrent one. Judged is what such a comparison is made for: that "
        "rank-dAD's AUC is dSGD's, and at the same rank at least PowerSGD's.",
        "Test AUC by epoch, beside dSGD, pooled training, and the exact methods.",
        {"figure-2": f"Test AUC by epoch: {_BANDS}", "figure-2-bytes": _MARKS},
        _curves,
    ),
    Section(
        "figure-3",
        "Figure 3: effective rank",
        "The effective rank of a layer's gradient, of at most 10, falls during training. Its threshold is not "
        "known to us.",
        "Singular values of the updates of rank-dAD as published, r=10; counted are those of at least "
        f"{THRESHOLD:g} of the update's largest.",
        {"figure-3": "Effective rank by epoch and layer."},
        _ranks,
    ),
    Section(
        "figure-4",
        "Figure 4: AUC over epochs, further data",
        "Shown is the same as in figure 2 on further data: PEMS-SF, NATOPS and PenDigits.",
        "The same as for figure 2, on NATOPS and PenDigits; PEMS-SF was not measured.",
        {"figure-4": f"Test AUC by epoch: {_BANDS}", "figure-4-bytes": _MARKS},
        _curves,
    ),
    Section(
        "figure-5",
        "Figure 5: time to the baseline's AUC",
        "A vision transformer on CIFAR-10 has the AUC of the crude baseline, which sends the first three rows of every "
        "factor, sooner with rank-dAD; shown is the logarithm of the speed-up.",
        f"The AUC to be reached is that of {METHODS[CRUDE].label} at its last epoch, mean over sites, fold by fold. "
        "Time is the number of steps until the first test that reaches it, times the seconds of a step of real "
        "processes on this machine. Steps come from a training in one process: its weights equal those of real "
        "processes bit for bit, so steps and seconds may be measured apart.",
        {
            "figure-5": "Speed-up over the crude baseline, as a logarithm to the base 2.",
            "figure-5-auc": f"Test AUC by epoch: {_BANDS}",
            "figure-5-bytes": _MARKS,
        },
        _speed,
        ("figure-5-seconds",),
    ),
    Section(
        "figure-6",
        "Figure 6: bytes by the layer's size",
        "With the layer's width, what rank-dAD sends grows linearly, and what dSGD sends quadratically.",
        "Bytes of one square layer with bias, per site and step, by formula and as sent.",
        {"figure-6": "Bytes by the layer's width: lines by formula, markers as sent."},
        _sizes,
    ),
    Section(
        "table-3",
        "Table 3: time per batch by number of sites",
        "On MNIST, the time per batch of rank-dAD over that of dSGD is 0.063 with 4 sites and 0.038 with 18.",
        f"Real processes, all on this machine. The fair reference is {METHODS[REFERENCES[0]].label}, which sends one "
        "message per step; like the paper's is the other, a collective for each tensor, one after the other. No "
        "method here sends while it computes.",
        {"table-3": "Time per batch over dSGD's, with bands from the lower to the upper quartile of steps."},
        _timing,
    ),
)
