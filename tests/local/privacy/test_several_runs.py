"""What several runs of one site may disclose together, where patients lie in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankdad.common.data import read_samples, read_site
from rankdad.common.errors import DataError, UserError
from rankdad.common.models import build_model
from rankdad.common.protocol.plan import make_plan
from rankdad.common.rounds.hello import Hello
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.local.contributions import Contributions
from rankdad.local.privacy.assigning import PartAssigner
from rankdad.local.privacy.log import DisclosureLog
from tests.conftest import run_spec, write_site
from tests.local.privacy.test_assigning import CLASSES, SECRET, TABLE, kept, reading_of, used_by


@pytest.mark.parametrize(("lacking", "told"), [(5, False), (9, True)])
def test_how_many_rows_are_left_out_is_not_told_and_that_there_are_some_only_from_enough_on(
    tmp_path: Path, lacking: int, told: bool
) -> None:
    rows = [f"p{number},{'' if number < lacking else number},{5 * (number % 2)}" for number in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["id,age,mrs", *rows]))
    data = TABLE | {"features": ["age"], "missing": "drop"}
    spec = run_spec(task=CLASSES, data=data, evaluation={"name": "holdout"})
    found = read_site(spec, tmp_path, 0, assigner=PartAssigner(spec, SECRET, 8))
    assert found.dropped == lacking
    assert ("rows-left-out" in found.warnings) == told
    plan = make_plan(spec, build_model(spec))
    run = RunState(spec, plan, Replica(spec))
    assert run.due is not None
    prepared: Any = None
    hello = Contributions(spec, plan, found, run, 0, prepared, lambda *_: None).body(run.due)
    assert isinstance(hello, Hello)
    assert hello.dropped == 0


@pytest.mark.parametrize("assignment", [False, True])
def test_where_patients_lie_in_parts_others_hear_the_same_of_all_that_is_wrong_with_data(
    tmp_path: Path, assignment: bool
) -> None:
    """By which of two codes a run was refused that left p0 alone told whether p0's age was among those left out."""
    rows = [f"p{number},{20 + number},{5 * (number % 2)}" for number in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["id,age,mrs", *rows]))
    others, heard = [f"p{number}" for number in range(1, 40)], set[tuple[str, str]]()
    for ages in ([], ["20"]):
        data = TABLE | {"features": ["age"], "missing": "drop", "missing_values": {"id": others, "age": ages}}
        spec = run_spec(task=CLASSES, data=data, evaluation={"name": "holdout"})
        if not assignment and not ages:
            continue  # one patient is enough there
        with pytest.raises(UserError) as raised:
            read_site(spec, tmp_path, 0, assigner=PartAssigner(spec, SECRET, 8) if assignment else None)
        heard.add((raised.value.public_code, raised.value.public_field))
        assert raised.value.code != "data-refused", "the site itself hears what it is"
    assert (heard == {("data-refused", "")}) == assignment


def test_where_patients_are_known_by_place_a_changed_file_is_refused_until_the_site_says_that_no_row_has_moved(
    tmp_path: Path,
) -> None:
    spec, log = run_spec(data={"reader": "npz", "file": "data.npz", "shape": [6]}), tmp_path / "privacy"
    same, longer = write_site(tmp_path / "same", 40, 1), write_site(tmp_path / "longer", 60, 1)

    def keeps(data: Path, run: str, others: int | None = None) -> bool:
        assigner = PartAssigner(spec, SECRET, 8, DisclosureLog(log, "alpha", SECRET, others=others), run)
        _, assignment = assigner.assign(read_samples(spec, data))
        return assignment.kept()

    assert keeps(same, "first")
    assert keeps(same, "second")
    for others in (None, 2):
        with pytest.raises(DataError) as raised:
            keeps(longer, "third", others)
        assert (raised.value.code, raised.value.field) == ("rows-may-have-moved", "privacy")
    assert keeps(longer, "third", 3)
    assert keeps(longer, "fourth")
    with pytest.raises(DataError):
        keeps(same, "fifth")
    assert keeps(same, "second"), "a run that goes on"


