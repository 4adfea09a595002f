"""A run's story is the same in `summary.json`, on its page, on the terminal and in its report."""

from __future__ import annotations

import html
import io
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from rankdad.common.data import SiteData, read_site
from rankdad.common.documents import load_json
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import shown
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.audit import Audit
from rankdad.remote.live import Live
from rankdad.remote.page_document import past_page
from rankdad.remote.report.result_lines import result_lines
from rankdad.remote.report.run_report import report
from rankdad.remote.report.words import NAMES
from rankdad.remote.run_session import RunSession
from rankdad.remote.site_status import site_statuses
from rankdad.remote.view import LiveView, Waiting
from rankdad.simulations import lockstep
from tests.conftest import SITES, run_spec

DATA = {"reader": "csv", "file": "t.csv", "features": ["a", "b"], "missing": "drop"}
ILL = {
    "task": {"name": "classification", "classes": 2},
    "data": DATA | {"label": "ill", "values": [0, 1]},
}
RUNS: dict[str, dict[str, Any]] = {
    "folds": ILL
    | {
        "method": {"name": "rank-dad", "rank": 2},
        "evaluation": {"name": "k-fold", "folds": 2},
        "training": {"validation": 0.2, "batch_size": 512},
    },
    "regression": {
        "task": {"name": "regression"},
        "data": DATA | {"label": "age"},
        "training": {"validation": 0.2, "monitor": "mae", "batch_size": 512},
    },
    "exact": ILL
    | {
        "model": {"name": "linear"},
        "training": {"validation": 0.0, "solver": "exact"},
        "preparation": {"standardise": "federated"},
    },
}
SHARED = {"folds": (14, 14), "regression": (13, 15), "exact": (6, 7)}  # figures that all show: running, over
PLACES = ("page", "terminal", "report")
SAME = {"is complete": "completed", "has not ended": "running"}  # words of the report for a status
UNITS = {"": 1, "B": 1, "KB": 1e3, "s": 1, "ms": 1e-3, "min": 60}
SIZE = r"([\d.]+ K?B)"
FIGURES = {  # in summary.json: patterns of where page, terminal and report show it; "" where they do not
    "name": (r"^run.name (.+)", r"^(\w+) .* steps(?: yet)?$", r"^name \| (.+)"),
    "status": (r"^stand.status (.+)", r"^round +(completed)", r"^how it ended \| The run (is complete|has not ended)"),
    "method": (r"^run.method (.+)", r"^(\S+),? +3 sites (?:·|, \d+ steps)", r"^method \| .*(rank-dad|dsgd);"),
    "members": (r"^run.members (\d+)", r"^\S+ +(\d+) sites ·|, (\d+) sites, ", r"^extent \| (\d+) sites"),
    "rows": ("", "", r"^rows \| (\S+)"),
    **{
        f"rows.{site}": (rf"^sites.{n}.rows (\d+)", rf"^{site} +([\d,]+)", rf"^rows \| \S+ (?:\| \S+ ){{{n}}}\| (\S+)")
        for n, site in enumerate(SITES)
    },
    **{
        f"rows_dropped.{site}": (rf"^sites.{n}.warnings.*?(\d+) rows", "", rf"data left out: .*{site} (\d+)")
        for n, site in enumerate(SITES)
    },
    "rows_dropped": ("", r"^dropped: (\S+) rows", r"^(\d+) rows of data left out"),
    "steps": (r"^stand.step (\d+)", r"([\d,]+)/[\d,]+ steps|, ([\d,]+) steps,", r"^extent .*, ([\d,]+) steps"),
    "planned_steps": (r"^stand.steps (\d+)", r"[\d,]+/([\d,]+) steps", ""),
    "epochs": (r"^stand.epoch (\d+)", r" steps, (\d+) epochs", r"^extent \| 3 sites, (\d+) epochs"),
    "planned_epochs": (r"^stand.where .*epoch \d+ of (\d+)", r"epoch \d+ of (\d+)", r"of at most (\d+)[, ]"),
    "best_epoch": (r"^stand.best_epoch (\d+)", r"in epoch (\d+)|best epoch (\d+)", r"the best epoch, (\d+) of at most"),
    "best_value": (r"^stand.best_value (.+)", r"best (\S+) in epoch", ""),
    "validation": (
        r"^stand.validation (.+)",
        r"validation: (?:loss [\d.]+ · MAE|loss) ([\d.]+)",
        r"^all hospitals together \| [\d,]+ \| (?:\S+ \| )*(\S+)$",
    ),
    "loss": (r"^stand.loss (.+)", r"^quality +training loss (\S+)$", ""),
    "train_loss": ("", r"^quality +training loss (\S+) ·", ""),
    "undertrained.trainings": (
        r"^stand.warning .* in (\d+) of",
        r"^warning.* in (\d+) of",
        r"was the best in (\d+) of",
    ),
    "seconds": (
        r"^stand.seconds (.+)",
        r"(?:·|,) ([\d.]+ s)$",
        r"^(?:the whole run \||extent .*,) (\S+ (?:s|min))",
    ),
    "seconds_per_step": (r"^stand.step_seconds (.+)", r"(\d+ ms) a step", r"^a step \| mean (\S+ s)"),
    "bytes_up": (r"^traffic.up (.+)", "", rf"^all steps, .*\| {SIZE} up"),
    "bytes_down": (r"^traffic.down (.+)", "", rf"^all steps, .*, {SIZE} down"),
    "dense_bytes": (r"^traffic.dense (.+)", rf"a full gradient of {SIZE}", rf"; a full gradient is {SIZE}"),
    "bytes_up_per_site_step": (r"^traffic.step_up (.+)", rf"^traffic.* {SIZE} up", rf"^up, per site .*\| {SIZE};"),
    "bytes_down_per_site_step": (r"^traffic.step_down (.+)", rf"^traffic.*, {SIZE} down", rf"^down, per .*\| {SIZE};"),
    "times_fewer_bytes_than_dense": (
        r"^traffic.ratio ([1-9].+)",
        r"^traffic.* (\S+) times fewer",
        r"\| (\S+) times fewer",
    ),
    "metrics.test.samples": ("", r"^test: .* ([\d,]+) samples", r"tested on ([\d,]+) rows"),
    "metrics.within_sites.auc": ("", r"AUC within sites (\S+) \(", r"^AUC within hospitals \| (\S+)"),
    "metrics.site_alone.auc": ("", r"knows only the site (\S+)$", r"^AUC of a guess that knows .*\| (\S+)"),
    "weights_sha256.alpha": ("", r"^weights: equal .*sha256 (\w+)", r"^final weights \| equal .*sha256 (\w+)"),
}
for _name in ("auc", "accuracy", "loss", "balanced_accuracy", "f1", "calibration_error", "mae", "r2", "pearson_r"):
    _title = NAMES[_name]
    _interval = rf"^{_title} \| \S+ (?:\| |\()"
    FIGURES |= {
        f"metrics.test.{_name}": ("", rf"^test: .*?(?:  |, ){shown(_name)} ([^ ,]+)", rf"^{_title} \| (\S+)"),
        f"metrics.intervals.{_name}.low": ("", rf"interval of {shown(_name)}: (\S+) to", rf"{_interval}(\S+) to"),
        f"metrics.intervals.{_name}.high": (
            "",
            rf"interval of {shown(_name)}: \S+ to (\S+)",
            rf"{_interval}\S+ to ([^ )]+)",
        ),
    }


