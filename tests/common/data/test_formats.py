"""Files that are not what their names say: each in one sentence, and never by reading what does not fit."""

from __future__ import annotations

import gzip
import io
import struct
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rankdad.common import memory
from rankdad.common.data import read_samples, read_site
from rankdad.common.data.npz import read_arrays, read_npz
from rankdad.common.data.table_files import read_table
from rankdad.common.errors import DataError
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import NpzData
from rankdad.common.spec.tasks import Classification
from tests.conftest import examples, run_spec

TABLE = b"id,age,sex,group\n1,30,M,0\n2,40,F,1\n3,50,M,0\n4,60,F,1\n"
DATA: dict[str, Any] = {
    "csv": {"reader": "csv", "file": "data.csv", "key": "id", "features": ["age"], "label": "group", "values": [0, 1]},
    "series": {
        "reader": "series",
        "file": "data.csv",
        "key": "id",
        "time": "age",
        "features": ["score"],
        "frames": 9,
        "label": "group",
        "values": [0, 1],
    },
    "images": {"reader": "images", "file": "data.csv", "size": [2, 2], "label": "group", "values": [0, 1]},
    "freesurfer": {
        "reader": "freesurfer",
        "covariates": "people.csv",
        "key": "file",
        "features": ["Left-Amygdala"],
        "label": "group",
        "values": [0, 1],
    },
    "npz": {"reader": "npz", "file": "data.csv", "shape": [6]},
}
MODEL = {"series": {"name": "gru", "hidden": [4]}, "images": {"name": "cnn", "filters": [4]}}


def spec_of(reader: str, **changes: Any) -> RunSpec:
    task = {"name": "classification", "classes": 2}
    return run_spec(task=task, data=DATA[reader] | changes, model=MODEL.get(reader, {"name": "linear"}))


def archived(name: str, data: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)  # without the time: names of tests hold it
    return made.getvalue()


FOREIGN: list[tuple[bytes, str]] = [
    (archived("xl/workbook.xml", TABLE), r"is a workbook \(.xlsx, .ods\) or another zip archive, expected"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500), r"is an old workbook \(.xls\)"),
    (b"%PDF-1.7\n%\xe2\xe3", "is a PDF"),
    (gzip.compress(TABLE), "is compressed with gzip"),
    (b"PAR1\x15\x04", "is a Parquet file"),
    (TABLE.decode().encode("utf-16"), "is text in UTF-16"),
    (TABLE.decode().encode("utf-16-be"), "row 1: holds the character NUL"),
    (TABLE.decode().encode("utf-32"), "is text in UTF-32"),
    (b"\n  <!DOCTYPE html>\n<html><table><tr><td>id</td></tr></table>", r"is a web page \(HTML\)"),
    (b"\xef\xbb\xbf<TABLE border=1><tr><td>id", r"is a web page \(HTML\)"),
    (b'<?xml version="1.0"?><Workbook>', "is an XML file"),
    (b"\x93NUMPY\x01\x00", "is a npy file of one array"),
    (TABLE.replace(b"\n3,", b"\n\x003,"), "row 4: holds the character NUL"),
    (b"x" * 70_000 + b"\n\n\0", "row 3: holds the character NUL"),
]


@pytest.mark.parametrize("reader", ["csv", "series", "images"])
@pytest.mark.parametrize(("data", "said"), FOREIGN, ids=[said for _, said in FOREIGN])
def test_a_file_that_is_no_text_is_said_to_be_what_it_is(tmp_path: Path, reader: str, data: bytes, said: str) -> None:
    (tmp_path / "data.csv").write_bytes(data)
    with pytest.raises(DataError, match=rf"data\.csv: {said}"):
        read_site(spec_of(reader), tmp_path, 0)


