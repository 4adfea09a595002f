"""Tables as hospitals have them: read for what they mean, or refused by a sentence that says what helps."""

from __future__ import annotations

import datetime
import gzip
import io
import math
import sys
import tempfile
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rankdad.common import memory
from rankdad.common.data import read_samples
from rankdad.common.data.reading import Reading
from rankdad.common.data.sheets import read_workbook
from rankdad.common.data.table_files import read_table
from rankdad.common.errors import DataError, SpecError, UserError
from rankdad.common.preparation.layout import Layout
from rankdad.common.spec import RunSpec
from rankdad.common.spec.written import Written
from tests.conftest import run_spec

ROWS = "id,age,Größe,sex,ill\nP1,63,183.04,m,0\nP2,41,170.5,f,1\nP3,50,166,f,0\nP4,77,159.25,m,1\n"
GERMAN = ROWS.replace(",", ";").replace(".", ",")
X = [[63, 183.04, 1, 0], [41, 170.5, 0, 1], [50, 166, 0, 1], [77, 159.25, 1, 0]]
DATA: dict[str, Any] = {
    "reader": "csv",
    "file": "data.csv",
    "features": ["age", "Größe", "sex"],
    "categorical": {"sex": ["m", "f"]},
    "label": "ill",
    "values": [0, 1],
}


def spec_of(**changes: Any) -> RunSpec:
    task = {"name": "classification", "classes": len(changes.get("values", DATA["values"]))}
    return run_spec(task=task, data=DATA | changes, model={"name": "linear"}, training={"dtype": "float64"})


def read(folder: Path, content: str | bytes = ROWS, *, name: str = "data.csv", **changes: Any) -> Reading:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return read_samples(spec_of(file=name, **changes), folder)


def excel(folder: Path, rows: list[list[Any]], name: str = "data.xlsx", **sheets: list[list[Any]]) -> Path:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for sheet, more in sheets.items():
        made = book.create_sheet(sheet)
        for row in more:
            made.append(row)
    book.save(folder / name)
    return folder


@pytest.mark.parametrize(
    "content",
    [
        GERMAN,
        GERMAN.replace(";", "\t"),
        GERMAN.replace(";", "|"),
        "sep=;\n" + GERMAN,
        "\ufeff" + GERMAN,
        ROWS.replace("183.04", '"183,04"').replace("170.5", '"170,5"').replace("159.25", '"159,25"'),
        unicodedata.normalize("NFD", ROWS),
    ],
    ids=["semicolons", "tabs", "bars", "sep=", "BOM", "quoted commas", "decomposed umlauts"],
)
def test_a_table_is_read_however_it_is_written(tmp_path: Path, content: str) -> None:
    found = read(tmp_path, content)
    assert np.asarray(found.inputs).tolist() == X
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1, 0, 1]


def test_the_schemas_own_names_may_be_decomposed_too(tmp_path: Path) -> None:
    decomposed = unicodedata.normalize("NFD", "Größe")
    assert decomposed != "Größe"
    assert np.asarray(read(tmp_path, features=["age", decomposed, "sex"]).inputs).tolist() == X
    rows = ROWS.replace("m,", unicodedata.normalize("NFD", "männlich") + ",")
    assert np.asarray(read(tmp_path, rows, categorical={"sex": ["männlich", "f"]}).inputs).tolist() == X


def test_workbooks_parquet_and_compressed_tables_are_read(tmp_path: Path) -> None:
    frame = pd.read_csv(io.StringIO(ROWS))
    frame.to_excel(tmp_path / "data.xlsx", index=False)
    frame.to_parquet(tmp_path / "data.parquet", index=False)
    (tmp_path / "data.csv.gz").write_bytes(gzip.compress(GERMAN.encode()))
    for name in ("data.xlsx", "data.parquet", "data.csv.gz"):
        found = read_samples(spec_of(file=name), tmp_path)
        assert np.asarray(found.inputs).tolist() == X, name
        assert found.keys == ("2", "3", "4", "5"), name


@pytest.mark.parametrize(("name", "library"), [("data.xlsx", "openpyxl"), ("data.parquet", "pyarrow")])
def test_a_library_that_is_not_there_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=rf"needs {library}: pip install 'rankdad\[(excel|parquet)\]'"):
        read(tmp_path, b"", name=name)


