"""The examples: the commands of each page, run in a copy of its folder, say what the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest

from rankdad.common.documents import load_json
from tests.pages import programs, unsaid

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]


@dataclass
class Page:
    """What a page shows, and what its commands have said."""

    folder: Path
    statuses: list[int]
    said: list[str]

    def check(self, *statuses: int) -> None:
        """Check each command's status, and that each line of output on the page is one that was said."""
        assert self.statuses == list(statuses), "\n".join(self.said)
        shown = blocks(self.folder, "text")
        assert shown
        assert [line for block in shown for line in unsaid(block, self.said)] == []


def blocks(folder: Path, kind: str) -> list[str]:
    """The page's blocks of one kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", (folder / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def followed(name: str, folder: Path) -> Page:
    """Do what a page says."""
    own = folder / name
    shutil.copytree(ROOT / "examples" / name, own)
    path = programs(folder / "programs")
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    page = Page(own, [], [])
    for command in "".join(blocks(own, "sh")).replace("\\\n", "").splitlines():
        done = subprocess.run(
            ["sh", "-c", command], cwd=own, env=environment, stdout=-1, stderr=subprocess.STDOUT, text=True, check=False
        )
        page.statuses.append(done.returncode)
        page.said.append(done.stdout)
    return page


@pytest.mark.exhaustive
def test_tables(tmp_path: Path) -> None:
    page = followed("tables", tmp_path)
    page.check(0, 0, 0, 0)
    summary = load_json(page.folder / "result" / "summary.json")
    assert summary["metrics"]["test"]["auc"] == pytest.approx(0.7553, abs=0.003)
    assert len(set(summary["weights_sha256"].values())) == 1
    tested = pd.concat(map(pd.read_csv, (page.folder / "result").glob("sites/*/predictions/fold-*.csv")))
    assert sorted(tested["patient"]) == sorted(
        pd.concat(map(pd.read_csv, page.folder.glob("data/*/patients.csv")))["patient"]
    ), "each patient is predicted once"
    assert "readmitted" in (page.folder / "result" / "report.html").read_text()


def test_the_study_of_tables_is_what_init_writes(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from rankdad.__main__ import app

    subprocess.run([sys.executable, ROOT / "examples" / "tables" / "data.py"], cwd=tmp_path, check=True)
    words = ["init", str(tmp_path / "data"), "--label", "readmitted", "--output", str(tmp_path / "study.json")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found, kept = load_json(tmp_path / "study.json"), load_json(ROOT / "examples" / "tables" / "study.json")
    assert found.pop("notes")
    found["simulation"]["source"]["path"] = "data"
    assert found == kept


@pytest.mark.exhaustive
def test_loop(tmp_path: Path) -> None:
    page = followed("loop", tmp_path)
    page.check(0, 0, 0)
    first, resumed, whole = (re.findall("weights ([0-9a-f]{16})$", said, re.MULTILINE) for said in page.said)
    assert len(first) == len(resumed) == 2
    assert first[0] == first[1] != resumed[0]
    assert set(resumed) == set(whole), "equal at both ranks, and with a break or without"


@pytest.mark.exhaustive
@pytest.mark.skipif(find_spec("monai") is None, reason="MONAI is not installed (pip install '.[monai]')")
def test_volumes(tmp_path: Path) -> None:
    page = followed("volumes", tmp_path)
    page.check(0, 0, 0)
    summary = load_json(page.folder / "result" / "summary.json")
    assert len(set(summary["weights_sha256"].values())) == 1
    assert summary["bytes_up_per_site_step"] < 150_000


@pytest.mark.exhaustive
def test_own_code(tmp_path: Path) -> None:
    page = followed("own-code", tmp_path)
    page.check(0, 0, 0, 2)
    assert ["[factory-not-allowed]" in said for said in page.said] == [False, False, False, True]
    assert "hospital-a can take part in rhythm" in page.said[2]
    assert load_json(page.folder / "result" / "summary.json")["metrics"]["test"]["auc"] > 0.9
