"""Tables as hospitals have them: read for what they mean, or refused with the cell that is in doubt."""

from __future__ import annotations

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

from rankdad.common import available_memory
from rankdad.common.data import read_samples
from rankdad.common.data.reading import Reading
from rankdad.common.data.sheets import read_workbook
from rankdad.common.data.table_files import read_table
from rankdad.common.preparation.layout import Layout
from rankdad.common.spec import RunSpec
from rankdad.common.spec.written import Written
from tests.common.data.readings import inputs_of, labels_of
from tests.common.faults import fault, refused
from tests.conftest import run_spec

ROWS = "id,age,Größe,sex,ill\nP1,63,183.04,m,0\nP2,41,170.5,f,1\nP3,50,166,f,0\nP4,77,159.25,m,1\n"
GERMAN = ROWS.replace(",", ";").replace(".", ",")
X = [[63, 183.04, 1, 0], [41, 170.5, 0, 1], [50, 166, 0, 1], [77, 159.25, 1, 0]]
DATA: dict[str, Any] = {
    **{"reader": "csv", "file": "data.csv", "features": ["age", "Größe", "sex"], "label": "ill", "values": [0, 1]},
    "categorical": {"sex": ["m", "f"]},
}


def spec_of(**changes: Any) -> RunSpec:
    task = {"name": "classification", "classes": len(changes.get("values", DATA["values"]))}
    return run_spec(task=task, data=DATA | changes, model={"name": "linear"}, training={"dtype": "float64"})


def read(folder: Path, content: str | bytes = ROWS, *, name: str = "data.csv", **changes: Any) -> Reading:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return read_samples(spec_of(file=name, **changes), folder)


def column(found: Reading, place: int) -> list[Any]:
    return [row[place] for row in inputs_of(found)]


def excel(folder: Path, rows: list[list[Any]], **sheets: list[list[Any]]) -> None:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for sheet, more in sheets.items():
        made = book.create_sheet(sheet)
        for row in more:
            made.append(row)
    book.save(folder / "data.xlsx")


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
        ROWS.replace("63", "٦٣"),
        ROWS.replace("P2", '"P2\nas told, by phone"'),
    ],
    ids=["semicolons", "tabs", "bars", "sep=", "BOM", "quoted commas", "decomposed", "other digits", "lines in a cell"],
)
def test_a_table_is_read_however_it_is_written(tmp_path: Path, content: str) -> None:
    found = read(tmp_path, content)
    assert (inputs_of(found), labels_of(found)) == (X, [0, 1, 0, 1])


def test_the_schemas_own_names_may_be_decomposed_too(tmp_path: Path) -> None:
    decomposed = unicodedata.normalize("NFD", "Größe")
    assert decomposed != "Größe"
    assert inputs_of(read(tmp_path, features=["age", decomposed, "sex"])) == X
    rows = ROWS.replace("m,", unicodedata.normalize("NFD", "männlich") + ",")
    assert inputs_of(read(tmp_path, rows, categorical={"sex": ["männlich", "f"]})) == X


def test_workbooks_parquet_and_compressed_tables_are_read(tmp_path: Path) -> None:
    frame = pd.read_csv(io.StringIO(ROWS))
    frame.to_excel(tmp_path / "data.xlsx", index=False)
    frame.to_parquet(tmp_path / "data.parquet", index=False)
    (tmp_path / "data.csv.gz").write_bytes(gzip.compress(GERMAN.encode()))
    for name in ("data.xlsx", "data.parquet", "data.csv.gz"):
        found = read_samples(spec_of(file=name), tmp_path)
        assert (inputs_of(found), found.keys) == (X, ("2", "3", "4", "5")), name


@pytest.mark.parametrize(("name", "library"), [("data.xlsx", "openpyxl"), ("data.parquet", "pyarrow")])
def test_a_library_that_is_not_there_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    error = refused(lambda: read(tmp_path, b"", name=name))
    assert (error.code, library in str(error)) == ("not-installed", True)


