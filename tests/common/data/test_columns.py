"""Patterns of columns, resolved by a site's own tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.data import read_samples
from rankdad.common.data.columns import resolved
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import CsvData, FreesurferData
from tests.common.data.readings import inputs_of, two_classes
from tests.common.faults import fault

DATA: dict[str, Any] = {
    **{"reader": "csv", "file": "brains.csv", "covariates": "people.csv", "key": "subject"},
    **{"features": ["age", "lh_*"], "label": "lh_label", "group": "lh_family", "values": [0, 1]},
}
BRAINS = "lh_b,subject,lh_a,rh_a,,lh_label,lh_x?,lh_family\n1,s1,2,3,,0,4,f1\n5,s2,6,7,,1,8,f2\n"
PEOPLE = "subject,age,lh_z\ns1,20,9\ns2,30,10\n"


def data_of(folder: Path, **changes: Any) -> CsvData:
    (folder / "brains.csv").write_text(BRAINS)
    (folder / "people.csv").write_text(PEOPLE)
    data = run_of(**changes).data
    assert isinstance(data, CsvData)
    return data


def run_of(**changes: Any) -> RunSpec:
    return two_classes(DATA | changes)


def test_a_pattern_stands_for_columns_in_the_tables_order_but_for_none_with_a_part_of_its_own(tmp_path: Path) -> None:
    data = resolved(data_of(tmp_path), tmp_path)
    assert data.features == ("age", "lh_b", "lh_a", "lh_x[?]", "lh_z")
    assert data.inputs == ("age", "lh_b", "lh_a", "lh_x?", "lh_z")
    assert data.shape == (5,)
    assert resolved(data, Path("nowhere")) is data
    found = read_samples(run_of(**data.model_dump(mode="json")), tmp_path)
    assert inputs_of(found) == [[20, 1, 2, 4, 9], [30, 5, 6, 8, 10]]


@pytest.mark.parametrize(
    ("features", "exclude", "found"),
    [
        (["*"], ["?h_*"], ("age",)),
        (["*_a", "lh_b", "lh_*"], ["lh_x[?]"], ("lh_a", "rh_a", "lh_b", "lh_z")),
        (["?h_a", "lh_z"], ["*z"], ("lh_a", "rh_a", "lh_z")),
    ],
)
def test_what_is_excluded_or_named_already_is_passed_over(
    tmp_path: Path, features: list[str], exclude: list[str], found: tuple[str, ...]
) -> None:
    assert resolved(data_of(tmp_path, features=features, exclude=exclude), tmp_path).features == found


def test_a_pattern_stands_for_something_and_a_run_needs_names(tmp_path: Path) -> None:
    data, nothing = data_of(tmp_path), data_of(tmp_path, features=["age", "LH_*"])
    assert fault(lambda: resolved(nothing, tmp_path))[:2] == ("pattern-matches-nothing", "data.features")
    gone = data_of(tmp_path, covariates="gone.csv")
    assert fault(lambda: resolved(gone, tmp_path))[0] == "file-missing"
    asked: list[Callable[[], object]] = [
        lambda: data.shape,
        lambda: data.inputs,
        lambda: read_samples(run_of(), tmp_path),
    ]
    for ask in asked:
        assert fault(ask)[:2] == ("pattern-not-resolved", "data.features")


def test_only_the_header_is_read(tmp_path: Path) -> None:
    data = data_of(tmp_path, covariates=None, features=["lh_a*"])
    (tmp_path / "brains.csv").write_bytes(BRAINS.encode() + b"1,2,3,4,5,6,7,8,9,10\n")
    assert resolved(data, tmp_path).features == ("lh_a",)


def test_regions_are_those_of_the_first_subject_and_measures_go_by_their_second_name(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("file,age,group\ns1.stats,25,0\ngone.stats,30,1\n")
    (tmp_path / "s1.stats").write_text(
        "# Measure EstimatedTotalIntraCranialVol, eTIV, Total Intracranial Volume, 1560284.5, mm^3\n"
        "# ColHeaders  Index SegId NVoxels Volume_mm3 StructName\n"
        "  1   4     14093    15150.3  Left-Lateral-Ventricle\n  2  18      1500     1612.7  Left-Amygdala\n"
    )
    document = {"reader": "freesurfer", "covariates": "people.csv", "key": "file", "label": "group", "values": [0, 1]}
    schema = two_classes(document | {"features": ["*"], "exclude": ["*-Ventricle"], "covariate_features": ["age"]}).data
    assert isinstance(schema, FreesurferData)
    data = resolved(schema, tmp_path)
    assert data.inputs == ("eTIV", "Left-Amygdala", "age")
    assert data.regions == ("eTIV", "Left-Amygdala")
