"""What a hospital's people see of their log, and how it moves to another machine."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from rankdad.__main__ import app
from rankdad.common.errors import UserError
from rankdad.common.policy import Policy
from rankdad.common.protocol.messages import Kind, Message
from rankdad.local.agent.state import AUDIT
from rankdad.local.config import SiteConfig
from rankdad.local.privacy import archive
from rankdad.local.privacy.archive import sealed
from rankdad.local.privacy.assigning import purpose_of
from rankdad.local.privacy.cli import FIGURES
from rankdad.local.privacy.log import DisclosureLog
from rankdad.local.privacy.log_file import FILE
from rankdad.local.sent import Messages
from tests.conftest import run_spec
from tests.local.privacy.test_log import patients

POLICY = Policy(keyed_folds=False)
NAMES = [f"p{number}" for number in range(24)]
SPEC = run_spec(
    name="stroke",
    task={"name": "classification", "classes": 2},
    data={
        "reader": "csv",
        "file": "a.csv",
        "label": "dead",
        "values": ["no", "yes"],
        "features": ["age", "nihss"],
    },
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RANKDAD_PASSPHRASE", "correct horse battery")
    for name in ("alpha", "moved", "beta"):
        document = {"name": "beta" if name == "beta" else "alpha", "aggregator": "http://127.0.0.1:1", "data": "."}
        (tmp_path / f"{name}.json").write_text(json.dumps(document | {"output": f"{name}-result", "privacy": name}))
    (tmp_path / "own.json").write_text(POLICY.text())
    document = json.loads((tmp_path / "alpha.json").read_text())
    (tmp_path / "alpha.json").write_text(json.dumps(document | {"policy": "own.json"}))
    log, known = DisclosureLog(tmp_path / "alpha", "alpha"), ("0" * 16, purpose_of(SPEC), "key")
    log.parts(*known, patients(NAMES), 8, expected=log.parts(*known, patients(NAMES), 8))
    return tmp_path / "alpha.json"


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A passphrase that is as quick to guess as to check."""
    monkeypatch.setattr(archive, "COST", 16)


def said(*words: object) -> str:
    done = CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False, env={"COLUMNS": "200"})
    return done.output


def code(*words: object) -> str:
    with pytest.raises(UserError) as raised:
        said(*words)
    return raised.value.code