def test_a_workbooks_sheet_is_the_one_that_is_not_empty_or_is_named(tmp_path: Path) -> None:
    rows = [line.split(",") for line in ROWS.splitlines()]
    excel(tmp_path, rows, notes=[])
    assert inputs_of(read_samples(spec_of(file="data.xlsx"), tmp_path)) == X
    excel(tmp_path, [["legend"]], patients=rows)
    assert inputs_of(read_samples(spec_of(file="data.xlsx", sheet="patients"), tmp_path)) == X
    for sheet, code in ((None, "sheets-several"), ("gone", "sheet-missing")):
        spec = spec_of(file="data.xlsx", sheet=sheet)
        assert fault(lambda spec=spec: read_samples(spec, tmp_path))[:2] == (code, "data.sheet")  # type: ignore[misc]


def limit(folder: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    (folder / "memory.max").write_text(str(size))
    monkeypatch.setattr(available_memory, "LIMITS", (folder / "memory.max",))


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
    assert fault(lambda: read_workbook(tmp_path / "data.xlsx", None))[0] == "out-of-memory"


@pytest.mark.parametrize("name", ["data.csv", "data.csv.gz", "data.parquet"])
def test_a_files_rows_are_counted_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A text takes more memory as cells, and 500,000 equal numbers take no room in a Parquet file."""
    path = tmp_path / name
    if name.endswith("parquet"):
        limit(tmp_path, monkeypatch, 40_000_000)
        pd.DataFrame({"a": np.zeros(500_000)}).to_parquet(path)
        assert path.stat().st_size < 10_000
    else:
        limit(tmp_path, monkeypatch, 2_000_000)
        for rows in (1_000, 20_000):
            content = ("a,b,c,d,e\n" + ",,,,\n" * rows + "1,2,3,4,5\n").encode()
            path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
            assert rows > 1_000 or len(read_table(path)) == 1
    assert fault(lambda: read_table(path))[0] == "out-of-memory"


DAMAGED = {
    "empty": b"",
    "zip": b"PK\x03\x04 bad",
    "parquet": b"PAR1 bad PAR1",
    "gzip": gzip.compress(ROWS.encode())[:40],
}


@pytest.mark.parametrize("name", ["data.xlsx", "data.parquet", "data.csv.gz"])
@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damage_is_told_as_such(tmp_path: Path, name: str, content: bytes) -> None:
    codes = {"data.xlsx": "workbook-unreadable", "data.parquet": "parquet-unreadable", "data.csv.gz": "gzip-damaged"}
    code = codes[name] if content or not name.endswith("gz") else "table-empty"
    assert fault(lambda: read(tmp_path, content, name=name))[0] == code


def test_cp1252_has_to_be_named_and_utf_8_is_read_beside_it(tmp_path: Path) -> None:
    assert fault(lambda: read(tmp_path, GERMAN.encode("cp1252")), "cp1252")[0] == "encoding-unknown"
    for encoding in ("cp1252", "utf-8"):
        assert inputs_of(read(tmp_path, GERMAN.encode(encoding), encoding="cp1252")) == X
    wrong = ROWS.encode() + b"\x81,1,1,m,0"
    assert fault(lambda: read(tmp_path, wrong, encoding="cp1252"))[0] == "encoding-wrong"


@pytest.mark.parametrize(("old", "token"), [("63", "<1"), ("63", "-"), ("63", "?"), ("183.04", "unknown")])
def test_what_else_means_missing_is_said_in_the_schema(tmp_path: Path, old: str, token: str) -> None:
    rows, place = ROWS.replace(old, token), 0 if old == "63" else 1
    assert fault(lambda: read(tmp_path, rows)) == ("not-a-number", ("age", "Größe")[place], 2)
    for named in ([token], {"*": [token]}):
        found = read(tmp_path, rows, missing_values=named, missing="impute")
        assert np.isnan(column(found, place)).tolist() == [True, False, False, False]


def test_a_zero_may_be_missing_in_one_column_and_a_number_in_another(tmp_path: Path) -> None:
    rows = ROWS.replace("170.5", "0").replace("63", "0")
    found = inputs_of(read(tmp_path, rows, missing_values={"Gr*": [0]}, missing="impute"))
    assert found[0] == [0, 183.04, 1, 0]
    assert math.isnan(found[1][1])


def number(name: str) -> tuple[str, str, int]:
    return "not-a-number", name, 2


TWO = "age;Größe;sex;ill\n1;{};m;0\n2;{};f;1\n"
SWALLOWING = ROWS.replace("P2,41", '"P2,41').replace("P3,50", 'P3",50')  # by quotation marks, two rows
MANY = "".join(f"P{row},{30 + row % 40},170.5,m,{row % 2}\n" for row in range(8000))


@pytest.mark.parametrize(
    ("content", "changes", "found"),
    [
        *[(ROWS.replace("183.04", f'"{cell}"'), {}, number("Größe")) for cell in ("183,04", "1,234")],
        *[(GERMAN.replace("183,04", cell), {}, number("Größe")) for cell in ("1.234", "1.234,5")],
        (GERMAN.replace("63;", "1.234;"), {}, number("age")),  # maybe with a mark between thousands
        (GERMAN.replace("63;", "6.5;"), {}, number("Größe")),  # one column has commas, another a point
        *[(TWO.format(*cells), {}, number("Größe")) for cells in (("1.234", "2.345"), ("1,234", "2,345"))],
        *[(TWO.format("1.234", "12.500").replace(";", mark), {}, number("Größe")) for mark in "\t|"],
        ("a,b;c\n1,2;3\n4,5;6\n", {}, ("delimiter-ambiguous", "data.delimiter", None)),
        (GERMAN.replace("P2;41;170,5;f;1", "P2,41,170.5,f,1"), {}, ("delimiter-ambiguous", "", 3)),
        (ROWS + MANY + "P9;50;170.5;m;1\n", {"missing": "impute"}, ("line-ends-mixed", "", None)),
        *[(SWALLOWING.replace(",", mark), {}, ("columns-differ", "", None)) for mark in ",;"],
        ("Export of May\n" + GERMAN, {}, ("title-above-names", "", 1)),
        (ROWS, {"features": ["id"], "categorical": {}}, number("id")),
        (ROWS.replace("P3", "P1"), {"key": "id"}, ("key-repeated", "id", 4)),
        (ROWS.replace("63", "1.2.2020"), {}, number("age")),
        (ROWS.replace("63", "٦٣٫٥"), {}, number("age")),
        (ROWS.replace("age", "аge"), {}, ("column-missing", "age", None)),  # a Cyrillic letter
        (ROWS.replace(",m,", ",x,"), {}, ("level-unknown", "sex", 2)),
        (ROWS.replace(",1\n", ",4\n"), {}, ("level-unknown", "ill", 3)),
        (ROWS.replace("63", "0"), {"log": ["age"]}, ("cell", "age", 2)),
    ],
)  # fmt: skip
def test_what_is_in_doubt_is_refused(
    tmp_path: Path, content: str, changes: dict[str, Any], found: tuple[str, str, int | None]
) -> None:
    assert fault(lambda: read(tmp_path, content, **changes)) == found


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (ROWS.replace("183.04", '"183,04"'), "data.decimal"),
        (GERMAN.replace("183,04", "1.234"), "write it without a point"),
        (ROWS.replace("age", "аge"), "whose letter 1 is CYRILLIC SMALL LETTER A"),
        (ROWS.replace("63", "1.2.2020").replace("41", "2020-01-02"), "data.dates"),
        (ROWS.replace(",1\n", ",4\n"), "data.positive"),
        *[(ROWS.replace("63", f"{sign}7"), "the limit itself, 7,") for sign in ("<", "< ", "≥", ">=")],
    ],
)  # fmt: skip
def test_what_helps_is_named(tmp_path: Path, content: str, named: str) -> None:
    assert named in str(refused(lambda: read(tmp_path, content)))


def test_what_is_in_doubt_is_read_once_it_is_named(tmp_path: Path) -> None:
    for mark, cells, expected, other in ((".", ("1.234", "7"), 1.234, "3,3"), (",", ("7", "2,345"), 2.345, "3.3")):
        assert expected in column(read(tmp_path, TWO.format(*cells), decimal=mark), 1)
        wrong = TWO.format(*cells).replace(";7;", f";{other};")
        assert fault(lambda: read(tmp_path, wrong, decimal=mark))[0] == "not-a-number"  # noqa: B023
    rows = "age;Größe;sex;ill\n1;5;m;0\n2;6;f;1\n"
    assert column(read(tmp_path, rows, delimiter=";"), 0) == [1, 2]


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
            for place, name in enumerate("ab"):
                true = [float(row[place]) for row in rows]
                found = table.numbers(name)
                told = [one for one, other in zip(found, true, strict=True) if not math.isnan(one) and one != other]
                assert not told, (lines, name)
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
    assert labels_of(found) == expected
    assert found.labels is not None
    assert found.labels.dtype == np.int64


def test_dates_become_times_since_a_day_or_another_column(tmp_path: Path) -> None:
    rows = "born,seen,ill\n1960-03-01,1.3.2020,0\n31.12.1999,2000-01-31 00:00:00,1\n,2020-01-01,0\n"

    def seen(content: str = rows, **since: str) -> list[Any]:
        changes: dict[str, Any] = {"features": ["seen"], "categorical": {}, "missing": "impute"}
        return column(read(tmp_path, content, dates={"seen": since}, **changes), 0)

    first, second, third = seen(since="born")
    assert (first, second) == (pytest.approx(60, abs=0.01), pytest.approx(31 / 365.25))
    assert math.isnan(third)
    assert seen(since="2000-01-01", unit="days") == [7365, 30, 7305]
    slashed = rows.replace("1.3.2020", "03/04/2020")
    assert fault(lambda: seen(slashed, since="born")) == ("not-a-date", "seen", 2)
    for order, expected in (("day/month/year", 93), ("month/day/year", 63)):
        assert seen(slashed, since="2020-01-01", unit="days", order=order)[0] == expected


def test_numbers_are_clipped_and_then_their_logarithm_is_taken(tmp_path: Path) -> None:
    found = read(tmp_path, clip={"age": [50, None], "Gr*": [None, 170]}, log=["a*"])
    assert column(found, 0) == pytest.approx(np.log([63, 50, 50, 77]))
    assert column(found, 1) == [170, 170, 166, 159.25]


def test_an_indicator_stands_beside_what_is_imputed(tmp_path: Path) -> None:
    rows = ROWS.replace("63", "").replace("P3,50,166,f", "P3,50,166,NA")
    changes: dict[str, Any] = {"missing": "impute", "missing_indicators": ["age", "sex"]}
    found = read(tmp_path, rows, **changes)
    assert (column(found, 1), column(found, 5)) == ([1, 0, 0, 0], [0, 0, 1, 0])
    spec = spec_of(**changes)
    assert spec.data.shape == (6,)
    assert Layout.of(spec).levels.tolist() == [False, True, False, True, True, True]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"missing_indicators": ["age"]}, "data"),
        ({"missing": "impute", "missing_indicators": ["agee"]}, "data"),
        ({"categorical_other": ["age"]}, "data"),
        ({"log": ["sex"]}, "data"),
        ({"log": ["weight"]}, "preparation"),
        ({"positive": "above 0"}, "data.positive"),
        ({"positive": "> 0", "values": [0, 1, 2]}, "data"),
        ({"merge": {"ill": [1]}}, "data"),
        ({"merge": {"1": [0, 1]}}, "data"),
        ({"encoding": "rot13"}, "data.encoding"),
        ({"dates": {"age": {"since": "2020-02-30"}}}, "data.dates.age"),
    ],
)
def test_nonsense_about_a_tables_form_is_named(changes: dict[str, Any], field: str) -> None:
    assert fault(lambda: spec_of(**changes)) == ("field-invalid", field, None)


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
    assert "delimiter" not in spec_of().document()["data"]
