"""The page about a run: what it says against the tables, how it looks, and that nothing in them can break it."""

from __future__ import annotations

import csv
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from rankdad.common.documents import load_json
from rankdad.common.errors import UserError
from rankdad.platforms.coinstac.displays import displayed
from rankdad.remote.cli import mount
from rankdad.remote.report import narrative
from rankdad.remote.report.result_lines import show_result
from rankdad.remote.report.run_report import report
from rankdad.remote.results.run_results import read_results
from rankdad.simulations.lockstep import run
from tests.conftest import SITES, run_document, run_spec, written_data
from tests.texts import text_data, text_spec


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
        if tag in ("tr", "p", "h1", "h2", "h3", "li", "dt", "summary", "div"):
            self.rows.append([])

    def handle_data(self, data: str) -> None:
        if data.strip() and self.tags[-1][0] != "style":
            self.rows[-1].append(" ".join(data.split()))

    def fact(self, name: str) -> str:
        return next(row[1] for row in self.rows if row[:1] == [name])


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


@pytest.mark.slow
def test_the_page_says_what_the_tables_say(trained: Path) -> None:
    html = report(finished := trained)
    page, summary = Page(html), json.loads((finished / "summary.json").read_text())
    with (finished / "sites.csv").open(newline="") as file:
        sites = list(csv.DictReader(file))
    metrics = summary["metrics"]
    auc, interval = f"{metrics['test']['auc']:.3f}", metrics["intervals"]["auc"]
    cells = next(cells for cells in page.rows if cells[:2] == ["AUC", auc])
    spread, within, guess = metrics["sites"]["auc"], metrics["within_sites"]["auc"], metrics["baseline"]["auc"]
    assert cells == [
        "AUC",
        auc,
        f"{interval['low']:.3f} to {interval['high']:.3f}",
        f"{spread['mean']:.3f} ± {spread['sd']:.3f}",
        "3 of 3",
        f"{within:.3f}",
        f"{guess:.3f}",  # of the site alone, which is no other guess in the only test
        "–",
    ]
    assert metrics["site_alone"]["auc"] == guess
    assert f"AUC: {interval['method']}" in page.text
    assert [row["site"] for row in sites] == list(SITES)
    assert [row["absent"] for row in sites] != ["0", "0", "0"], "a class is absent somewhere, and has a column"
    for row in sites:
        shown = next(cells for cells in page.rows if cells[:2] == [row["site"], row["samples"]])
        keys = ("auc", "accuracy", "baseline_accuracy")
        assert shown[1:6] == [row["samples"], row["absent"], *(f"{float(row[key]):.3f}" for key in keys)]
    counts = np.array(metrics["confusion"])
    assert any(cells[:4] == ["1", *(f"{count}" for count in counts[1])] for cells in page.rows)
    shown_elsewhere = displayed(read_results(finished), {}, ())
    assert shown_elsewhere["global_metrics"]["samples"] == counts.sum()
    assert shown_elsewhere["site_metrics"]["beta"]["auc"] == float(sites[1]["auc"])
    assert not any(name.startswith("baseline") for name in shown_elsewhere["site_metrics"]["beta"])
    digest = summary["weights_sha256"]["alpha"]
    assert page.fact("final weights") == f"equal at all sites and at the aggregator, sha256 {digest}"
    assert page.fact("against full gradients").startswith(f"{summary['times_fewer_bytes_than_dense']:.1f} times")
    assert page.fact("torch") == summary["versions"]["torch"]
    assert page.fact("how it ended") == "The run is complete."
    drawn = [values["aria-label"] or "" for tag, values in page.tags if tag == "svg"]
    captions = re.findall(r"Figure (\d+)\. (.*?)(?= Figure \d|$)", page.text)
    assert [int(number) for number, _ in captions] == list(range(1, len(drawn) + 1)), "figures are numbered"
    assert len(drawn) == 8
    assert all(shown.startswith(said) for (_, shown), said in zip(captions, drawn, strict=True)), "and have alt texts"
    assert "script" not in dict(page.tags)
    assert "://" not in html


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_the_best_epoch_is_one_number_everywhere(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    table = read_results(finished).metrics
    validated = table[(table["split"] == "validation") & (table["site"] == "pooled")].set_index("epoch")["loss"]
    assert list(validated.index) == [1, 2, 3]
    best = [1, 2, 3][int(validated.argmin())]
    assert summary["best_epoch"] == best == int(table[table["split"] == "test"]["epoch"].iloc[0])
    assert f"the best epoch, {best} of at most 3" in Page(report(finished)).text
    show_result(summary, finished, read_results(finished).spec)
    assert f"best epoch {best}," in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_what_went_wrong_is_on_the_page(finished: Path) -> None:
    hostile = "<script>alert('x')</script> & \"quotes\""
    change(
        finished,
        status="failed",
        reason=hostile,
        problems={"beta": f"policy: {hostile}"},
        left_out={"beta": 2},
        resets=[{"site": "gamma", "round": 7}],
        drift=0.25,
        rows_dropped={hostile: 3, "beta": 1},
        warnings={"one-class": ["alpha"], "fewer-samples-than-folds": [f"site-{place}" for place in range(40)]},
        weights_sha256={"alpha": "a" * 64, "beta": "b" * 64},
        versions={hostile: hostile},
    )
    page = Page(html := report(finished))
    assert html == report(finished)
    assert page.fact("how it ended") == f"The run failed. Reason: {hostile}"
    assert page.fact(hostile) == hostile
    assert [f"beta: policy: {hostile}"] in page.rows, "who cannot take part, and why"
    assert page.fact("hospitals left out of steps").startswith("beta (2 of ")
    assert page.fact("hospitals that lost their state") == "gamma (in round 7)"
    assert page.fact("largest drift between hospitals").startswith("0.2 of the weights' size")
    assert page.fact("final weights").startswith("DIFFERENT between sites")
    assert "1 hospital has samples of one class alone" in page.text
    assert "40 hospitals have fewer samples, or parts of them, than" in page.text
    assert "site-29 and 10 more" in page.text
    assert f"4 rows of data left out: {hostile} 3, beta 1." in page.text
    assert "script" not in dict(page.tags)
    change(finished, weights_sha256={"alpha": "a" * 64}, aggregator_sha256="c" * 64)
    assert re.match(
        "equal at all sites but beta, gamma, .* DIFFERENT at the agg", Page(report(finished)).fact("final weights")
    )


@pytest.mark.slow
def test_a_run_at_any_moment_has_a_page(finished: Path, tmp_path: Path) -> None:
    page = Page(report(begun(tmp_path / "begun")))
    assert "The run has not ended" in page.text
    assert "no epoch is complete" in page.text
    failed = begun(tmp_path / "failed", status="failed", reason="beta failed", drift=None, steps=0)
    assert "The run failed. Reason: beta failed" in Page(report(failed)).text
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
    with pytest.raises(UserError, match=r"has no run\.json"):
        report(tmp_path)
    directory = begun(tmp_path / "broken", steps="many")
    with pytest.raises(UserError, match=r"summary.json: steps: got \"many\""):
        report(directory)
    (directory / "summary.json").unlink()
    (directory / "metrics.csv").write_text("epoch,split\n0,test,1,2,3\n4,test,1,2,3,4\n")
    with pytest.raises(UserError, match=r"metrics.csv: cannot be read as a table"):
        report(directory)


DAMAGED: list[dict[str, Any]] = [
    {"metrics": {"risks": [{}]}},
    {"metrics": {"risks": [{"outcome": "x", "thresholds": 5}]}},
    {"metrics": {"confusion": [[1, 2, 3]], "agreement": {"slope": "x"}}},
    {"table1": {"pooled": {}}},
    {"table1": {"pooled": 5, "sites": [], "warnings": 3}},
]


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("summary", DAMAGED)
def test_a_damaged_summary_is_a_sentence(finished: Path, summary: dict[str, Any]) -> None:
    whole = load_json(finished / "summary.json")
    metrics = whole["metrics"] | summary.get("metrics", {})
    change(finished, **(summary | {"metrics": metrics}))
    for command in (["report", finished], ["compare", finished, finished]):
        error = rankdad(*command).exception
        assert error is None or (isinstance(error, UserError) and str(error).startswith(f"{finished}")), error
    assert isinstance(rankdad("report", finished).exception, UserError)


@pytest.mark.usefixtures("no_figures")
def test_test_metrics_are_numbers_only(tmp_path: Path) -> None:
    sites = ["null", "1e5", "quiet"]  # names that look like numbers are names
    document = run_document(federation={"sites": sites})
    directory = begun(tmp_path / "run")
    (directory / "run.json").write_text(json.dumps(document))
    lines = ["epoch,split,site,train_loss,samples,loss,accuracy,auc,auc_error"]  # from before there were folds
    lines += ["0,validation,null,1,9,9,0.1,0.1,0", "0,test,pooled,,30,0.5,0.8,0.9,0.001", "0,test,null,,20,inf,0.75,,"]
    lines += ["0,test,1e5,,10,0.25,1.0,1.0,0.0", "0,test,quiet,,0,,,,"]
    (directory / "metrics.csv").write_text("\n".join(lines) + "\n")
    run = read_results(directory)
    assert run.test == {"samples": 30, "loss": 0.5, "accuracy": 0.8, "auc": 0.9, "auc_error": 0.001}
    assert run.by_site == {
        "null": {"samples": 20, "accuracy": 0.75},
        "1e5": {"samples": 10, "loss": 0.25, "accuracy": 1.0, "auc": 1.0, "auc_error": 0.0},
        "quiet": {"samples": 0},
    }
    page = Page(report(directory))
    assert ["null", "20", "–", "0.750", "–"] in page.rows
    assert ["quiet", "0", "–", "–", "–"] in page.rows


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    ("model", "guess", "ends", "said"),
    [
        (0.75, 0.62, (0.08, 0.18), "0.130 higher, which is better (95 % interval of the difference 0.080 to 0.180)"),
        (0.65, 0.62, (-0.02, 0.08), "which includes 0: these rows do not show which of the two is better"),
        (0.5, 0.62, (-0.17, -0.07), "0.120 lower, which is worse"),
        (0.75, 0.62, None, "The model's AUC is 0.750 (95 % interval 0.700 to 0.800)."),
    ],
)
def test_the_guess_that_knows_only_the_site_is_told_from_the_model(
    finished: Path, model: float, guess: float, ends: tuple[float, float] | None, said: str
) -> None:
    metrics = json.loads((finished / "summary.json").read_text())["metrics"]
    interval = {"auc": {"low": model - 0.05, "high": model + 0.05, "method": "DeLong"}}
    values = {"test": {"samples": 9, "auc": model}, "site_alone": {"auc": guess}, "within_sites": {"auc": 0.7}}
    apart = {"value": model - guess, "low": ends[0], "high": ends[1], "method": "paired DeLong"} if ends else None
    differences = {"baseline": {"auc": apart}} if apart else {}
    change(finished, metrics=metrics | values | {"intervals": interval, "differences": differences})
    page = Page(report(finished))
    assert said in page.text.replace("\N{NO-BREAK SPACE}", " ")
    assert ("make the pooled AUC look better" in page.text) == (model > 0.72)


