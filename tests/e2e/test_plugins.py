"""Methods and rounds of other packages: found by entry points, admitted by a site that names them, run by processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sklearn.datasets import load_diabetes

from tests.conftest import run_document

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "tests" / "plugins"
SETTINGS = [
    'run.method={"name": "signsgd"}',
    'run.model={"name": "mlp", "hidden": [64]}',
    'run.training.optimizer={"name": "sgd", "lr": 0.003}',
    "run.training.epochs=6",
]


def python(*line: str | Path, path: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), path)))}
    return subprocess.run(
        [sys.executable, *map(str, line)], env=environment, capture_output=True, text=True, check=False, timeout=200
    )


def simulated(output: Path, policy: dict[str, Any], *, installed: bool = True) -> subprocess.CompletedProcess[str]:
    changes = [*SETTINGS, f"simulation.policy={json.dumps(policy)}"]
    line = ("-m", "rankdad", "simulate", ROOT / "simulations" / "specs" / "digits.json", "--output", output)
    words = (word for change in changes for word in ("--set", change))
    return python(*line, *words, path=str(PLUGINS) if installed else "")


@pytest.mark.exhaustive
def test_a_method_of_another_package_trains_digits(tmp_path: Path) -> None:
    done = simulated(tmp_path / "run", {"methods": ["signsgd"], "rows_per_rank": None})
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["method"] == "signsgd"
    assert summary["metrics"]["test"]["auc"] > 0.98
    assert len(set(summary["weights_sha256"].values())) == 1


@pytest.mark.exhaustive
def test_a_policy_that_does_not_name_it_admits_none(tmp_path: Path) -> None:
    done = simulated(tmp_path / "run", {"rows_per_rank": None})
    assert done.returncode != 0
    assert "[policy-refuses]" in done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("changes", "code"),
    [({"method": {"name": "signsgd"}}, "name-unknown"), ({"record": {"rounds": ["mean-age"]}}, "field-invalid")],
)
def test_a_spec_cannot_name_what_is_not_installed(tmp_path: Path, changes: dict[str, Any], code: str) -> None:
    (tmp_path / "run.json").write_text(json.dumps(run_document(**changes)))
    line = ("-m", "rankdad", "check", tmp_path / "run.json")
    assert f"[{code}]" in python(*line).stderr
    assert python(*line, path=str(PLUGINS)).returncode == 0


def asked(output: Path, *words: str) -> subprocess.CompletedProcess[str]:
    changes = ['run.record.rounds=["mean-age"]', 'run.evaluation={"name": "holdout"}', "run.training.epochs=2"]
    line = ("-m", "rankdad", "simulate", ROOT / "simulations" / "specs" / "diabetes.json", "--output", output)
    return python(*line, *words, *(word for change in changes for word in ("--set", change)), path=str(PLUGINS))


@pytest.mark.exhaustive
def test_a_round_of_another_package_is_held_once_and_what_it_finds_is_in_the_summary(tmp_path: Path) -> None:
    code = "rankdad_mean_age:MeanAge@rankdad-mean-age==1.0"
    done = asked(tmp_path / "run", "--allow-factory", code)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    ages = load_diabetes(scaled=False).data[:, 0]
    assert summary["rounds"] == {"mean-age": {"patients": len(ages), "years": pytest.approx(ages.mean(), rel=1e-6)}}
    assert [(one["name"], one["version"]) for one in summary["functions"]] == [(code.partition("@")[0], "1.0")]


@pytest.mark.exhaustive
def test_a_site_that_does_not_list_its_code_takes_no_part(tmp_path: Path) -> None:
    done = asked(tmp_path / "run")
    assert done.returncode != 0
    assert "[factory-not-allowed]" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("points", "code", "named"),
    [
        ("[rankdad.methods]\nother = nowhere:Method", "method-unusable", {"method": {"name": "other"}}),
        ("[rankdad.methods]\nother = rankdad.common.methods.dad:Dad", "method-name-taken", {}),
        (
            "[rankdad.methods]\nother = rankdad_signsgd:SignSgd\nsame = rankdad_signsgd:SignSgd",
            "method-name-taken",
            {"method": {"name": "signsgd"}},
        ),
        ("[rankdad.rounds]\nother = nowhere:Round", "round-unusable", {"record": {"rounds": ["other"]}}),
        (
            "[rankdad.rounds]\nother = rankdad.common.rounds.sums:SumsRound",
            "round-number-taken",
            {"record": {"rounds": ["other"]}},
        ),
    ],
)
def test_an_entry_point_that_cannot_be_used_stops_runs_that_name_it_and_no_other(
    tmp_path: Path, points: str, code: str, named: dict[str, Any]
) -> None:
    """It stopped all commands."""
    (tmp_path / "other-1.dist-info").mkdir()
    (tmp_path / "other-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (tmp_path / "other-1.dist-info" / "entry_points.txt").write_text(f"{points}\n")
    (tmp_path / "rankdad_signsgd.py").write_text((PLUGINS / "rankdad_signsgd.py").read_text())
    method = named.get("method", {"name": "dad"})["name"]
    listed = python("-c", f"import rankdad.common.policy as p; p.Policy(methods=({method!r},))", path=str(tmp_path))
    assert listed.returncode == 0, "a site's policy may still list it"
    for changes in ({}, named):
        (tmp_path / "run.json").write_text(json.dumps(run_document(**changes)))
        done = python("-m", "rankdad", "check", tmp_path / "run.json", path=str(tmp_path))
        assert "Traceback" not in done.stderr
        assert len(re.findall(r"WARNING .*, an entry point of rankdad\.", done.stderr)) == 1
        assert (done.returncode, f"[{code}]" in done.stderr) == ((2, True) if changes else (0, False)), done.stderr