def hospitals(folder: Path, spec: RunSpec) -> dict[str, SiteData]:
    """Write tables of three hospitals, each with some rows that lack a value."""
    found = {}
    for place, site in enumerate(SITES):
        generator = np.random.default_rng(place)
        a, b, noise = generator.normal(size=(3, (1048, 132, 117)[place]))
        rows = zip(
            np.where(np.arange(len(a)) < 3 + place, "", a.round(3)),
            b,
            50 + 9 * a + noise,
            a + b + noise > 0,
            strict=True,
        )
        (folder / site).mkdir(parents=True)
        table = "".join(f"{a},{b:.3f},{age:.1f},{ill:d}\n" for a, b, age, ill in rows)
        (folder / site / "t.csv").write_text(f"a,b,age,ill\n{table}")
        found[site] = read_site(spec, folder / site, place)
    return found


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a document by their path."""
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(one, f"{name}.{key}".lstrip("."))
    else:
        yield name, value


def page_of(document: dict[str, Any]) -> str:
    return "\n".join(f"{name} {'–' if value is None else value}" for name, value in flat(document))


def terminal_of(aggregator: Aggregator, host: RunSession) -> str:
    """Return what the terminal shows, on lines as long as they need."""
    text, recorder = io.StringIO(), aggregator.recorder
    console = Console(file=text, width=400, height=50, force_terminal=False)
    console.print(LiveView(recorder.progress, Waiting, console, recorder.history, lambda: site_statuses(host)).drawn())
    return re.sub(" +$", "", text.getvalue(), flags=re.M)


def report_of(directory: Path) -> str:
    """Return a report's text, a line for each row of a table."""
    text = re.sub(r"</t[hd]>(?=<t[hd])", " | ", report(directory))
    return html.unescape(re.sub(r"<[^>]*>", "", text)).replace("\N{MINUS SIGN}", "-")