def test_a_subjects_file_that_is_no_text_is_said_without_its_name(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("file,group\njane,0\nroe,1\n")
    (tmp_path / "jane").write_bytes(b"%PDF-1.7")
    with pytest.raises(DataError, match="jane: is a PDF, expected a subject's statistics as text") as error:
        read_site(spec_of("freesurfer"), tmp_path, 0)
    assert "jane" not in error.value.public_message


TABLES: list[tuple[bytes, str]] = [
    (
        b"Patients 2024,,,\n" + TABLE,
        "has no column id: its first row has 'Patients 2024' alone: remove what stands above",
    ),
    (TABLE.partition(b"\n")[2], "has no column id: its first row holds numbers, where names are expected"),
    (b"7,7\n8,8\n", "has two columns '7': its first row holds numbers, where"),
    (b"", "is empty, expected a row of column names"),
    (b"\xef\xbb\xbf", "is empty|has nothing in its first row"),
    (b"\n\n" + TABLE, "has nothing in its first row, expected a row of column names"),
    (b"\n" * 99, "has nothing in its first row"),
    (TABLE.partition(b"\n2")[0] + b"\n", "has one sample, expected at least two: fewer are no training data"),
    (TABLE.replace(b"30", b"3\xff"), "is not text in UTF-8"),
]


@pytest.mark.parametrize(("data", "said"), TABLES, ids=[said[:30] for _, said in TABLES])
def test_what_spreadsheets_and_people_leave_out_or_add_is_said(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "data.csv").write_bytes(data)
    with pytest.raises(DataError, match=rf"data\.csv: ({said})"):
        read_site(spec_of("csv"), tmp_path, 0)


def test_a_folder_in_a_files_place_is_said_by_every_reader(tmp_path: Path) -> None:
    (tmp_path / "data.csv").mkdir()
    (tmp_path / "people.csv").mkdir()
    for reader in DATA:
        with pytest.raises(DataError, match="is not a file but a folder"):
            read_site(spec_of(reader), tmp_path, 0)


@pytest.mark.parametrize("reader", ["npz", "csv"])
def test_one_sample_is_no_training_data_but_can_be_predicted(tmp_path: Path, reader: str) -> None:
    with (tmp_path / "data.csv").open("wb") as file:
        if reader == "npz":
            np.savez(file, x=np.zeros((1, 6)), y=[0])
        else:
            file.write(TABLE[:26])
    assert len(read_samples(spec_of(reader), tmp_path, beside=()).inputs) == 1
    with pytest.raises(DataError, match="has one sample, expected at least two"):
        read_site(spec_of(reader), tmp_path, 0)


def npy(shape: str, descr: str = "'<f8'", data: bytes = bytes(96), version: bytes = b"\x01\x00") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    size = struct.pack("<H" if version == b"\x01\x00" else "<I", len(header))
    return b"\x93NUMPY" + version + size + header + data


def npz(folder: Path, arrays: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(folder / "data.npz", "w", compression) as archive:
        for name, data in arrays.items():
            archive.writestr(f"{name}.npy", data)
    return folder / "data.npz"


X = npy("(2, 6)")
LIES: list[dict[str, bytes]] = [
    {"x": npy("(1000000000000, 6)")},
    {"x": npy("(18446744073709551617, 1)", "'<i1'")},
    {"x": npy("(-1, 6)")},
    {"x": npy("(2, 5)")},
    {"x": X, "y": npy("(3,)", data=bytes(8))},
    {"x": X[6:]},
    {"x": b""},
    {"x": npy("(12,)", "'|O'")},
    {"x": npy("(" + "(" * 9000)},
    {"x": npy("(2, 6)", "-" * 9000 + "1")},
    {"x": b"\x93NUMPY\x01\x00\xff\xff{'descr'"},
]


def read(path: Path) -> None:
    read_npz(path, NpzData(shape=(6,)), Classification(classes=3), "float32")


@pytest.mark.parametrize("arrays", LIES)
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_arrays_that_are_not_what_they_say_are_refused(
    tmp_path: Path, arrays: dict[str, bytes], compression: int
) -> None:
    with pytest.raises(DataError) as error:
        read(npz(tmp_path, arrays, compression))
    assert error.value.code == "npz-unreadable"
    assert len(str(error.value)) < 400


def test_records_are_no_numbers(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read(npz(tmp_path, {"x": npy("(2, 6)", "[('a', '<f4'), ('b', '<f4')]")}))
    assert error.value.code == "array-not-numbers"


def test_an_array_larger_than_the_memory_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = npz(tmp_path, {"x": npy("(200000, 6)", data=bytes(9_600_000))}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 20_000
    (tmp_path / "memory.max").write_text("9000000")
    monkeypatch.setattr(memory, "LIMITS", (tmp_path / "memory.max",))
    with pytest.raises(DataError, match=r"data\.npz: its arrays do not fit into memory: they take 0\.0 GiB"):
        read(path)
    (tmp_path / "memory.max").write_text("10000000")
    assert len(read_arrays(path, ["x"])["x"]) == 200_000


@pytest.mark.parametrize("reader", ["images", "series"])
def test_samples_larger_than_the_memory_are_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    text = {"images": "image,group\na.png,0\nb.png,1\n", "series": "id,age,score,group\na,1,2,0\nb,1,3,1\n"}[reader]
    (tmp_path / "data.csv").write_text(text)
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"")
    large: dict[str, Any] = {"images": {"size": [10**9, 10**9]}, "series": {"frames": 10**9}}
    (tmp_path / "memory.max").write_text(str(2**30))
    monkeypatch.setattr(memory, "LIMITS", (tmp_path / "memory.max",))
    with pytest.raises(DataError, match=r"samples of shape .* do not fit into memory"):
        read_samples(spec_of(reader, **large[reader]), tmp_path)


def flagged(data: bytes) -> bytes:
    """Say of an archive's only member that it is encrypted."""
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.index(mark) + place
        data = data[:at] + b"\x01\x00" + data[at + 2 :]
    return data


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (flagged(archived("x.npy", X)), "encrypted"),
        (archived("x.npy", X)[:-30], "is not a readable npz file of plain arrays"),
        (TABLE, "is not a readable npz file of plain arrays: BadZipFile"),
        (b"%PDF", "is not a readable npz file of plain arrays: it is a PDF"),
        (X, "is not a readable npz file of plain arrays: it is a npy file of one array"),
        (b"", "is not a readable npz file"),
    ],
)
def test_a_damaged_or_lying_archive_is_said(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "data.npz").write_bytes(data)
    with pytest.raises(DataError, match=said):
        read(tmp_path / "data.npz")


def test_a_nul_in_an_id_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((2, 6)), key=["a", "b\0c"])
    with pytest.raises(DataError, match="key holds the character NUL in row 1"):
        read(tmp_path / "data.npz")