def test_a_workbooks_sheet_is_the_one_that_is_not_empty_or_is_named(tmp_path: Path) -> None:
    rows = [line.split(",") for line in ROWS.splitlines()]
    excel(tmp_path, rows, notes=[])
    assert np.asarray(read_samples(spec_of(file="data.xlsx"), tmp_path).inputs).tolist() == X
    excel(tmp_path, [["legend"]], patients=rows)
    with pytest.raises(DataError, match=r"has 2 sheets that are not empty: name one in the schema, data\.sheet"):
        read_samples(spec_of(file="data.xlsx"), tmp_path)
    assert np.asarray(read_samples(spec_of(file="data.xlsx", sheet="patients"), tmp_path).inputs).tolist() == X
    with pytest.raises(DataError, match="has no sheet gone"):
        read_samples(spec_of(file="data.xlsx", sheet="gone"), tmp_path)


def limit(folder: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    (folder / "memory.max").write_text(str(size))
    monkeypatch.setattr(memory, "LIMITS", (folder / "memory.max",))


def test_a_few_cells_far_apart_do_not_make_a_large_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(tmp_path, monkeypatch, 2**28)
    book = openpyxl.Workbook()
    for place in ("A1", "B1", "A2", "B2"):
        book.active[place] = "x"
    book.active["D60000"] = book.active["XFD2"] = ""  # formatted, not filled
    book.save(tmp_path / "data.xlsx")
    assert read_workbook(tmp_path / "data.xlsx", None).shape == (2, 2)
    book.active["D60000"] = book.active["XFD1"] = "y"
    book.save(tmp_path / "data.xlsx")
    with pytest.raises(DataError, match=r"60,000 rows of 16,384 columns do not fit into memory: they take 91\.6 GiB"):
        read_workbook(tmp_path / "data.xlsx", None)


def test_a_parquet_files_rows_are_counted_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pd.DataFrame({"a": np.zeros(500_000)}).to_parquet(tmp_path / "data.parquet")
    assert (tmp_path / "data.parquet").stat().st_size < 10_000
    limit(tmp_path, monkeypatch, 40_000_000)
    with pytest.raises(DataError, match="its 500,000 rows of 1 columns do not fit into memory"):
        read_table(tmp_path / "data.parquet")


@pytest.mark.parametrize("name", ["data.csv", "data.csv.gz"])
def test_a_text_takes_more_memory_as_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    limit(tmp_path, monkeypatch, 2_000_000)
    for rows, fits in ((1_000, True), (20_000, False)):
        content = ("a,b,c,d,e\n" + ",,,,\n" * rows + "1,2,3,4,5\n").encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        if fits:
            assert len(read_table(tmp_path / name)) == 1
        else:
            with pytest.raises(DataError, match=r"its bytes.* do not fit into memory"):
                read_table(tmp_path / name)


@pytest.mark.parametrize("name", ["data.xlsx", "data.parquet", "data.csv.gz"])
@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04 bad", b"PAR1 bad PAR1", gzip.compress(ROWS.encode())[:40]],
    ids=["empty", "zip", "parquet", "gzip"],
)
def test_damage_is_said_in_one_sentence(tmp_path: Path, name: str, content: bytes) -> None:
    with pytest.raises(DataError, match=f"{name}: (is |begins|has )"):
        read(tmp_path, content, name=name)


def test_cp1252_has_to_be_named_and_utf_8_is_read_beside_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r'not text in UTF-8.*"encoding": "cp1252"') as error:
        read(tmp_path, GERMAN.encode("cp1252"))
    assert "cp1252" not in error.value.public_message
    for encoding in ("cp1252", "utf-8"):
        assert np.asarray(read(tmp_path, GERMAN.encode(encoding), encoding="cp1252").inputs).tolist() == X
    with pytest.raises(DataError, match="is not text in cp1252 either"):
        read(tmp_path, ROWS.encode() + b"\x81,1,1,m,0", encoding="cp1252")


MISSING = [("63", "<1"), ("63", "-"), ("63", "?"), ("183.04", "unknown")]


