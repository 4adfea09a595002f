"""What reports call columns and values, and what a page before its appendix does not say."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.documents import validate
from rankdad.common.errors import UserError
from rankdad.common.spec import RunSpec
from rankdad.common.spec.written import Tabular
from rankdad.remote.report.plot_style import shortened
from rankdad.remote.report.run_report import report_page
from rankdad.remote.report.verdict import topics
from rankdad.remote.report.words import significant
from rankdad.remote.results.coefficients import _captions
from rankdad.remote.results.run_results import class_names, read_results
from rankdad.remote.results.table_one import outcome_names
from tests.conftest import run_document
from tests.remote.report.test_sentences import ends, hospital, risk, run

TABLE: dict[str, Any] = {
    "reader": "csv",
    "file": "heart.csv",
    "features": ["age", "cp"],
    "categorical": {"cp": ["1", "4"]},
    "label": "num",
    "values": ["no", "yes"],
}
CAPTIONS = {"num": "heart disease", "cp": "chest pain", "cp = 4": "no chest pain"}


def spec(captions: dict[str, str], **data: Any) -> RunSpec:
    task = {"name": "classification", "classes": len((TABLE | data)["values"])}
    document = run_document(task=task, data=TABLE | data | ({"captions": captions} if captions else {}))
    return validate(RunSpec, document)


def test_the_second_of_two_classes_is_called_what_the_label_is() -> None:
    two, three = spec(CAPTIONS), spec({"num": "stage"}, values=["1", "2", "3"])
    assert [outcome_names(two)(place) for place in range(2)] == ["heart disease = no", "heart disease"]
    assert [outcome_names(three)(place) for place in range(3)] == ["stage = 1", "stage = 2", "stage = 3"]
    assert outcome_names(spec({}))(1) == "num = yes"
    assert class_names(spec({"num = yes": "ill"})) == ["no", "ill"]
    assert _captions(two) == {
        "age": "age",
        "age is missing": "age is missing",
        "cp": "chest pain",
        "cp=1": "chest pain = 1",
        "cp=4": "no chest pain",
        "cp is missing": "chest pain is missing",
        "num": "heart disease",
        "num=no": "heart disease = no",
        "num=yes": "heart disease = yes",
        "num is missing": "heart disease is missing",
    }
    logged = {"age": "ln(age)"}  # its coefficient is for one unit of that
    assert _captions(spec({}, log=["age"])) == logged
    assert _captions(spec(CAPTIONS | {"age": "years"}, log=["age"]))["age"] == "ln(years)"


@pytest.mark.parametrize(
    "captions",
    [
        {"nom": "x"},
        {"cp = 2": "x"},
        {"age": "cp"},
        {"num = no": "the same", "num = yes": "the same"},
        {"num": ""},
        {"num": "two\nlines"},
        {"num": "x" * 81},
    ],
)
def test_a_caption_is_of_a_column_or_value_and_of_one_alone(captions: dict[str, str]) -> None:
    with pytest.raises(UserError) as caught:
        spec(captions)
    assert "captions" in str(caught.value)


def test_a_pattern_may_stand_for_the_column_of_a_caption() -> None:
    data = spec({"cp": "chest pain"}, features=["age", "c*"], categorical={}).data
    assert isinstance(data, Tabular)
    assert data.called("cp") == "chest pain"


def test_a_spec_without_captions_is_the_one_it_was() -> None:
    assert "captions" not in spec({}).document()["data"]
    assert spec(CAPTIONS).sha256() != spec({}).sha256()


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_a_hospital_worse_than_a_guess_has_an_interval_and_a_link_to_its_calibration() -> None:
    difference = {"baseline_loss_difference": 0.1, "baseline_loss_difference_low": 0.05}
    rows = [
        hospital(site, loss=0.6, baseline_loss=0.5, **difference, baseline_loss_difference_high=0.15)
        for site in ("north", "south")
    ]
    sites = [
        {
            "site": site,
            "samples": 90,
            "events": 30,
            "expected": 30.0,
            "observed_expected": {"value": 1.0, "low": 0.9, "high": 1.1},
            "recalibration": {},
        }
        for site in ("north", "south")
    ]
    calibration = {"outcome": 1, "differ": {"in_the_large": 0.5, "slope": 0.5}, "sites": sites}
    more: dict[str, Any] = {
        "auc": 0.7,
        "auc_interval": None,
        "average_precision": 0.6,
        "average_precision_error": 0.0,
        "thresholds": [],
    }
    one = risk(ends(1, 0.9, 1.1, error=0.0), ends(0, -0.1, 0.1, error=0.0), **more, brier=0.2, brier_of_prevalence=0.2)
    found = run(sites=rows, calibration_by_site=[calibration], risks=[one])
    (sentence,) = [one for one in topics(found)["Hospital by hospital"] if one.code == "worse-than-guess"]
    assert sentence.text.count("0.050 to 0.150") == 2
    html = report_page(found)
    for place, site in enumerate(("north", "south"), 1):
        assert f'<a href="#calibration-{place}">{site}: calibration</a>' in html
        assert f'<tr id="calibration-{place}"><th scope="row">{site}</th>' in html


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_before_the_appendix_are_no_hashes_epochs_bytes_or_exponents(trained: Path) -> None:
    found = read_results(trained)
    undertrained = {"warning": "training ended too early: the last epoch was the best (training.epochs)"}
    found = replace(found, summary=found.summary.model_copy(update={"undertrained": undertrained}))
    html = re.sub("<style>.*?</style>", "", report_page(found), flags=re.DOTALL)
    before, appendix = html.split('<h2 id="appendix">')
    text = re.sub("<[^>]*>", " ", before)
    assert not re.search(r"sha256|[0-9a-f]{16}|epoch|optimizer|\b[KMG]B\b|\d[eE][+-]?\d|rank-dad|min_rows", text)
    assert all(word in appendix for word in ("sha256", "last epoch was the best", "a full gradient is"))
    assert "it was best at the end of training" in text


def test_numbers_have_no_exponents_and_names_fit() -> None:
    shown = [significant(value) for value in (1.234e-7, -123456.0, 0.5, float("nan"), 1e300)]
    assert shown[:4] == ["0.000000123", "−123,000", "0.5", "–"]
    assert "e" not in json.dumps(shown[4])
    assert len(shortened("a" * 40, 15)) <= 15
