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

from rankdad.common import available_memory
from rankdad.common.data import read_samples, read_site
from rankdad.common.data.npz import read_arrays, read_npz
from rankdad.common.data.table_files import read_table
from rankdad.common.errors import DataError
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import NpzData
from rankdad.common.spec.tasks import Classification
from tests.common.faults import Fault, fault, refused
from tests.conftest import examples, run_spec

TABLE = b"id,age,sex,group\n1,30,M,0\n2,40,F,1\n3,50,M,0\n4,60,F,1\n"
OF_GROUP: dict[str, Any] = {"label": "group", "values": [0, 1]}
DATA: dict[str, Any] = {
    "csv": OF_GROUP | {"reader": "csv", "file": "data.csv", "key": "id", "features": ["age"]},
    "series": OF_GROUP
    | {"reader": "series", "file": "data.csv", "key": "id", "time": "age", "features": ["score"], "frames": 9},
    "images": OF_GROUP | {"reader": "images", "file": "data.csv", "size": [2, 2]},
    "freesurfer": OF_GROUP
    | {"reader": "freesurfer", "covariates": "people.csv", "key": "file", "features": ["Left-Amygdala"]},
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


FOREIGN: list[tuple[bytes, str, int | None]] = [
    (archived("xl/workbook.xml", TABLE), "workbook", None),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500), "old workbook", None),
    (b"%PDF-1.7\n%\xe2\xe3", "PDF", None),
    (gzip.compress(TABLE), "compressed", None),
    (b"PAR1\x15\x04", "Parquet", None),
    (TABLE.decode().encode("utf-16"), "UTF-16", None),
    (TABLE.decode().encode("utf-32"), "UTF-32", None),
    (b"\n  <!DOCTYPE html>\n<html><table><tr><td>id</td></tr></table>", "HTML", None),
    (b"\xef\xbb\xbf<TABLE border=1><tr><td>id", "HTML", None),
    (b'<?xml version="1.0"?><Workbook>', "XML", None),
    (b"\x93NUMPY\x01\x00", "npy", None),
    (TABLE.decode().encode("utf-16-be"), "NUL", 1),
    (TABLE.replace(b"\n3,", b"\n\x003,"), "NUL", 4),
    (b"x" * 70_000 + b"\n\n\0", "NUL", 3),
]


@pytest.mark.parametrize("reader", ["csv", "series", "images"])
def test_a_file_that_is_no_text_is_said_to_be_what_it_is(tmp_path: Path, reader: str) -> None:
    for data, kind, row in FOREIGN:
        (tmp_path / "data.csv").write_bytes(data)
        error = refused(lambda: read_site(spec_of(reader), tmp_path, 0))
        assert (error.code, error.row) == ("character-nul" if row else "format-unexpected", row), kind
        assert kind in str(error)


def test_a_subjects_file_that_is_no_text_is_said_without_its_name(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("file,group\njane,0\nroe,1\n")
    (tmp_path / "jane").write_bytes(b"%PDF-1.7")
    assert fault(lambda: read_site(spec_of("freesurfer"), tmp_path, 0), "jane")[0] == "format-unexpected"


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"Patients 2024,,,\n" + TABLE, ("header-missing", "data.columns", None)),
        (TABLE.partition(b"\n")[2], ("header-missing", "data.columns", None)),
        (b"7,7\n8,8\n", ("header-missing", "data.columns", 1)),
        *[(data, ("table-empty", "", None)) for data in (b"", b"\xef\xbb\xbf", b"\n\n" + TABLE, b"\n" * 99)],
        (TABLE.partition(b"\n2")[0] + b"\n", ("too-few-samples", "", None)),
        (TABLE.replace(b"30", b"3\xff"), ("encoding-unknown", "data.encoding", None)),
    ],
)
def test_what_spreadsheets_and_people_leave_out_or_add_is_said(tmp_path: Path, data: bytes, found: Fault) -> None:
    (tmp_path / "data.csv").write_bytes(data)
    assert fault(lambda: read_site(spec_of("csv"), tmp_path, 0)) == found


@pytest.mark.parametrize("reader", DATA)
def test_a_folder_in_a_files_place_is_said_by_every_reader(tmp_path: Path, reader: str) -> None:
    (tmp_path / "data.csv").mkdir()
    (tmp_path / "people.csv").mkdir()
    assert fault(lambda: read_site(spec_of(reader), tmp_path, 0))[0] == "file-missing"


@pytest.mark.parametrize("reader", ["npz", "csv"])
def test_one_sample_is_no_training_data_but_can_be_predicted(tmp_path: Path, reader: str) -> None:
    with (tmp_path / "data.csv").open("wb") as file:
        if reader == "npz":
            np.savez(file, x=np.zeros((1, 6)), y=[0])
        else:
            file.write(TABLE[:26])
    assert len(read_samples(spec_of(reader), tmp_path, beside=()).inputs) == 1
    assert fault(lambda: read_site(spec_of(reader), tmp_path, 0))[0] == "too-few-samples"


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
    error = refused(lambda: read(npz(tmp_path, arrays, compression)))
    assert (error.code, len(str(error)) < 400) == ("npz-unreadable", True)


def test_records_are_no_numbers(tmp_path: Path) -> None:
    path = npz(tmp_path, {"x": npy("(2, 6)", "[('a', '<f4'), ('b', '<f4')]")})
    assert fault(lambda: read(path))[0] == "array-not-numbers"


def test_an_array_larger_than_the_memory_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = npz(tmp_path, {"x": npy("(200000, 6)", data=bytes(9_600_000))}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 20_000
    (tmp_path / "memory.max").write_text("9000000")
    monkeypatch.setattr(available_memory, "LIMITS", (tmp_path / "memory.max",))
    assert fault(lambda: read(path))[0] == "out-of-memory"
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
    monkeypatch.setattr(available_memory, "LIMITS", (tmp_path / "memory.max",))
    assert fault(lambda: read_samples(spec_of(reader, **large[reader]), tmp_path))[0] == "out-of-memory"


def flagged(data: bytes) -> bytes:
    """Say of an archive's only member that it is encrypted."""
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.index(mark) + place
        data = data[:at] + b"\x01\x00" + data[at + 2 :]
    return data


@pytest.mark.parametrize("data", [flagged(archived("x.npy", X)), archived("x.npy", X)[:-30], TABLE, b"%PDF", X, b""])
def test_a_damaged_or_lying_archive_is_said(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "data.npz").write_bytes(data)
    assert fault(lambda: read(tmp_path / "data.npz"))[0] == "npz-unreadable"


PIECES = [
    *(b"id,age,sex,group\n", b"1,30,M,0\n", b'"', b",", b";"),
    *( b"\n", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf", b"sep=,\n"),
    *(b"id,age,score,group\n", b"a,1,2,0\n", b"b,2020-04-03 14:05,2,1\n", b"?", b"1e999", b"\xe2\x80\xa8", b"\t"),
]  # fmt: skip
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
    assert fault(lambda: read_table(broken))[0] == "parquet-unreadable"
