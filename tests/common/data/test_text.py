"""Texts as tokens: what is read, and every fault named by row and column."""

from __future__ import annotations

import gzip
import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankdad.common.data.reading import Reading
from rankdad.common.data.table_files import read_table
from rankdad.common.data.text import read_text
from rankdad.common.documents import validate
from rankdad.common.spec.text import TextData
from tests.common.data.readings import inputs_of, labels_of, two_classes
from tests.common.faults import Fault, fault, refused

SCHEMA: dict[str, Any] = {
    **{"reader": "text", "file": "notes.csv", "column": "note", "label": "ill", "values": ["no", "yes"], "length": 8},
    **{"key": "id", "group": "patient"},
}
NOTES = 'id,patient,note,ill\n7,x,"a, b",no\n8,x,"ü\n9",yes\n9,y,hurt,no\n'


def read(folder: Path, notes: str | bytes = NOTES, *, predicts: bool = False, **changes: Any) -> Reading:
    (folder / "notes.csv").write_bytes(notes.encode() if isinstance(notes, str) else notes)
    return read_text(folder, validate(TextData, SCHEMA | changes), beside=() if predicts else None)


def tokens_of(*texts: bytes) -> list[list[int]]:
    return [([2, *(byte + 4 for byte in text), 3] + [0] * 8)[:8] for text in texts]


def test_texts_are_their_bytes_between_begin_and_end(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert inputs_of(found) == tokens_of(b"a, b", "ü\n9".encode(), b"hurt")
    assert np.asarray(found.inputs).dtype == np.int64
    assert (found.keys, labels_of(found), found.groups) == (("7", "8", "9"), [0, 1, 0], ("x", "x", "y"))


def test_files_hold_texts_too(tmp_path: Path) -> None:
    for name, text in (("a.txt", "\ufeffü "), ("b.txt", "bb")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = read(tmp_path, "id,patient,note,ill\n1,x,a.txt,no\n2,y,b.txt,yes\n", holds="file")
    assert inputs_of(found) == tokens_of("ü".encode(), b"bb")


@pytest.mark.parametrize(("longer", "kept"), [("first", [2, *(b + 4 for b in b"abcdefg")]),
                                              ("last", [*(b + 4 for b in b"defghij"), 3])])  # fmt: skip
def test_longer_texts_are_cut_where_the_schema_says(tmp_path: Path, longer: str, kept: list[int]) -> None:
    assert inputs_of(read(tmp_path, "id,patient,note,ill\n1,x,abcdefghij,no\n", longer=longer)) == [kept]


@pytest.mark.parametrize(
    ("notes", "changes", "expected"),
    [
        ("id,patient,note,ill\n1,x,a,no\n2,y,,yes\n", {}, ("text-empty", "note", 3)),
        ("id,patient,note,ill\n1,x, ,no\n2,y,NA,yes\n", {}, ("column-empty", "note", None)),
        ("id,patient,note,ill\n", {}, ("no-rows", "", None)),
        ("id,patient,note,ill\n1,x,abcdefghi,no\n", {}, ("text-too-long", "note", 2)),
        ("id,patient,note,ill\n1,x,bb.txt,no\n2,y,./bb.txt,yes\n", {"holds": "file"}, ("key-repeated", "note", 3)),
        ("id,patient,text,ill\n1,x,a,no\n", {}, ("column-missing", "note", None)),
        ("id,patient,note,ill\n1,x,a,no\n1,y,b,no\n", {}, ("key-repeated", "id", 3)),
        (b"id,patient,note,ill\n1,x,\xff\xe9,no\n", {}, ("encoding-unknown", "data.encoding", None)),
        ("id,patient,note,ill\n1,x,bad.txt,no\n", {"holds": "file"}, ("not-utf-8", "note", 2)),
        ("id,patient,note,ill\n1,x,empty.txt,no\n", {"holds": "file"}, ("text-empty", "note", 2)),
        ("id,patient,note,ill\n1,x,none.txt,no\n", {"holds": "file"}, ("file-missing", "note", 2)),
        ("id,patient,note,ill\n1,x,../bad.txt,no\n", {"holds": "file"}, ("path-leads-outside", "note", 2)),
    ],
)
def test_faults_are_named(tmp_path: Path, notes: str | bytes, changes: dict[str, Any], expected: Fault) -> None:
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9")
    (tmp_path / "empty.txt").write_bytes(b" \n")
    assert fault(lambda: read(tmp_path, notes, **changes), "caf") == expected


def test_a_text_too_long_says_how_long_the_longest_is(tmp_path: Path) -> None:
    found = refused(lambda: read(tmp_path, f"id,patient,note,ill\n1,x,{'a' * 9},no\n2,y,b,no\n3,z,{'a' * 40},no\n"))
    assert (found.row, "the longest has 42" in str(found)) == (2, True)


def test_a_table_to_predict_that_does_not_exist_is_named_as_it_was_given(tmp_path: Path) -> None:
    schema = validate(TextData, SCHEMA)
    for given, named in ((tmp_path / "new.csv", tmp_path / "new.csv"), (tmp_path / "new", tmp_path / "new/notes.csv")):
        assert str(refused(partial(read_text, given, schema, beside=()))).startswith(f"{named}: ")


def test_rows_without_a_text_are_left_out_where_the_schema_says(tmp_path: Path) -> None:
    found = read(tmp_path, "id,patient,note,ill\n1,x,a,no\n2,y,,yes\n3,z,b,\n4,z,c,yes\n", missing="drop")
    assert (found.keys, found.dropped) == (("1", "4"), 2)


def test_predictions_need_neither_label_nor_key_and_name_single_rows(tmp_path: Path) -> None:
    found = read(tmp_path, "note\na\nabcdefghi\nb\n", predicts=True)
    assert inputs_of(found) == tokens_of(b"a", b"b")
    assert found.rows is not None
    assert {row: error.code for row, error in found.rows.refused.items()} == {1: "text-too-long"}
    assert refused(lambda: read(tmp_path, "note\nabcdefghi\n", predicts=True)).code == "nothing-to-predict"


@pytest.mark.parametrize(
    ("end", "rows"), [('""\n', 4), ('""\n\n \n', 4), ("b\n\n\n", 4), ("b", 4), ("\n\n", 3), ("\r\n", 3), ('\n""', 5)]
)
@pytest.mark.parametrize("packed", [False, True])
def test_an_empty_cell_of_a_single_column_is_a_row(tmp_path: Path, end: str, rows: int, *, packed: bool) -> None:
    notes = f'note\na\n""\nb\n{end}'.encode()
    path = tmp_path / ("notes.csv.gz" if packed else "notes.csv")
    path.write_bytes(gzip.compress(notes) if packed else notes)
    found = read_table(path).frame["note"].tolist()
    assert (len(found), found[:3]) == (rows, ["a", "", "b"])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"label": "note"}, "data"),
        ({"group": "note"}, "data"),
        ({"key": "ill"}, "data"),
        ({"length": 2}, "data.length"),
    ],
)
def test_a_schema_that_contradicts_itself_is_refused(changes: dict[str, Any], field: str) -> None:
    assert fault(lambda: two_classes(SCHEMA | changes))[:2] == ("field-invalid", field)