@pytest.mark.usefixtures("no_figures")
def test_folds_of_a_number(tmp_path: Path) -> None:
    task = {"name": "regression"}
    spread = {"mean": 2.9, "sd": 0.2, "count": 2, "missing": 1}
    metrics = {
        "test": {"samples": 60, "loss": 0.0123, "mae": 2.9, "r2": 0.7, "pearson_r": 0.85, "auc_error": None},
        "folds": {"mae": spread},
        "sites": {"mae": spread},
        "baseline": {"mae": 4.0, "r2": 0.4, "pearson_r": 0.7},
        "within_sites": {"r2": 0.5, "pearson_r": 0.72},
    }
    directory = begun(tmp_path / "folds", metrics=metrics)
    changes: dict[str, Any] = {"task": task, "evaluation": {"name": "k-fold", "folds": 4, "refit": False}}
    (directory / "run.json").write_text(json.dumps(run_document(**changes)))
    lines = ["fold,epoch,split,site,train_loss,samples,mae", "0,2,test,pooled,,30,2.7", "1,1,test,pooled,,30,3.1"]
    (directory / "metrics.csv").write_text("\n".join(lines) + "\n")
    text = Page(report(directory)).text
    assert "So far 2 of 4 folds are tested." in text
    assert "the last epoch, 1 to 2" in narrative.tested_epochs(read_results(directory))
    assert "MAE 2.900 2.900 ± 0.200 2.900 ± 0.200 2 of 3 – 4.000" in text
    assert "loss 0.0123 " in text
    assert "reaches r = 0.700 and R² = 0.400" in text
    assert "Its squared error over all rows is 50 % smaller" in text
    changes["evaluation"] = {"name": "leave-one-site-out"}
    (directory / "run.json").write_text(json.dumps(run_document(**changes)))
    text = Page(report(directory)).text
    assert "Leave one hospital out: each of" in text
    assert "The final model was trained once more" in text
    assert "knows only the hospital" not in text