def test_a_specification_that_begins_again_has_other_batches_and_one_that_goes_on_the_same(tmp_path: Path) -> None:
    """With the same, two runs told one patient's gradient, where another hospital had grown in between."""
    spec, log = run_spec(), DisclosureLog(tmp_path, "alpha", SECRET)
    reading, orders = reading_of(40), list[str]()
    for run in ("first", "second", "second"):  # by the same name, too, which the aggregator chooses
        _, assignment = kept(spec, reading, log, run)
        assignment.begun()
        orders.append(assignment.order("rows"))
        _, goes_on = PartAssigner(spec, SECRET, 8, log, run).assign(reading)
        assert goes_on.order("rows") == orders[-1]
        goes_on.unnoted().begun()
        assert goes_on.order("rows") == orders[-1]
    assert len(set(orders)) == 3
    _, simulated = PartAssigner(spec, SECRET, 8).assign(reading)
    assert simulated.order("rows") == orders[0]  # what is simulated can be simulated again
    _, alone = PartAssigner(spec, SECRET, 8, beginning="drawn").assign(reading)
    assert alone.order("rows") not in orders


PRESSURES: dict[str, Any] = {"reader": "csv", "file": "p.csv", "key": "id", "label": "mrs", "values": ["no", "yes"]}
AGE_IN: dict[str, Any] = PRESSURES | {"features": ["age", "bp"]}
SAME_CELL: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # what the first run reads, what the second does, and what is written in place of p0's age in between
    "a label, then an input within a bound": (
        {"data": PRESSURES | {"features": ["bp"], "label": "age", "values": []}, "task": {"name": "regression"}},
        {"data": AGE_IN | {"clip": {"age": [None, 60]}}},
        "88",
    ),
    "numbers, then levels": (
        {"data": AGE_IN},
        {"data": AGE_IN | {"categorical": {"age": [*map(str, range(40, 51)), "88", "90"]}}},
        "90",
    ),
    "days, then years": (
        {"data": AGE_IN | {"features": ["bp", "seen"], "dates": {"seen": {"since": "2000-01-01", "unit": "days"}}}},
        {"data": AGE_IN | {"features": ["bp", "seen"], "dates": {"seen": {"since": "2000-01-01"}}}},
        "seen",
    ),
    "classes by other names": (
        {"data": AGE_IN},
        {"data": AGE_IN | {"values": ["well", "ill"], "merge": {"well": ["no"], "ill": ["yes"]}}},
        "label",
    ),
}


@pytest.mark.parametrize("change", list(SAME_CELL))
def test_a_column_is_one_whatever_it_is_used_for(tmp_path: Path, change: str) -> None:
    """The difference of two runs' sums was one patient's value, or what was corrected of it."""
    first, second, written = SAME_CELL[change]
    log, used = DisclosureLog(tmp_path / "privacy", "alpha", SECRET), list[set[str]]()
    for own in (first, second):
        days = [f"20{row % 20 + 1:02}-05-0{row % 9 + 1}" for row in range(100)]
        cells = [(40 + row % 10, 100 + row % 7, days[row], row % 2) for row in range(100)]
        cells[0] = (88, *cells[0][1:])
        if own is second:
            age, bp, seen, ill = cells[0]
            seen, ill = ("2021-03-03" if written == "seen" else seen), (1 - ill if written == "label" else ill)
            cells[0] = (int(written) if written.isdigit() else age, bp, seen, ill)
        lines = [f"p{row},{age},{bp},{seen},{['no', 'yes'][ill]}" for row, (age, bp, seen, ill) in enumerate(cells)]
        (tmp_path / "p.csv").write_text("\n".join(["id,age,bp,seen,mrs", *lines]))
        spec = run_spec(**{"task": CLASSES, **own}, model={"name": "linear"}, evaluation={"name": "holdout"})
        used.append(used_by(spec, tmp_path, log, f"run-{len(used)}"))
    assert "p0" in used[0]
    assert "p0" not in used[1]
    assert len(used[0] - used[1]) >= 8


@pytest.mark.slow
def test_an_array_is_one_whatever_its_shape_and_scale(tmp_path: Path) -> None:
    log, used = DisclosureLog(tmp_path / "privacy", "alpha", SECRET), list[set[str]]()
    random = np.random.default_rng(0)
    inputs, keys = random.integers(0, 99, (100, 9)).astype(np.uint8), np.array([f"p{row}" for row in range(100)])
    shapes: list[dict[str, Any]] = [{"shape": [9]}, {"shape": [9, 1]}, {"shape": [1, 9]}, {"shape": [9], "scale": 0.5}]
    for number, data in enumerate(shapes):
        inputs[number, 3] += number > 0  # a cell of one patient more is corrected
        np.savez(tmp_path / "data.npz", x=inputs, y=np.arange(100) % 2, key=keys)
        spec = run_spec(task=CLASSES, data=data, evaluation={"name": "holdout"})
        used.append(used_by(spec, tmp_path, log, f"run-{number}"))
    assert len(used[0]) == 100
    for number in (1, 2, 3):
        assert f"p{number}" not in used[number]
        assert len(used[0] - used[number]) >= 8
