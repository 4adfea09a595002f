"""Series from long tables: held against pandas, and every fault named by row and column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rankdad.common.data.reading import Reading
from rankdad.common.data.series import read_series
from rankdad.common.documents import validate
from rankdad.common.spec.series import SeriesData
from tests.common.data.readings import inputs_of, labels_of, two_classes
from tests.common.faults import Fault, fault, refused

SCHEMA: dict[str, Any] = {
    **{"reader": "series", "file": "vitals.csv", "covariates": "stays.csv", "key": "stay", "time": "minute"},
    **{"features": ["pulse", "spo2"], "frames": 3, "label": "died", "values": ["no", "yes"], "group": "patient"},
}
VITALS = "stay,minute,pulse,spo2\nb,0,80,97\na,10,61,99\na,0,60,98\na,20,62,97\nb,5.5,81,96\nc,1,70,95\n"
STAYS = "stay,died,patient\nc,yes,2\na,no,1\nb,yes,1\n"
NAN = float("nan")


def read(folder: Path, vitals: str = VITALS, stays: str = STAYS, *, predicts: bool = False, **changes: Any) -> Reading:
    (folder / "vitals.csv").write_text(vitals)
    (folder / "stays.csv").write_text(stays)
    data = validate(SeriesData, SCHEMA | changes)
    return read_series(folder, data, "float32", beside=() if predicts else None)


def test_rows_in_any_order_become_series_in_that_of_time(tmp_path: Path) -> None:
    found = read(tmp_path)
    expected = [[[70, 95], [NAN, NAN], [NAN, NAN]], [[60, 98], [61, 99], [62, 97]], [[80, 97], [81, 96], [NAN, NAN]]]
    np.testing.assert_array_equal(np.asarray(found.inputs), np.array(expected, np.float32))
    assert (found.keys, labels_of(found), found.groups) == (("c", "a", "b"), [1, 0, 1], ("2", "1", "1"))


def test_a_thousand_random_rows_are_read_as_pandas_sorts_them(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"stay": random.integers(0, 40, 1000), "minute": random.permutation(1000), "pulse": random.normal(size=1000)}
    )
    frame["spo2"], frame["died"] = frame.pulse * 2, np.where(frame.stay % 3, "no", "yes")
    frame["minute"] = pd.Timestamp("2020-04-03") + pd.to_timedelta(frame.minute, unit="min")
    frame.loc[random.random(1000) < 0.2, "pulse"] = NAN
    one: dict[str, Any] = {"covariates": None, "group": None, "frames": 9, "longer": "last", "missing": "carry"}
    found = read(tmp_path, frame.to_csv(index=False), **one)
    assert found.keys is not None
    for place, key in enumerate(found.keys):
        own = frame[frame.stay == int(key)].sort_values("minute")[["pulse", "spo2"]].ffill().dropna().tail(9)
        held = np.asarray(found.inputs)[place]
        np.testing.assert_allclose(held[: len(own)], own.to_numpy(), rtol=1e-5)
        assert np.isnan(held[len(own) :]).all()


OFFSETS = "stay,minute,pulse,spo2\n" + "".join(
    f"a,2020-10-25T{time},{pulse},99\n"
    for time, pulse in (("02:10+02:00", 1), ("02:40+02:00", 2), ("02:05+01:00", 3), ("02:10+01:00", 4))
)
ONE = "stay,died,patient\na,no,1\n"


def test_times_with_offsets_are_in_the_order_of_what_happened(tmp_path: Path) -> None:
    """The night in which clocks are set back, as a hospital's export has it."""
    found = read(tmp_path, OFFSETS, ONE, frames=4)
    assert np.asarray(found.inputs)[0, :, 0].tolist() == [1, 2, 3, 4]
    mixed = OFFSETS.replace("02:05+01:00", "02:05")
    assert fault(lambda: read(tmp_path, mixed, ONE, frames=4)) == ("offsets-mixed", "minute", 4)