@pytest.mark.slow
def test_runs_are_listed_with_their_smallest_part_and_the_page_says_for_what(site: Path, tmp_path: Path) -> None:
    listed = said("disclosures", site)
    assert "stroke" in listed
    assert [cell.strip() for cell in listed.splitlines()[3].split("│")][4:7] == ["24", "3", "8"]
    log = DisclosureLog(tmp_path / "alpha", "alpha")
    assert log.tell("0" * 16, dict.fromkeys(NAMES[:3], 0.25), log.disclosed(None, NAMES[:3]), 0.5, anew=False)
    assert re.findall(r"\d+(?=[% ])", said("disclosures", site).splitlines()[-1]) == ["24", "25", "0", "50"]
    said("disclosures", site, "--report", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "25%" in page
    assert "may have left" in page
    assert all(word in page for word in ("age, nihss", "classification of dead", "alpha, beta, gamma", "24 in 3 parts"))
    assert all(word in page for word in ("<dd>key</dd>", "<dt>Outcome</dt><dd>dead</dd>", FIGURES["table-1"]))
    assert FIGURES["products"] not in page


def test_the_page_names_owners_and_shows_runs_of_which_an_older_version_noted_less(site: Path, tmp_path: Path) -> None:
    log = DisclosureLog(tmp_path / "alpha", "alpha")
    old = {"spec": "0", "name": "old", "task": "t", "method": "m", "columns": ["age"], "outcome": ["o"], "sites": []}
    for number, purpose in ((1, json.dumps(old)), (2, "{}")):
        known = str(number) * 16, purpose, "key", patients(NAMES), 8
        log.parts(*known, expected=log.parts(*known))
    log.count(f"{'1' * 16} 0", "dr-counted", 5, None)
    (tmp_path / "alpha-result").mkdir(exist_ok=True)
    line = {"what": "accepted", "id": "0" * 16, "owner": "dr-audited"}
    (tmp_path / "alpha-result" / AUDIT).write_text(json.dumps(line) + '\n{"what"')
    said("disclosures", site, "--report", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert re.findall("<dt>Owner</dt><dd>([a-z-]+)", page) == ["dr-audited", "dr-counted", "not"]
    assert page.count("not recorded by that version") == 2


def test_the_page_says_what_did_leave_and_of_whom_others_could_compute_values(site: Path, tmp_path: Path) -> None:
    """It listed sums of an exact solution of a run in steps, and was silent about a warning of the log."""
    spec = run_spec(**SPEC.document() | {"model": {"name": "linear"}, "training": {"solver": "auto"}})
    assert spec.trained_by == "exact or dsgd"
    log, results = DisclosureLog(tmp_path / "alpha", "alpha"), tmp_path / "alpha-result/runs/steps-1"
    known = "1" * 16, purpose_of(spec, ["steps of 8"]), "key", patients(NAMES), 8
    log.parts(*known, expected=log.parts(*known))
    results.mkdir(parents=True)
    (results / "run-id").write_text("1" * 16)
    with closing(Messages(results, spec)) as messages:
        for number, kind in enumerate((Kind.HELLO, Kind.STEP, Kind.STEP)):
            messages.note(Message(kind, number, cast(Any, None)), 1000)
    line = {"what": "accepted", "id": "1" * 16, "run": "steps-1", "owner": "anna"}
    (tmp_path / "alpha-result" / AUDIT).write_text(json.dumps(line))
    said("disclosures", site, "--report", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text().partition("<h2>steps-1</h2>")[2]
    assert all(word in page for word in ("by the method dsgd", "step: 2 messages, 2,000 bytes", "<dd>steps of 8</dd>"))
    assert FIGURES["products"] not in page
    assert "steps-1 (1111111111111111)" in said("disclosures", site)


def test_a_run_that_an_older_version_began_goes_on(site: Path, tmp_path: Path) -> None:
    """The log notes more of a run than it did, and refused what was interrupted before."""
    less = {key: value for key, value in json.loads(purpose_of(SPEC)).items() if key not in ("read", "figures")}
    log, known = DisclosureLog(tmp_path / "alpha", "alpha"), ("key", patients(NAMES), 8)
    began = log.parts("1" * 16, json.dumps(less), *known)
    assert log.parts("1" * 16, json.dumps(less), *known, expected=began) == began
    assert log.parts("1" * 16, purpose_of(SPEC), *known) == began


def test_a_withdrawn_patient_is_in_no_later_run_and_those_that_hold_them_are_named(site: Path, tmp_path: Path) -> None:
    told = said("purge", site, "p3 ", "nobody", "--yes", "--absent")
    first, second = told.splitlines()[:2]
    assert first.startswith("p3: included in sums of stroke (0000000000000000, 20")
    assert second == "nobody: not included in any run"
    log = DisclosureLog(tmp_path / "alpha", "alpha")
    later = log.parts("1" * 16, "{}", "key", patients([*NAMES, "nobody"]), 8)
    assert len(later) == 16
    assert "p3" not in later
    with pytest.raises(UserError) as raised:
        log.parts("0" * 16, purpose_of(SPEC), "key", patients([*NAMES, "nobody"]), 8)
    assert raised.value.code == "patient-withdrawn"


@pytest.mark.slow
def test_a_name_is_withdrawn_as_tables_have_it_or_refused(tmp_path: Path, site: Path) -> None:
    """It was done, said the command, and the patient stayed in use."""
    log = DisclosureLog(tmp_path / "alpha", "alpha")
    everyone = patients([*NAMES, *(f"Müller {number}" for number in range(8))])
    known = "1" * 16, purpose_of(SPEC), "key", everyone, 8
    assert len(log.parts(*known, expected=log.parts(*known))) == 32
    for name in ("P3", "MÜLLER-3", "nobody"):
        assert code("purge", site, "p4", name, "--yes") == "patient-unknown"
    assert len(log.parts("2" * 16, purpose_of(SPEC), "key", everyone, 8)) == 32
    said("purge", site, "Mu\u0308ller 3", "--yes")
    assert log.parts("3" * 16, "{}", "key", everyone, 8).keys() == set(NAMES)


@pytest.mark.slow
def test_the_log_moves_encrypted_and_never_onto_another(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = tmp_path / "log.rankdad"
    said("privacy", "export", site, moved)
    before = DisclosureLog(tmp_path / "alpha", "alpha")
    assert before.secret.value not in moved.read_bytes()
    assert code("privacy", "export", site, moved) == "cannot-write"
    assert code("privacy", "import", tmp_path / "beta.json", moved) == "log-of-another-site"
    (tmp_path / "policy.json").write_text(Policy(min_rows=20).text())
    assert code("privacy", "import", tmp_path / "moved.json", moved) == "policy-there-already"
    (tmp_path / "policy.json").unlink()
    said("privacy", "import", tmp_path / "moved.json", moved)
    assert Policy.read(str(tmp_path / "policy.json")) == POLICY
    after = DisclosureLog(tmp_path / "moved", "alpha")
    assert (after.secret, after.runs()) == (before.secret, before.runs())
    assert code("privacy", "import", tmp_path / "moved.json", moved) == "log-there-already"
    monkeypatch.setenv("RANKDAD_PASSPHRASE", "another passphrase")
    assert code("privacy", "import", tmp_path / "moved.json", moved) == "passphrase-wrong"
    moved.write_bytes(b"something else")
    assert code("privacy", "import", tmp_path / "moved.json", moved) == "not-an-export"


def test_a_restored_log_is_nowhere_without_its_policy(site: Path, tmp_path: Path, cheap: None) -> None:
    """With a read-only kit, the log was restored, and later commands found it there already."""
    moved, again = tmp_path / "log.rankdad", tmp_path / "moved.json"
    said("privacy", "export", site, moved)
    again.write_text(again.read_text().replace("{", '{"policy": "/proc/policy.json", ', 1))
    assert code("privacy", "import", again, moved) == "cannot-write"
    assert not (tmp_path / "moved" / FILE).exists()


def test_looking_makes_no_log(tmp_path: Path, site: Path) -> None:
    assert code("disclosures", tmp_path / "beta.json") == "no-log"
    assert not (tmp_path / "beta" / FILE).exists()


def test_runs_with_other_outputs_have_one_log(tmp_path: Path) -> None:
    document = {"name": "alpha", "aggregator": "http://127.0.0.1:1", "data": "."}
    found = set()
    for output in ("first", "second"):
        (tmp_path / "SITE.json").write_text(json.dumps(document | {"output": output}))
        found.add(SiteConfig.read(tmp_path / "SITE.json").privacy)
    assert found == {str(tmp_path / "privacy")}


TRIGGER = "CREATE TRIGGER forget AFTER INSERT ON runs BEGIN DELETE FROM patients; DELETE FROM used; END"


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize(
    "statement",
    [
        "",
        "rubbish",
        TRIGGER,
        "CREATE VIEW seen AS SELECT * FROM runs",
        "INSERT INTO site SELECT * FROM site",
        "DELETE FROM site",
        "UPDATE site SET secret = x''",
        "UPDATE site SET secret = 'a text of 32 letters, not bytes.'",
        "DROP TABLE withdrawn",
    ],
)
def test_a_log_is_whole_and_ours_before_it_is_put_in_place(tmp_path: Path, site: Path, statement: str) -> None:
    """A trigger made the log forget every run; nothing at all was taken for a new log."""
    content = statement.encode() * 200
    if statement not in ("", "rubbish"):
        shutil.copy(tmp_path / "alpha" / FILE, tmp_path / "copy")
        with closing(sqlite3.connect(tmp_path / "copy", isolation_level=None)) as copy:
            copy.execute(statement)
        content = (tmp_path / "copy").read_bytes()
    export = tmp_path / "log.rankdad"
    export.write_bytes(sealed("alpha", content, POLICY, "correct horse battery"))
    assert code("privacy", "import", tmp_path / "moved.json", export) == "log-unusable"
    assert not (tmp_path / "moved").exists() or list((tmp_path / "moved").iterdir()) == []
    assert not (tmp_path / "policy.json").exists()


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize(
    ("document", "expected"),
    [("[]", "field-invalid"), ("no JSON", "not-an-export"), ({}, "field-missing"), ({"log": "%%%"}, "not-an-export")],
)
def test_an_export_of_another_shape_is_refused(tmp_path: Path, site: Path, document: Any, expected: str) -> None:
    if document == {"log": "%%%"}:
        document = {"site": "alpha", "policy": POLICY.model_dump(mode="json"), **document}
    text = document if isinstance(document, str) else json.dumps(document)
    export = tmp_path / "log.rankdad"
    salt = b"s" * archive.SALT
    export.write_bytes(archive.MAGIC + salt + archive._cipher("correct horse battery", salt).encrypt(text.encode()))
    assert code("privacy", "import", tmp_path / "moved.json", export) == expected


@pytest.mark.slow
@pytest.mark.usefixtures("cheap")
def test_an_export_is_no_way_to_an_older_log(tmp_path: Path, site: Path) -> None:
    export = tmp_path / "log.rankdad"
    said("privacy", "export", site, export)
    said("purge", site, "p3", "--yes")
    (tmp_path / "alpha" / FILE).unlink()
    assert code("privacy", "import", site, export) == "log-too-old"
    assert not (tmp_path / "alpha" / FILE).exists()
