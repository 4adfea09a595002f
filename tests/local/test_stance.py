"""What a site answers an owner who asks: lines of its policy and what is installed, and nothing of its data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.protocol.service import Question, Stance
from rankdad.common.protocol.versions import OUR_VERSION
from rankdad.local.agent.stance import stance_on
from rankdad.local.privacy.log import DisclosureLog
from tests.conftest import run_document, site_config

TABLE = {
    "reader": "csv",
    "file": "visits.csv",
    "features": ["age", "sex", "weight"],
    "categorical": {"sex": ["f", "m"]},
    "label": "ill",
    "values": ["no", "yes", "maybe"],
    "group": "patient",
}


def stance(folder: Path, changes: dict[str, Any], lines: dict[str, Any], **own: Any) -> Stance:
    policy = folder / "policy.json"
    policy.write_text(json.dumps({"keyed_folds": True, "min_rows": 1, "rows_per_rank": None} | lines))
    places = {"data": str(folder / "nothing"), "output": str(folder / "out"), "privacy": str(folder / "privacy")}
    config = site_config(1, **places, policy=str(policy), **own)
    question = Question(id="0" * 16, **OUR_VERSION, owner="anna", spec=run_document(**changes))
    return stance_on(config, question)


@pytest.mark.parametrize(
    ("changes", "lines", "expected"),
    [
        ({}, {}, []),
        (
            {"data": TABLE},
            {"columns": ["age", "ill", "a secret"], "files": ["another.csv"], "group": "a secret person"},
            [
                ("files", "file-not-allowed", "visits.csv"),
                ("columns", "column-not-allowed", "patient, sex, weight"),
                ("group", "group-differs", '"patient"'),
            ],
        ),
        ({"model": {"name": "factory", "factory": "their.package:model"}}, {}, [("", "factory-not-allowed", "")]),
        ({"federation": {"sites": ["beta", "gamma"]}}, {}, [("", "site-unknown", "")]),
    ],
)
def test_every_refusing_line_is_told_and_no_name_that_the_draft_does_not_say(
    tmp_path: Path, changes: dict[str, Any], lines: dict[str, Any], expected: list[tuple[str, str, str]]
) -> None:
    found = stance(tmp_path, changes, lines)
    assert [(one.line, one.code, one.needed) for one in found.refusals] == expected
    assert "secret" not in found.model_dump_json()
    assert "nothing" not in found.model_dump_json()


def test_a_question_is_not_counted_but_an_owner_whose_runs_are_used_up_is_told(tmp_path: Path) -> None:
    limits = {"runs": 1, "keyed_folds": False}
    for _ in range(3):
        assert stance(tmp_path, {}, limits) == Stance()
    assert not (tmp_path / "privacy").exists()
    log = DisclosureLog(tmp_path / "privacy", site_config(1).name)
    log.count("a run", "anna", None, 1)
    assert [(one.line, one.code) for one in stance(tmp_path, {}, limits).refusals] == [("runs", "too-many-runs")]
    assert stance(tmp_path, {}, {"runs": 2}, approval="manual") == Stance(by_hand=True)
