"""The page about a run: what it says against the tables, how it looks, and that nothing in them can break it."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
import typer
from PIL import Image, ImageChops
from typer.testing import CliRunner, Result

from common.errors import UserError
from local.data import SiteData
from remote.cli import mount
from remote.figures import NAMED, figures
from remote.report import report
from remote.results import METRICS, STEPS, metric_rows, read_results
from simulations.lockstep import run
from tests.conftest import SITES, run_document, run_spec

Data = Callable[..., dict[str, SiteData]]


class Page(HTMLParser):
    """What stands in a page's table cells and paragraphs, row by row, and its tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = [[]]
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        self.text = " ".join(word for row in self.rows for word in row)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("tr", "p", "h1", "h2"):
            self.rows.append([])

    def handle_data(self, data: str) -> None:
        if data.strip() and self.tags[-1][0] != "style":
            self.rows[-1].append(data.strip())

    def fact(self, name: str) -> str:
        return next(row[1] for row in self.rows if row[:1] == [name])


@pytest.fixture
def finished(tmp_path: Path, site_data: Data) -> Path:
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training={"epochs": 3})
    run(spec, site_data(spec), tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes most of a page's time."""
    monkeypatch.setattr("remote.report.drawer", lambda: None)


def rankdad(*words: object) -> Result:
    app = typer.Typer()
    mount(app)
    return CliRunner().invoke(app, [str(word) for word in words])


def begun(directory: Path, **summary: object) -> Path:
    """A directory with nothing but a spec, and a summary if any of its keys is given."""
    directory.mkdir()
    (directory / "run.json").write_text(json.dumps(run_document()))
    if summary:
        (directory / "summary.json").write_text(json.dumps(summary))
    return directory


def change(directory: Path, **values: object) -> None:
    path = directory / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def tables(sites: list[str], epochs: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables of a run that gets better and better, with noise."""
    noise = np.random.default_rng(0)
    rows: list[tuple[object, ...]] = []
    for epoch, split in [*((epoch, "validation") for epoch in range(epochs)), (epochs - 1, "test")]:
        for site in ["pooled", *sites]:
            loss, gap = 2 / (epoch + 1) + noise.uniform(0, 0.2), noise.uniform(0.1, 0.4) / (epoch + 1)
            rows.append((epoch, split, site, loss, int(noise.integers(5, 900)), loss, 1 - 2 * gap, 1 - gap, 1e-4))
    steps = [(step + 1, step // 9, 2 / (step + 1), 0.1, 0.01, 10, 10, "") for step in range(9 * epochs)]
    return pd.DataFrame(rows, columns=list(METRICS)), pd.DataFrame(steps, columns=list(STEPS))


def test_the_page_says_what_the_tables_say(finished: Path) -> None:
    html = report(finished)
    page, summary = Page(html), json.loads((finished / "summary.json").read_text())
    with (finished / "metrics.csv").open(newline="") as file:
        test = {row["site"]: row for row in csv.DictReader(file) if row["split"] == "test"}
    assert set(test) == {"pooled", *SITES}
    for site, row in test.items():
        name = "all sites together" if site == "pooled" else site
        shown = next(cells for cells in page.rows if cells[0:1] == [name])
        assert shown[1] == row["samples"]
        for cell, key, digits in zip(shown[2:5], ("loss", "accuracy", "auc"), (4, 4, 5), strict=True):
            assert cell == f"{float(row[key]):.{digits}f}"
    digest = summary["weights_sha256"]["alpha"]
    assert page.fact("final weights") == f"equal at all sites and at the aggregator, sha256 {digest}"
    assert page.fact("against full gradients").startswith(f"{summary['times_fewer_bytes_than_dense']:.1f} times")
    assert page.fact("torch") == summary["versions"]["torch"]
    assert page.rows[2] == ["The run is complete."]
    sources = [values["src"] or "" for tag, values in page.tags if tag == "img"]
    assert len(sources) == 6
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "script" not in dict(page.tags)
    assert "://" not in html
    assert html == report(finished)


@pytest.mark.usefixtures("no_figures")
def test_what_went_wrong_is_on_the_page(finished: Path) -> None:
    hostile = "<script>alert('x')</script> & \"quotes\""
    change(
        finished,
        status="failed",
        reason=hostile,
        left_out={"beta": 2},
        resets=[{"site": "gamma", "round": 7}],
        drift=0.25,
        weights_sha256={"alpha": "a" * 64, "beta": "b" * 64},
    )
    page = Page(report(finished))
    assert page.fact("reason") == hostile
    assert page.fact("sites left out of steps").startswith("beta (2 of ")
    assert page.fact("sites that lost their state") == "gamma (in round 7)"
    assert page.fact("largest drift between sites").startswith("0.2 of the weights' size")
    assert page.fact("final weights").startswith("DIFFERENT between sites")
    assert "script" not in dict(page.tags)
    change(finished, weights_sha256={"alpha": "a" * 64}, aggregator_sha256="c" * 64)
    assert re.match(
        "equal at all sites but beta, gamma, .* DIFFERENT at the agg", Page(report(finished)).fact("final weights")
    )


def test_a_run_at_any_moment_has_a_page(finished: Path, tmp_path: Path) -> None:
    page = Page(report(begun(tmp_path / "begun")))
    assert "The run is not over" in page.text
    assert "no epoch is complete" in page.text
    failed = begun(tmp_path / "failed", status="failed", reason="beta could not go on", drift=None, steps=0)
    assert "The run failed. Reason: beta could not go on" in Page(report(failed)).text
    whole = {name: (finished / name).read_text() for name in ("metrics.csv", "steps.csv")}
    (finished / "summary.json").unlink()
    for part in (0, 0.1, 0.3, 0.5, 0.77, 0.9, 0.99):  # cut anywhere, as a full disk does
        for name, text in whole.items():
            (finished / name).write_text(text[: int(part * len(text))])
        cut = read_results(finished)
        assert set(cut.metrics["site"]) <= {"pooled", *SITES}
        assert cut.metrics["samples"].notna().all()
        if part in (0, 0.5):
            assert "<h1>small</h1>" in report(finished)


def test_what_is_no_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        report(tmp_path)
    directory = begun(tmp_path / "broken", steps="many")
    with pytest.raises(UserError, match=r"summary.json: steps: got \"many\""):
        report(directory)
    (directory / "summary.json").unlink()
    (directory / "metrics.csv").write_text("epoch,split\n0,test,1,2,3\n4,test,1,2,3,4\n")
    with pytest.raises(UserError, match=r"metrics.csv: cannot be read as a table"):
        report(directory)


@pytest.mark.usefixtures("no_figures")
def test_test_metrics_are_numbers_only(tmp_path: Path) -> None:
    sites = ["null", "1e5", "quiet"]  # names that look like numbers are names
    document = run_document(federation={"sites": sites})
    directory = begun(tmp_path / "run")
    (directory / "run.json").write_text(json.dumps(document))
    lines = ["epoch,split,site,train_loss,samples,loss,accuracy,auc,auc_error"]
    lines += ["0,validation,null,1,9,9,0.1,0.1,0", "0,test,pooled,,30,0.5,0.8,0.9,0.001", "0,test,null,,20,inf,0.75,,"]
    lines += ["0,test,1e5,,10,0.25,1.0,1.0,0.0", "0,test,quiet,,0,,,,"]
    (directory / "metrics.csv").write_text("\n".join(lines) + "\n")
    pooled, by_site = metric_rows(read_results(directory).metrics)
    assert pooled == {"samples": 30, "loss": 0.5, "accuracy": 0.8, "auc": 0.9, "auc_error": 0.001}
    assert by_site == {
        "null": {"samples": 20, "accuracy": 0.75},
        "1e5": {"samples": 10, "loss": 0.25, "accuracy": 1.0, "auc": 1.0, "auc_error": 0.0},
        "quiet": {"samples": 0},
    }
    page = Page(report(directory))
    assert ["null", "20", "–", "0.7500", "–", "–"] in page.rows
    assert ["quiet", "0", "–", "–", "–", "–"] in page.rows


@pytest.mark.parametrize("count", [NAMED, pytest.param(NAMED + 1, marks=pytest.mark.slow)])
def test_figures_are_small_pictures_and_always_the_same(count: int) -> None:
    metrics, steps = tables([f"{site:03d}-{'long-name-' * 6}"[:63] for site in range(count)], epochs=12)
    drawn = figures(metrics, steps, {"best_epoch": 9})
    assert list(drawn) == ["loss_over_epochs", "loss_over_steps", "auc_over_epochs", "accuracy_over_epochs"] + [
        "test_auc_by_site",
        "test_accuracy_by_site",
    ]
    for name, png in drawn.items():
        assert len(png) < 60_000, name
        picture = Image.open(io.BytesIO(png)).convert("RGB")
        colours = {colour for _, colour in picture.getcolors() or []}
        assert colours & {(0, 114, 178), (213, 94, 0)}, name
        inside = ImageChops.difference(picture, Image.new("RGB", picture.size, "white")).getbbox()
        assert inside, name
        assert min(inside[0], inside[1], picture.width - inside[2], picture.height - inside[3]) > 0, (
            f"{name} is cut off"
        )
    with matplotlib.rc_context({"text.usetex": True, "axes.facecolor": "black"}):  # a person's own taste
        marked = figures(metrics.drop(columns="accuracy"), steps, {"best_epoch": 3})
    changed = [name for name, png in marked.items() if drawn[name] != png]  # the others are equal, byte by byte
    assert changed == ["loss_over_epochs", "auc_over_epochs"]


def test_nothing_to_draw_is_no_figure() -> None:
    metrics, steps = tables(["a"], epochs=1)
    assert set(figures(metrics, steps[:1], {})) == {"test_auc_by_site", "test_accuracy_by_site"}
    assert figures(metrics[:0], steps[:0], {}) == {}
    metrics["loss"] = metrics["auc"] = float("inf")
    assert set(figures(metrics, steps[:0], {})) == {"test_accuracy_by_site"}


def test_without_matplotlib_the_page_says_what_it_lacks(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "remote.figures")
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    path = finished / "page.html"
    done = rankdad("report", finished, "--output", path)
    assert done.exit_code == 0
    assert "pip install 'rankdad[plots]'" in done.stderr
    page = Page(path.read_text(encoding="utf-8"))
    assert "pip install 'rankdad[plots]'" in page.text
    assert "img" not in dict(page.tags)