@pytest.mark.parametrize(
    ("missing", "longer", "expected"),
    [("drop", "first", [[1, 2], [3, 4]]), ("carry", "first", [[1, 2], [1, 9]]), ("carry", "last", [[1, 9], [3, 4]])],
)
def test_gaps_and_lengths(tmp_path: Path, missing: str, longer: str, expected: list[list[float]]) -> None:
    rows = "stay,minute,pulse,spo2\na,0,,5\na,1,1,2\na,2,,9\na,3,3,4\n"
    found = read(tmp_path, rows, "stay,died,patient\na,no,1\n", missing=missing, longer=longer, frames=2)
    assert inputs_of(found)[0] == expected


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("a,10,61,99", "a,0,61,99", ("time-repeated", "minute", 4)),
        ("a,10,61,99", "a,,61,99", ("time-missing", "minute", 3)),
        ("a,10,61,99", "a,soon,61,99", ("not-a-number", "minute", 3)),
        ("a,10,61,99", ",10,61,99", ("key-missing", "stay", 3)),
        ("a,10,61,99", "a,10,,99", ("value-missing", "pulse", 3)),
        ("a,10,61,99", "a,10,x,99", ("not-a-number", "pulse", 3)),
        ("a,10,61,99", "a,10,61,99\na,11,61,99", ("series-too-long", "stay", 6)),
        ("c,1,70,95", "d,1,70,95", ("key-not-in-all", "stay", 7)),
        ("c,1,70,95\n", "", ("series-empty", "stay", 2)),
    ],
)
def test_faults_are_named(tmp_path: Path, old: str, new: str, found: Fault) -> None:
    vitals = VITALS.replace(old, new)
    assert vitals != VITALS
    assert fault(lambda: read(tmp_path, vitals)) == found
    if found[0] in ("key-not-in-all", "series-empty"):
        assert read(tmp_path, vitals, missing="drop").keys == ("a", "b")


def test_a_channel_of_words_is_told_of_no_field_that_series_lack(tmp_path: Path) -> None:
    words = "stay,minute,pulse,spo2\n" + "".join(f"{stay},{at},low,97\n" for stay in "abc" for at in range(3))
    error = refused(lambda: read(tmp_path, words))
    assert (error.code, "data.categorical" in str(error)) == ("not-a-number", False)


def test_a_series_has_one_outcome(tmp_path: Path) -> None:
    rows = "stay,minute,pulse,spo2,died\na,0,1,2,no\na,1,3,4,yes\n"
    found = fault(lambda: read(tmp_path, rows, covariates=None, group=None))
    assert found == ("series-contradicts", "died", 3)


def test_of_predictions_single_series_are_refused(tmp_path: Path) -> None:
    found = read(tmp_path, VITALS.replace("a,10,61,99", "a,10,x,99"), STAYS.replace("c,yes", "c,"), predicts=True)
    assert found.rows is not None
    assert (found.keys, list(found.rows.refused), found.rows.names) == (("c", "b"), [1], ("c", "a", "b"))
    assert found.rows.unlabelled == frozenset({0})
    assert found.rows.refused[1].code == "not-a-number"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"time": "stay"}, "data"),
        ({"features": ["minute"]}, "data"),
        ({"features": ["pulse", "pulse"]}, "data"),
        ({"features": []}, "data.features"),
        ({"label": "stay"}, "data"),
    ],
)
def test_columns_have_one_meaning(change: dict[str, Any], field: str) -> None:
    assert fault(lambda: two_classes(SCHEMA | change))[1].startswith(field)


def test_what_a_policy_lists_are_all_columns_that_are_read() -> None:
    spec = two_classes(SCHEMA, model={"name": "gru", "hidden": [2]})
    asked = {name for names in spec.columns.values() for name in names}
    assert asked == {"stay", "minute", "pulse", "spo2", "died", "patient"}