@pytest.mark.parametrize(("old", "token"), MISSING)
def test_what_else_means_missing_is_said_in_the_schema(tmp_path: Path, old: str, token: str) -> None:
    rows = ROWS.replace(old, token)
    with pytest.raises(DataError, match=r"row 2, column .*, or list what stands for missing in data\.missing_values"):
        read(tmp_path, rows)
    column = 0 if old == "63" else 1
    for named in ([token], {"*": [token]}):
        found = read(tmp_path, rows, missing_values=named, missing="impute")
        assert np.isnan(np.asarray(found.inputs)[:, column]).tolist() == [True, False, False, False]


def test_a_zero_may_be_missing_in_one_column_and_a_number_in_another(tmp_path: Path) -> None:
    rows = ROWS.replace("170.5", "0").replace("63", "0")
    found = read(tmp_path, rows, missing_values={"Gr*": [0]}, missing="impute")
    assert np.asarray(found.inputs)[0].tolist() == [0, 183.04, 1, 0]
    assert np.isnan(np.asarray(found.inputs)[1, 1])


WRONG: list[tuple[str, dict[str, Any], str]] = [
    (
        ROWS.replace("183.04", '"183,04"'),
        {},
        "column Größe: holds '183,04'.*: numbers here have a decimal point; .* or name the mark in data.decimal",
    ),
    (ROWS.replace("183.04", '"1,234"'), {}, "holds '1,234'.*data.decimal"),
    (GERMAN.replace("183,04", "1.234"), {}, "holds '1.234'.*decimal comma; write it without a point"),
    (GERMAN.replace("183,04", "1.234,5"), {}, "holds '1.234,5'.*decimal comma; write it without a point"),
    (GERMAN.replace("63;", "1.234;"), {}, "column age: holds '1.234'.* may be a number with a mark between thousands"),
    (GERMAN.replace("63;", "6.5;"), {}, "column Größe: holds '183,04'.*6.5 in column age a point.*data.decimal"),
    ("age;Größe;sex;ill\n1;1.234;m;0\n2;2.345;f;1\n", {}, "holds '1.234'.*decimal or a whole number.*data.decimal"),
    ("age;Größe;sex;ill\n1;1,234;m;0\n2;2,345;f;1\n", {}, "holds '1,234'.*decimal or a whole number.*data.decimal"),
    ("age\tGröße\tsex\till\n1\t1.234\tm\t0\n2\t12.500\tf\t1\n", {}, "holds '1.234'.*whole number.*data.decimal"),
    ("age|Größe|sex|ill\n1|1.234|m|0\n2|12.500|f|1\n", {}, "holds '1.234'.*whole number.*data.decimal"),
    ("a,b;c\n1,2;3\n4,5;6\n", {}, "separated by commas or semicolons: say by which in the schema, data.delimiter"),
    (GERMAN.replace("P2;41;170,5;f;1", "P2,41,170.5,f,1"), {}, "row 3: is separated by commas, unlike the first"),
    ("Export of May\n" + GERMAN, {}, "row 1: holds 'Export of May', where the next ones have 5 cells"),
    (
        ROWS,
        {"features": ["id"], "categorical": {}},
        "holds 'P1'.*out by data.exclude, or make it data.key or",
    ),
    (
        ROWS.replace("P3", "P1"),
        {"key": "id"},
        "'P1' stands in row 2 too; if rows may have it in common, take it for data.group and leave data.key out",
    ),
    (ROWS.replace("63", "1.2.2020"), {}, "row 2, column age: holds '1.2.2020'"),
    (ROWS.replace("63", "1.2.2020").replace("41", "2020-01-02"), {}, "say since when they count in data.dates"),
    (
        ROWS.replace(",m,", ",x,"),
        {},
        "holds 'x', expected one of m, f; a column in data.categorical_other has",
    ),
    (ROWS.replace(",1\n", ",4\n"), {}, "holds '4', expected one of 0, 1; data.merge .* data.positive a rule such as"),
    (ROWS.replace("63", "0"), {"log": ["age"]}, "holds '0', expected a number above 0, .* bound in data.clip lifts it"),
]


