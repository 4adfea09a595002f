"""What disclosure control costs: small parts of the benchmarks of parts, of an ordinary study, and of a check."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import check, ordinary, parts
from rankdad.common.spec import RunSpec
from rankdad.local import taking_part
from rankdad.local.config import SiteConfig
from tests.conftest import SHARED


@pytest.mark.slow
def test_interrupted_runs_go_on_and_differences_are_from_free_folds(tmp_path: Path) -> None:
    found = list(parts.runs_of(["diabetes"], [0], tmp_path, tmp_path, epochs=1))
    assert [one.policy for one in found] == list(parts.POLICIES)
    file = tmp_path / "runs.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[0]["test"]["mae"] = 0.0
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    again = list(parts.runs_of(["diabetes"], [0], tmp_path, tmp_path, epochs=1))
    assert again[1:] == found[1:]
    apart, error = parts.difference(again, "diabetes", "parts", "mae")
    assert (apart, error) == (found[1].test["mae"], 0.0)


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.skipif(not (SHARED / "heart").is_dir(), reason="the shared data are not here")
def test_a_part_has_rare_levels_more_often_than_a_hospital(tmp_path: Path) -> None:
    parts.write_heart(SHARED / "heart", tmp_path)
    by_site, by_part = (
        parts.merged(parts.run_of("heart", policy, 0, tmp_path), policy)
        for policy in ("parts, levels by site", "parts, levels by part")
    )
    assert [one.parts for one in by_site] == [10, 10, 2, 10]
    assert [(one.levels[0], one.touched) for one in by_site] == [(0, 2), (1, 3), (1, 5), (1, 2)]
    assert all(site.levels[0] < part.levels[0] for site, part in zip(by_site, by_part, strict=True))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_hospitals_of_a_hundred_take_part_in_an_ordinary_study_and_again_a_week_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordinary, "EPOCHS", 1)
    found = ordinary.both_studies(100, "steps", tmp_path)
    assert [one.refused for one in found] == [""] * 6
    assert {(one.number, one.patients, one.used, one.parts, one.smallest) for one in found} == {
        (1, 100, 100, 6, 16),
        (2, 102, 83, 5, 16),
    }
    for one in found:
        assert one.fold is not None
        assert all(2 * numbers < cells for numbers, cells in (one.whole, one.fold))


@pytest.mark.exhaustive
def test_a_hospital_of_forty_is_told_what_would_do(tmp_path: Path) -> None:
    first = [one for one in ordinary.both_studies(80, "steps", tmp_path) if one.number == 1]
    assert [one.refused for one in first] == [""] * 3
    (refused,) = {one.refused for one in ordinary.both_studies(40, "steps", tmp_path / "forty")}
    assert "at most 5 columns" in refused
    (refused,) = {one.refused for one in ordinary.both_studies(30, "steps", tmp_path / "fewer")}
    assert "fewer folds" in refused
    assert ordinary.least_count("exact", 2, high=300) == 190


@pytest.mark.slow
def test_a_check_knows_earlier_runs_and_makes_no_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an optimizer imports took two of the seconds in which a check has to answer."""
    used = check.write_site(tmp_path, 400, 12, 3)
    assert used[0] == 10
    assert max(used) > 10

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an optimizer is made")

    monkeypatch.setattr(taking_part, "Replica", refuse)
    taking_part.check_site(SiteConfig.read(tmp_path / "site.json"), RunSpec.read(tmp_path / "run.json"))
