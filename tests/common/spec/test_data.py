"""The schema of the data: an old spec keeps its digest, and nonsense is named by its field."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankdad.common.documents import validate
from rankdad.common.errors import SpecError
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData, covariate_width, resolve_features
from rankdad.common.spec.table_schema import canonical
from tests.common.faults import fault
from tests.conftest import run_spec

LABEL: dict[str, Any] = {"label": "group", "values": ["control", "patient", 3], "categorical": {"sex": ["M", "F"]}}
CSV: dict[str, Any] = LABEL | {"reader": "csv", "file": "brains.csv", "features": ["age", "sex", "volume"]}
FREESURFER: dict[str, Any] = {
    **LABEL,
    **{"reader": "freesurfer", "covariates": "people.csv", "key": "file"},
    **{"features": ["eTIV"], "covariate_features": ["age", "sex"]},
}


@pytest.mark.parametrize("reader", [{}, {"reader": "npz"}])
def test_the_canonical_form_of_a_npz_schema_is_what_it_was_before_there_were_others(reader: dict[str, str]) -> None:
    spec = run_spec(data={"shape": [6]} | reader)
    form = json.dumps(spec.model_dump(mode="json")["data"], sort_keys=True, separators=(",", ":"))
    assert form == '{"file":"data.npz","reader":"npz","scale":1.0,"shape":[6],"tokens":null}'


@pytest.mark.parametrize("data", [CSV, FREESURFER])
def test_a_table_says_its_shape_before_it_is_read(data: dict[str, Any]) -> None:
    spec = run_spec(data=data)
    assert spec.data.shape == (4,)
    assert spec.data.tokens is None
    assert validate(RunSpec, spec.model_dump(mode="json")) == spec


def test_the_spelling_of_a_value_is_not_its_meaning() -> None:
    one, other = (run_spec(data=CSV | {"values": values}) for values in ([0, 1.0, "b"], [" 0.0", "1", "b "]))
    assert one.sha256() == other.sha256()
    assert run_spec(data=CSV | {"values": [1, 0, "b"]}).sha256() != one.sha256()


@given(st.one_of(st.text(max_size=20), st.integers(), st.floats()))
def test_a_canonical_value_stays_itself(value: object) -> None:
    assert canonical(canonical(value)) == canonical(value)


@given(st.integers(-(10**14), 10**14))
def test_a_whole_number_has_one_form(number: int) -> None:
    assert {canonical(form) for form in (number, f" {number:06}", f"{number}.0", float(number))} == {str(number)}


def test_digits_that_a_float_would_lose_tell_values_apart() -> None:
    assert canonical("100000000000000000001") != canonical("100000000000000000002")


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"reader": "cvs"}, "name-unknown", "data"),
        ({"values": [0, 1]}, "field-invalid", "data"),
        ({"values": [0, "0.0", 1]}, "field-invalid", "data"),
        ({"values": [0, 1, None]}, "field-invalid", "data.values[2]"),
        ({"features": []}, "field-invalid", "data"),
        ({"features": ["age", "sex", "age"]}, "field-invalid", "data"),
        ({"label": "age"}, "field-invalid", "data"),
        ({"key": "age"}, "field-invalid", "data"),
        ({"key": "group"}, "field-invalid", "data"),
        ({"group": "age"}, "field-invalid", "data"),
        ({"categorical": {"group": ["a"]}}, "field-invalid", "data"),
        ({"categorical": {"site": ["a"]}}, "field-invalid", "preparation"),
        ({"categorical": {"sex": ["M", "M"]}}, "field-invalid", "data"),
        ({"covariates": "people.csv"}, "field-invalid", "data"),
        *[({"file": file}, "field-invalid", "data.file") for file in ("../people.csv", ["a.csv", "b/*.csv"], [])],
        ({"shape": [4]}, "field-unknown", "data.shape"),
        (FREESURFER | {"categorical": {"eTIV": ["1"]}}, "field-invalid", "data"),
        # S18: each pattern is compared with every column of a table; 1,000 took 5 s for 300 columns
        *[({"features": ["*"], name: [f"{'*a' * 40}{n}" for n in range(101)]}, "field-invalid", "data")
          for name in ("features", "exclude")],
    ],
)  # fmt: skip
def test_nonsense_is_named(changes: dict[str, Any], code: str, field: str) -> None:
    data = changes if changes.get("reader") == "freesurfer" else CSV | changes
    assert fault(lambda: run_spec(data=data))[:2] == (code, field)


@pytest.mark.parametrize(
    ("keep", "works"), [(["site", "age"], True), (["group"], False), (["site", "site"], False), (["age"], False)]
)
def test_kept_columns_may_have_levels_of_their_own(keep: list[str], works: bool) -> None:
    data = CSV | {"categorical": {"sex": ["M", "F"], "site": ["a", "b", "c"]}}
    preparation = {"harmonise": {"name": "combat", "keep": keep}}
    if works:
        spec = run_spec(data=data, preparation=preparation)
        assert isinstance(spec.data, TableData)
        assert (spec.data.shape, covariate_width(spec.data, spec.preparation.keep)) == ((4,), 3)
        return
    assert fault(lambda: run_spec(data=data, preparation=preparation))[1] == "preparation"


def test_patterns_are_checked_when_they_are_resolved() -> None:
    data = run_spec(data=CSV | {"features": ["v*", "[*]"], "label": "vol"}).data
    assert isinstance(data, TableData)
    whole = resolve_features(data, ["vol", "v1", "v?", "w", "v1"])
    assert (whole.features, whole.inputs) == (("v1", "v[?]", "[*]"), ("v1", "v?", "*"))
    assert resolve_features(whole, []) == whole
    for columns, code in ((["x"], "pattern-matches-nothing"), (["v\n1"], "column-name-unusable")):
        assert fault(lambda columns=columns: resolve_features(data, columns))[0] == code  # type: ignore[misc]


@pytest.mark.slow
def test_a_schema_of_ten_thousand_columns_is_checked_in_seconds() -> None:
    columns = [f"c{number}" for number in range(10_000)]
    some = columns[:5000]
    data = CSV | {"features": columns, "categorical": {column: ["a", "b"] for column in some}}
    data |= {
        "categorical_other": some,
        "log": columns[5000:],
        "clip": {column: [0, 1] for column in columns[5000:]},
    }
    data |= {"missing": "impute", "missing_indicators": columns}
    began = time.process_time()
    spec = run_spec(data=data)
    assert spec.data.shape == (3 * 5000 + 5000 + 10_000,)
    assert time.process_time() - began < 20, "each column was compared with each: minutes"
    patterns = [f"c{number}*" for number in range(101)]
    with pytest.raises(SpecError, match=r"log: has 101 patterns, expected at most 100: name the columns"):
        run_spec(data=CSV | {"features": columns, "log": patterns})