def test_a_file_beyond_memory_is_named(tmp_path: Path) -> None:
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(1 << 42)  # takes no place
    found = fault(lambda: read(tmp_path, "id,patient,note,ill\n1,x,huge.txt,no\n", holds="file"))
    assert found == ("out-of-memory", "note", 2)


@pytest.mark.parametrize("broken", [{"vocab": {"a": 0}}, {"pattern": "(a|a|aa)+$"}])
def test_a_tokenizer_that_fails_at_a_text_is_named(tmp_path: Path, broken: dict[str, Any]) -> None:
    """Of an endless pattern the library panics, which is no Exception."""
    pytest.importorskip("tokenizers")
    pattern, vocab = broken.get("pattern", " "), broken.get("vocab", {"a": 0, "?": 1})
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    document: dict[str, Any] = {"version": "1.0", "added_tokens": [], "pre_tokenizer": split, "normalizer": None}
    document |= {"post_processor": None, "decoder": None, "truncation": None, "padding": None}
    document["model"] = {"type": "WordLevel", "vocab": vocab, "unk_token": "?"}
    content = json.dumps(document).encode()
    (tmp_path / "t.json").write_bytes(content)
    tokenizer = {"file": "t.json", "sha256": hashlib.sha256(content).hexdigest(), "tokens": 9}
    notes = f"id,patient,note,ill\n1,x,{'a' * 40}b,no\n"
    found = fault(lambda: read(tmp_path, notes, length=64, tokenizer=tokenizer))
    assert found[:2] == ("not-a-tokenizer", "data.tokenizer.file")