@pytest.mark.parametrize(("content", "changes", "said"), WRONG, ids=[said[:40] for _, _, said in WRONG])
def test_what_cannot_be_read_says_what_helps(tmp_path: Path, content: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        read(tmp_path, content, **changes)


def test_what_is_in_doubt_is_read_once_it_is_named(tmp_path: Path) -> None:
    rows = "age;Größe;sex;ill\n1;1.234;m;0\n2;2,345;f;1\n"
    for mark, expected in ((".", 1.234), (",", 2.345)):
        other = "3,3" if mark == "." else "3.3"
        only = rows.replace("2,345" if mark == "." else "1.234", "7")
        assert expected in np.asarray(read(tmp_path, only, decimal=mark).inputs)[:, 1]
        with pytest.raises(DataError, match=r"holds '3.3'"):
            read(tmp_path, only.replace("7", other), decimal=mark)
    found = np.asarray(
        read(tmp_path, "age,Größe;sex;ill\n".replace(",", ";") + "1;5;m;0\n2;6;f;1\n", delimiter=";").inputs
    )
    assert found[:, 0].tolist() == [1, 2]


numbers = st.builds(
    lambda whole, digits, places: f"{whole}" + (f".{digits:0{places}d}"[: places + 1] if places else ""),
    st.integers(-99999, 99999),
    st.integers(0, 9999),
    st.integers(0, 4),
)


@given(
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6),
    st.sampled_from([(",", "."), (";", "."), (";", ","), ("\t", "."), ("\t", ","), ("|", "."), ("|", ","), (",", ",")]),
)
@example([("1.234", "5"), ("2.345", "6")], (";", ","))
@example([("1.234", "5.5")], (";", ","))
def test_a_number_is_never_read_as_another(rows: list[tuple[str, str]], form: tuple[str, str]) -> None:
    delimiter, mark = form
    quote = '"' if delimiter == mark else ""
    lines = [f"a{delimiter}b"]
    lines += [delimiter.join(f"{quote}{cell.replace('.', mark)}{quote}" for cell in row) for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "data.csv")
        path.write_text("\n".join(lines) + "\n")
        for named in (None, mark):
            table = read_table(path, Written(decimal=named))  # type: ignore[arg-type]
            for place, column in enumerate("ab"):
                true = [float(row[place]) for row in rows]
                found = table.numbers(column)
                told = [one for one, other in zip(found, true, strict=True) if not math.isnan(one) and one != other]
                assert not told, (lines, column)
                if named is not None:
                    assert found.tolist() == true


def test_levels_that_nobody_listed_become_one_more(tmp_path: Path) -> None:
    rows = ROWS.replace("P1,63,183.04,m", "P1,63,183.04,x").replace("P2,41,170.5,f", "P2,41,170.5,")
    found = read(tmp_path, rows, categorical_other=["s*"], missing="impute")
    expected = np.array([[0, 0, 1], [math.nan] * 3, [0, 1, 0], [1, 0, 0]])
    assert np.array_equal(np.asarray(found.inputs)[:, 2:], expected, equal_nan=True)
    assert spec_of(categorical_other=["s*"]).data.shape == (5,)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"positive": "> 0"}, [0, 1, 1, 1]),
        ({"positive": ">= 2.0"}, [0, 0, 1, 1]),
        ({"positive": "<1"}, [1, 0, 0, 0]),
        ({"merge": {"yes": [1, 2, 3.0, 4]}, "values": ["0", "yes"]}, [0, 1, 1, 1]),
        ({"merge": {"some": [1, 2], "much": [3, 4]}, "values": ["0", "some", "much"]}, [0, 1, 1, 2]),
    ],
)
def test_a_label_of_several_stages_becomes_classes(
    tmp_path: Path, changes: dict[str, Any], expected: list[int]
) -> None:
    rows = "age,Größe,sex,ill\n1,5,m,0\n2,6,f,1\n3,7,f,2\n4,8,f,4\n"
    found = read(tmp_path, rows, **({"values": ["no", "yes"]} | changes))
    assert found.labels is not None
    assert found.labels.tolist() == expected
    assert found.labels.dtype == np.int64