def summary_of(directory: Path, spec: RunSpec) -> dict[str, Any]:
    """Return the figures of `summary.json` by path, with sums and counts that others show."""
    summary = load_json(directory / "summary.json")
    sums = {name: sum(summary[name].values()) or None for name in ("rows", "rows_dropped")}
    validation = (summary["metrics"]["validation"] or {}).get(spec.training.monitor)
    return dict(flat(summary)) | sums | {"members": len(summary["sites"]), "validation": validation}


def is_same(text: str, value: Any) -> bool:
    """Return whether a text is a value, to as many digits as it has."""
    if value is None or text == "–":
        return text == "–" and value is None
    if isinstance(value, str):
        return value.startswith(SAME.get(text, text))
    number, _, unit = text.replace(",", "").partition(" ")
    half = 0.5 * 10.0 ** -len(number.partition(".")[2])
    return bool(abs(float(number) - value / UNITS[unit]) <= half * (1 + 1e-6))


def compared(summary: dict[str, Any], **places: str) -> dict[str, set[str]]:
    """Compare all figures that places show, and return where each was found."""
    found = defaultdict[str, set[str]](set)
    for name, patterns in FIGURES.items():
        for place, pattern in zip(PLACES, patterns, strict=True):
            for match in re.finditer(pattern, places[place], re.M) if pattern else ():
                text = next(filter(None, match.groups()))
                assert is_same(text, summary.get(name)), (name, place, match[0], summary.get(name))
                found[name].add(place)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_figures_agree_while_a_run_goes_on_and_when_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("rankdad.remote.report.run_report.plotter", lambda: None)
    spec, directory, looks = run_spec(**RUNS[name]), tmp_path / "run", list[Aggregator]()
    running, over = defaultdict[str, set[str]](set), dict[str, set[str]]()
    with closing(Audit(tmp_path / "audit")) as audit:

        def look(aggregator: Aggregator) -> None:
            looks.append(aggregator)
            if aggregator.ended or len(looks) % 5:
                return
            aggregator.recorder.summarise()
            host = RunSession(aggregator, audit)
            texts = {"page": page_of(Live(host, list).document()), "terminal": terminal_of(aggregator, host)}
            for figure, places in compared(summary_of(directory, spec), **texts, report=report_of(directory)).items():
                running[figure] |= places

        lockstep.run(spec, hospitals(tmp_path / "data", spec), directory, on_round=look)
        summary, host = summary_of(directory, spec), RunSession(looks[-1], audit)
        terminal = "\n".join([terminal_of(looks[-1], host), *result_lines(load_json(directory / "summary.json"), spec)])
        for document in (Live(host, list).document(), past_page(directory, "", "", [])[0]):
            over = compared(summary, page=page_of(document), terminal=terminal, report=report_of(directory))
    counts = tuple(sum(places == set(PLACES) for places in found.values()) for found in (running, over))
    assert counts == SHARED[name], (running, over)