PIECES = [
    b"id,age,sex,group\n",
    b"1,30,M,0\n",
    b'"',
    b",",
    b";",
    b"\n",
    b"\r",
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"sep=,\n",
]
PIECES += [
    b"id,age,score,group\n",
    b"a,1,2,0\n",
    b"b,2020-04-03 14:05,2,1\n",
    b"?",
    b"1e999",
    b"\xe2\x80\xa8",
    b"# Measure a, b, 1, c\n",
    b"\t",
]
TEXTS = st.binary() | st.lists(st.sampled_from(PIECES)).map(b"".join)


@st.composite
def changed(draw: st.DrawFn, whole: bytes) -> bytes:
    """A valid file with some bytes replaced, and maybe its end cut off."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(len(data) // 2, len(data)))] if draw(st.booleans()) else data)


def never_raises_anything_else(reader: Callable[[Path], object], data: bytes) -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        path.write_bytes(data)
        try:
            reader(path)
        except DataError as error:
            said = [str(error), error.public_message]
        else:
            said = []
    assert all(said)
    assert time.monotonic() - began < 5


@given(TEXTS)
@example(b"a,b\n1\n")
@example(b'"' * 9999)
def test_whatever_a_table_holds_it_is_data_or_one_sentence(data: bytes) -> None:
    never_raises_anything_else(read_table, data)
    never_raises_anything_else(lambda path: read_site(spec_of("csv"), path.parent, 0), data)


@given(TEXTS)
def test_whatever_series_hold_they_are_data_or_one_sentence(data: bytes) -> None:
    never_raises_anything_else(lambda path: read_site(spec_of("series"), path.parent, 0), data)


@given(st.binary() | changed(archived("x.npy", X)) | changed(X).map(lambda data: archived("x.npy", data)))
@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
def test_whatever_an_archive_holds_it_is_data_or_one_sentence(data: bytes) -> None:
    never_raises_anything_else(read, data)


def test_columns_of_lists_and_text_that_is_none_end_in_a_sentence(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    lists, broken = tmp_path / "lists.parquet", tmp_path / "broken.parquet"
    parquet.write_table(arrow.table({"age": [[1, 2], [3]]}), lists)
    assert read_table(lists).frame["age"].tolist() == ["[1 2]", "[3]"]
    offsets = arrow.array([0, 2], arrow.int32()).buffers()[1]
    text = arrow.Array.from_buffers(arrow.string(), 1, [None, offsets, arrow.py_buffer(b"\xff\xfe")])
    parquet.write_table(arrow.table({"age": text}), broken)
    with pytest.raises(DataError, match="is not a readable Parquet file"):
        read_table(broken)