def test_dates_become_times_since_a_day_or_another_column(tmp_path: Path) -> None:
    rows = "born,seen,ill\n1960-03-01,1.3.2020,0\n31.12.1999,2000-01-31 00:00:00,1\n,2020-01-01,0\n"
    changes: dict[str, Any] = {"features": ["seen"], "categorical": {}, "missing": "impute"}
    found = np.asarray(read(tmp_path, rows, dates={"seen": {"since": "born"}}, **changes).inputs)[:, 0]
    assert found[0] == pytest.approx(60, abs=0.01)
    assert found[1] == pytest.approx(31 / 365.25)
    assert math.isnan(found[2])
    days = np.asarray(read(tmp_path, rows, dates={"seen": {"since": "2000-01-01", "unit": "days"}}, **changes).inputs)[
        :, 0
    ]
    assert days.tolist() == [7365, 30, 7305]
    slashed = rows.replace("1.3.2020", "03/04/2020")
    with pytest.raises(DataError, match=r"row 2, column seen: holds '03/04/2020'.*data\.dates needs the order"):
        read(tmp_path, slashed, dates={"seen": {"since": "born"}}, **changes)
    since = {"since": "2020-01-01", "unit": "days"}
    for order, expected in (("day/month/year", 93), ("month/day/year", 63)):
        assert (
            np.asarray(read(tmp_path, slashed, dates={"seen": since | {"order": order}}, **changes).inputs)[0, 0]
            == expected
        )
    cells = [["", datetime.datetime(2020, 1, day), day - 3] for day in (3, 4)]
    excel(tmp_path, [["born", "seen", "ill"], *cells])
    found = np.asarray(read_samples(spec_of(file="data.xlsx", dates={"seen": since}, **changes), tmp_path).inputs)
    assert found.tolist() == [[2], [3]]


def test_numbers_are_clipped_and_then_their_logarithm_is_taken(tmp_path: Path) -> None:
    found = np.asarray(read(tmp_path, clip={"age": [50, None], "Gr*": [None, 170]}, log=["a*"]).inputs)
    assert found[:, 0] == pytest.approx(np.log([63, 50, 50, 77]))
    assert found[:, 1].tolist() == [170, 170, 166, 159.25]


def test_an_indicator_stands_beside_what_is_imputed(tmp_path: Path) -> None:
    rows = ROWS.replace("63", "").replace("P3,50,166,f", "P3,50,166,NA")
    changes: dict[str, Any] = {"missing": "impute", "missing_indicators": ["age", "sex"]}
    found = np.asarray(read(tmp_path, rows, **changes).inputs)
    assert found[:, 1].tolist() == [1, 0, 0, 0]
    assert found[:, 5].tolist() == [0, 0, 1, 0]
    spec = spec_of(**changes)
    assert spec.data.shape == (6,)
    assert Layout.of(spec).levels.tolist() == [False, True, False, True, True, True]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"missing_indicators": ["age"]}, "missing_indicators: missing is refuse, expected impute"),
        ({"missing": "impute", "missing_indicators": ["agee"]}, "missing_indicators: agee is no input"),
        ({"categorical_other": ["age"]}, "categorical_other: age is no categorical column"),
        ({"log": ["sex"]}, "log: sex is categorical"),
        ({"log": ["weight"]}, "data.log: weight is neither among the inputs"),
        ({"positive": "above 0"}, 'got "above 0", expected a comparison such as "> 0"'),
        ({"positive": "> 0", "values": [0, 1, 2]}, "positive: makes two classes"),
        ({"merge": {"ill": [1]}}, "merge: ill is not among the values"),
        ({"merge": {"1": [0, 1]}}, "merge: 0 is in two classes"),
        ({"encoding": "rot13"}, "expected"),
        ({"dates": {"age": {"since": "2020-02-30"}}}, "since: got 2020-02-30"),
    ],
)
def test_nonsense_about_a_tables_form_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        spec_of(**changes)


def test_a_schema_that_says_nothing_of_it_keeps_its_digest() -> None:
    spelled: dict[str, Any] = {
        "delimiter": None,
        "missing_values": [],
        "positive": None,
        "log": [],
        "clip": {},
        "dates": {},
    }
    assert spec_of(**spelled).sha256() == spec_of().sha256()
    assert spec_of(decimal=",").sha256() != spec_of().sha256()
    assert "delimiter" not in spec_of().model_dump(mode="json")["data"]