def test_without_matplotlib_the_page_says_what_it_lacks(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "rankdad.remote.report.run_plots")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = finished / "page.html"
    done = rankdad("report", finished, "--output", path)
    assert done.exit_code == 0
    assert "pip install 'rankdad[plots]'" in done.stderr
    page = Page(path.read_text(encoding="utf-8"))
    assert "pip install 'rankdad[plots]'" in page.text
    assert "img" not in dict(page.tags)


@pytest.mark.exhaustive
def test_the_page_says_which_settings_were_chosen_and_what_that_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = run_spec(
        method={"name": "rank-dad", "rank": 2},
        evaluation={"name": "k-fold", "folds": 2},
        training={"epochs": 2, "validation": 0.3},
        tuning={"weight_decay": [0.0, 0.5], "rank": [1, 2]},
    )
    run(spec, written_data(tmp_path / "data", spec, (90, 60, 31)), directory := tmp_path / "run")
    page, summary = Page(report(directory)), json.loads((directory / "summary.json").read_text())
    tuned, steps = summary["tuning"], read_results(directory).steps
    assert [one["model"] for one in tuned] == ["fold 1 of 2", "fold 2 of 2", "final model"]
    for place, (decay, rank) in enumerate([("0", "1"), ("0", "2"), ("0.5", "1"), ("0.5", "2")]):
        cells = []
        for one in tuned:
            tried = one["candidates"][place]
            cells.append(f"{tried['validation']:.3f} ({tried['best_epoch']})" + " ✓" * (one["chosen"] == place + 1))
        assert [decay, rank, "2", *cells] in page.rows
    own = steps["candidate"].isna()
    sent = steps["bytes_up"] + steps["bytes_down"]
    share = sum(one["held_out"] for one in tuned) / sum(one["samples"] for one in tuned)
    assert f"Each of 4 candidates was trained without {share:.0%}".replace("%", " %") in page.text
    assert f"took {len(steps) / own.sum():.1f} times as many steps" in page.text
    assert f"and {sent.sum() / sent[own].sum():.1f} times as many bytes" in page.text
    assert "2 folds of at most 2 epochs, then all samples once more, each after 4 candidates" in page.text
    show_result(summary, directory, read_results(directory).spec)
    kept = tuned[-1]["candidates"][tuned[-1]["chosen"] - 1]
    chosen = f"chosen:  weight decay {kept['weight_decay']:g}, rank {kept['rank']}, {kept['best_epoch']} epochs for the"
    assert f"{chosen} final model, of 4 candidates" in capsys.readouterr().out


@pytest.mark.slow
def test_a_language_models_page_explains_its_own_figures_alone(tmp_path: Path) -> None:
    spec = text_spec(task={"name": "language-model"}, evaluation={"name": "k-fold", "folds": 2})
    run(spec, text_data(tmp_path / "data", spec), tmp_path / "run")
    html = report(tmp_path / "run")
    assert "Bits per byte" in Page(html).text
    assert not re.findall("AUC|ccuracy|Brier", Page(html).text)
    assert not re.findall(r"</summary>\s*</details>", html)
