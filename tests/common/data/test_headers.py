"""Where the names of columns stand, and what separates columns: right, or one sentence; nothing is guessed silently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pytest

from rankdad.common.data import read_samples
from rankdad.common.data.files import tables_in
from rankdad.common.data.tables import Table
from rankdad.given import write_frame
from rankdad.simulations.table_dataset import TableDataset
from tests.common.data.readings import inputs_of, labels_of, two_classes
from tests.common.faults import Fault, fault
from tests.conftest import SHARED

NAMES = ["id", "age", "sex", "ill"]
DATA: dict[str, Any] = {
    **{"reader": "csv", "file": "data.csv", "key": "id", "features": ["age", "sex"], "label": "ill", "values": [0, 1]},
    "categorical": {"sex": ["m", "f"]},
}
ROWS = ["a,50.5,m,0", "b,61,f,1", "c,72,f,1"]
X = [[50.5, 1, 0], [61, 0, 1], [72, 0, 1]]


def read(folder: Path, content: str | bytes, name: str = "data.csv", **changes: Any) -> Any:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    spec = two_classes(DATA | {"file": name} | changes)
    found = read_samples(spec, folder)
    predicted = read_samples(spec, folder / name, beside=["sex"])  # the readers for predictions see the same rows
    assert inputs_of(predicted) == inputs_of(found)
    assert predicted.rows is not None
    assert not predicted.rows.refused
    return found


HEART = "age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal"
BODY = "\n".join(ROWS) + "\n"
HEADED = ",".join(NAMES) + "\n" + BODY


@pytest.mark.parametrize(
    ("content", "named", "name"),
    [
        (BODY, True, "data.csv"),
        (BODY.replace(",", " "), True, "data.data"),
        (BODY.replace(",", "\t"), True, "data.tsv"),
        (BODY.replace(",", ";").replace(".", ","), True, "data.data"),
        (BODY.replace("\n", ",\n"), True, "data.csv"),  # a delimiter at the ends of rows
        ("\ufeff" + BODY, True, "data.csv"),
        (BODY.replace("\n", "\r"), True, "data.data"),
        (BODY.replace("\n", "\r\n").rstrip(), True, "data.data"),
        (HEADED, True, "data.csv"),  # a site whose file has the names, though others' have not
        ("ill,sex,age,id\n" + "".join(",".join(row.split(",")[::-1]) + "\n" for row in ROWS), True, "data.csv"),
        (HEADED, False, "data.data"),
        (HEADED.replace("\n", "\r"), False, "data.csv"),
        (HEADED.replace(",", " "), False, "data.data"),
        (HEADED.replace(",", "   ").replace("\n", "  \n  "), False, "data.txt"),
        (HEADED.replace(",", " \t "), False, "data.data"),
        (HEADED.replace("a,", '"a",').replace(",", " "), False, "data.txt"),
        ('"id" "age" "sex" "ill"\n' + BODY.replace("m", '"m"').replace(",", " "), False, "data.txt"),  # of R
        ('"id","age","sex","ill"\n' + BODY.replace("50.5", '"50.5"'), False, "data.csv"),
    ],
)
def test_tables_are_read_under_their_names(tmp_path: Path, content: str, named: bool, name: str) -> None:
    found = read(tmp_path, content, name, **({"columns": NAMES} if named else {}))
    assert (inputs_of(found), found.keys, labels_of(found)) == (X, ("a", "b", "c"), [0, 1, 1])


def test_workbooks_and_parquet_files_are_read_under_the_schemas_names(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for text in ROWS:
        name, age, sex, ill = text.split(",")
        book.active.append([name, float(age), sex, int(ill)])
    book.save(tmp_path / "data.xlsx")
    frame = pd.DataFrame([row.split(",") for row in ROWS], columns=NAMES)
    frame.to_parquet(tmp_path / "data.parquet")
    for name in ("data.xlsx", "data.parquet"):
        found = read(tmp_path, (tmp_path / name).read_bytes(), name, columns=NAMES)
        assert inputs_of(found) == X
    assert [path.name for path in tables_in(tmp_path)] == ["data.parquet", "data.xlsx"]


@pytest.mark.parametrize(
    ("content", "changes", "found"),
    [
        (BODY, {}, ("header-missing", "data.columns", None)),
        *[(BODY, {"columns": own}, ("columns-mismatch", "data.columns", None)) for own in (NAMES[:3], [*NAMES, "x"])],
        ("\n\n" + BODY, {"columns": NAMES}, ("table-empty", "", None)),
        (HEADED.replace("sex", "Sex"), {"columns": NAMES}, ("not-a-number", "age", 1)),
        (HEADED + HEADED, {}, ("header-repeated", "", 5)),
        (HEADED + "\ufeff" + HEADED, {}, ("header-repeated", "", 5)),
        (HEADED + "age,id,ill,sex\n", {}, ("header-repeated", "", 5)),
        (BODY + HEADED, {"columns": NAMES}, ("header-repeated", "", 4)),
        *[(HEADED.replace("sex", name), {}, ("column-repeated", "age", 1)) for name in ("age", " age ")],
        (BODY, {"columns": ["id", "age", "age", "ill"]}, ("column-repeated", "age", 1)),
        (HEADED.replace(",", " ").replace(" 61", ""), {}, ("column-missing", "id", None)),
        (HEADED.replace(",", " ").replace(" 61", ""), {"delimiter": " "}, ("row-short", "data.delimiter", 3)),
        (HEADED.replace(",", "  ").replace("61", "NA"), {}, ("cell", "age", 3)),
    ],
)  # fmt: skip
def test_what_cannot_be_read_under_its_names_is_refused(
    tmp_path: Path, content: str, changes: dict[str, Any], found: Fault
) -> None:
    assert fault(lambda: read(tmp_path, content, **changes)) == found


@pytest.mark.shared_data
def test_the_heart_data_of_four_hospitals_are_read_as_they_are() -> None:
    folder = SHARED / "heart"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    names = HEART.split()
    rows = {"cleveland": (303, 139), "hungarian": (294, 106), "switzerland": (123, 115), "va": (200, 149)}
    for hospital, (count, ill) in rows.items():
        data = DATA | {"file": f"processed.{hospital}.data", "columns": [*names, "num"], "features": names, "key": None}
        data |= {"missing_values": ["?"], "missing": "impute", "categorical": {}}
        data |= {"label": "num", "positive": "> 0", "values": ["no", "yes"]}
        found = read_samples(two_classes(data), folder)
        table = pd.read_csv(folder / f"processed.{hospital}.data", header=None, na_values="?")
        np.testing.assert_allclose(np.asarray(found.inputs), table.iloc[:, :13].to_numpy(np.float32), equal_nan=True)
        assert (len(labels_of(found)), sum(labels_of(found))) == (count, ill)


@pytest.mark.parametrize(
    "changes", [{"columns": NAMES}, {"columns": NAMES[::-1]}, {"delimiter": " "}, {"delimiter": ";"}]
)
def test_what_a_simulation_writes_for_its_sites_is_read_as_it_was(tmp_path: Path, changes: dict[str, Any]) -> None:
    frame = pd.DataFrame([row.split(",") for row in [*ROWS, "d d,,f,0"]], columns=NAMES).astype(object)
    spec = two_classes(DATA | {"missing": "impute"} | changes)
    TableDataset(Table("pool", frame)).write(np.array([3, 0, 1]), spec, tmp_path / "data.csv")
    by_pool = read_samples(spec, tmp_path)
    assert by_pool.keys == ("d d", "a", "b")
    assert inputs_of(by_pool)[1:] == X[:2]
    write_frame(frame.iloc[[3, 0, 1]], spec, "frame", tmp_path / "data.csv")
    by_frame = read_samples(spec, tmp_path)
    assert by_frame.keys == by_pool.keys
    np.testing.assert_array_equal(np.asarray(by_frame.inputs), np.asarray(by_pool.inputs))


def test_a_frame_has_the_schemas_columns(tmp_path: Path) -> None:
    frame, spec = pd.DataFrame([[1, 2]], columns=["id", "years"]), two_classes(DATA | {"columns": NAMES})
    found = fault(lambda: write_frame(frame, spec, "frame", tmp_path / "data.csv"))
    assert found == ("columns-mismatch", "data.columns", None)
