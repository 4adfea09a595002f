"""What others hear of data that cannot be used: nothing that the specification does not say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankdad.common.data import read_site
from rankdad.common.errors import public_reason
from rankdad.common.models import build_model
from rankdad.common.protocol.messages import Failure, failure_message
from rankdad.common.spec import RunSpec
from tests.common.data.readings import two_classes
from tests.common.faults import refused
from tests.conftest import run_spec

DATA: dict[str, Any] = {
    **{"reader": "csv", "file": "people.csv", "key": "id", "features": ["age", "dose"]},
    **{"label": "ill", "values": ["no", "yes"]},
}
ROWS = [f"p{row:03},{30 + row},{row}.5,{('no', 'yes')[row % 2]}" for row in range(30)]
TABLE = "\n".join(["id,age,dose,ill", *ROWS])


def run_of(**changes: Any) -> RunSpec:
    return two_classes(DATA | changes)


def table(old: str, new: str, count: int = 1) -> Callable[[Path], object]:
    return lambda folder: (folder / "people.csv").write_text(TABLE.replace(old, new, count))


def beside(text: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        (folder / "people.csv").write_text(TABLE)
        (folder / "psych_1987.csv").write_text(text)

    return write


BAD: dict[str, tuple[Callable[[Path], object], dict[str, Any]]] = {
    "no file": (lambda folder: (folder / "miller.csv").write_text(TABLE), {}),
    "empty": (lambda folder: (folder / "people.csv").write_text(""), {}),
    "no rows": (lambda folder: (folder / "people.csv").write_text("id,age,dose,ill\n"), {}),
    "bytes": (lambda folder: (folder / "people.csv").write_bytes(b"\xff\xfe\x00\x01"), {}),
    "a PDF": (lambda folder: (folder / "people.csv").write_bytes(b"%PDF-1.7"), {}),
    "no header": (lambda folder: (folder / "people.csv").write_text("\n".join(ROWS)), {}),
    "a header twice": (table("dose", "age"), {}),
    "a column is missing": (table("dose", "dosage_1987"), {}),
    "a word": (table("34,", "Miller,"), {}),
    "infinity": (table("34,", "1e400,"), {}),
    "a formula": (table("34,", "#REF!,"), {}),
    "a cell is missing": (table("34,", ","), {}),
    "another level": (table(",yes", ",Jane"), {}),
    "a label is missing": (table(",yes", ","), {}),
    "a key twice": (table("p004", "p003"), {}),
    "a key is missing": (table("p004", ""), {}),
    "a short row": (table(",4.5,", ","), {}),
    "a long row": (table(",4.5,", ",4.5,77,"), {}),
    "totals": (lambda folder: (folder / "people.csv").write_text(f"{TABLE}\nTotal,1335,450.0,\n"), {}),
    "other tables": (beside("secret_1987\n1\n"), {"file": "*.csv"}),
    "other tables with more": (beside(TABLE.replace("dose", "hiv")), {"file": "*.csv"}),
    "headers for which a pattern stands": (table("dose", "x" * 300), {"features": ["age", "x*"]}),
    "a pattern for none": (table("dose", "hiv"), {"features": ["age", "psych*"]}),
    "a pattern for text": (table(",4.5,", ",HIV,"), {"features": ["*"]}),
    "no covariates": (beside("key,secret_1987\n1,2\n"), {"covariates": "psych*.csv"}),
    "covariates of others": (beside("id,hiv\nq7,2\n"), {"covariates": "psych_1987.csv", "features": ["age", "hiv"]}),
    "a group that is missing": (lambda folder: (folder / "people.csv").write_text(TABLE), {"group": "family"}),
}  # fmt: skip


def words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]+|\d+", text))


@pytest.mark.parametrize("kind", BAD)
def test_others_hear_no_word_of_a_folder_that_is_not_in_the_specification(tmp_path: Path, kind: str) -> None:
    write, changes = BAD[kind]
    write(tmp_path)
    spec = run_of(**changes)
    error = refused(lambda: read_site(spec, tmp_path, 0))
    body = failure_message("alpha", 0, error).body
    assert isinstance(body, Failure)
    assert body.code == error.code
    told, public = f"{body.reason} {body.field}".replace(body.code, ""), words(spec.model_dump_json())
    assert not (set(re.findall(r"\d+", told)) - public)
    held = words(" ".join(f"{file.name} {file.read_bytes().decode(errors='replace')}" for file in tmp_path.iterdir()))
    assert not (words(told) & held) - public


def test_how_many_rows_lack_a_value_is_told_to_nobody(tmp_path: Path) -> None:
    """S5: who asked for one patient's row and some others heard by the count whether it was among them."""
    told = set[str]()
    for gaps in (1, 5):
        cells = [row.replace(",", ",,", 1).rsplit(",", 2) for row in ROWS[:gaps]]
        rows = [f"{row[0].split(',')[0]},,{row[1]},{row[2]}" for row in cells]
        (tmp_path / "people.csv").write_text("\n".join(["id,age,dose,ill", *rows, *ROWS[gaps:]]))
        told.add(public_reason(refused(lambda: read_site(run_of(), tmp_path, 0))))
    assert len(told) == 1


def test_a_pattern_of_files_tells_no_other_table(tmp_path: Path) -> None:
    """S14."""
    for name in ("psych_ward.csv", "psych_hiv.csv"):
        (tmp_path / name).write_text(TABLE if "hiv" in name else "id,depressed\n1,2\n")
    error = refused(lambda: read_site(run_of(file="psych*"), tmp_path, 0))
    assert any(name in str(error) for name in ("psych_ward.csv", "psych_hiv.csv"))
    assert not re.search("ward|hiv|depressed|age", public_reason(error).replace(error.code, ""))


def test_the_digest_of_weights_is_told_to_nobody(tmp_path: Path) -> None:
    """S20."""
    np.save(tmp_path / "own.npy", np.zeros(3))
    pretrained = {"file": "own.npy", "sha256": "0" * 64}
    spec = run_spec(model={"name": "mlp", "hidden": [4], "pretrained": pretrained})
    error = refused(lambda: build_model(spec, weights=tmp_path))
    assert (error.code, error.field) == ("digest-differs", "model.pretrained.sha256")
    assert re.search("[0-9a-f]{64}", str(error))
    assert not re.search("[0-9a-f]{64}", public_reason(error))
