"""FreeSurfer's statistics as data, in both forms in which they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankdad.common.errors import DataError
from rankdad.common.spec import RunSpec
from rankdad.local.data import read_samples
from tests.conftest import run_spec

DATA: dict[str, Any] = {
    "reader": "freesurfer",
    "covariates": "people.csv",
    "key": "file",
    "features": ["eTIV", "Left-Amygdala", "BrainSeg"],
    "covariate_features": ["age"],
    "label": "group",
    "values": [0, 1],
}
STATS = """# Title Segmentation Statistics
#
# generating_program mri_segstats
# Measure BrainSeg, BrainSegVol, Brain Segmentation Volume, 1200000.0, mm^3
# Measure EstimatedTotalIntraCranialVol, eTIV, Estimated Total Intracranial Volume, 1560284.5, mm^3
# NRows 2
# ColHeaders  Index SegId NVoxels Volume_mm3 StructName normMean normStdDev
  1   4     14093    15150.3  Left-Lateral-Ventricle   28.1 11.5
  2  18      1500     1612.7  Left-Amygdala            66.2  7.9
"""
PAIRS = "Measure:volume\tb.txt\nLeft-Amygdala\t1500\neTIV\t1.4e6\nBrainSeg\t1100000\n"
PEOPLE = "file,age,group\nsub-1/aseg.stats,25,0\nb.txt,30,1\n"


def spec_of(**changes: Any) -> RunSpec:
    return run_spec(task={"name": "classification", "classes": 2}, data=DATA | changes)


def write(folder: Path, people: str = PEOPLE, stats: str | bytes = STATS, pairs: str = PAIRS) -> Path:
    folder = folder / "site"
    (folder / "sub-1").mkdir(parents=True)
    (folder / "people.csv").write_text(people)
    (folder / "sub-1" / "aseg.stats").write_bytes(stats if isinstance(stats, bytes) else stats.encode())
    (folder / "b.txt").write_text(pairs)
    return folder


@pytest.mark.parametrize("pairs", [PAIRS, PAIRS.partition("\n")[2], PAIRS.replace("Measure:volume\t", "")])
def test_both_forms_are_read(tmp_path: Path, pairs: str) -> None:
    found = read_samples(spec_of(), write(tmp_path, pairs=pairs) / "people.csv")
    assert np.asarray(found.inputs).tolist() == [[1560284.5, 1612.699951171875, 1.2e6, 25], [1.4e6, 1500, 1.1e6, 30]]
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1]
    assert found.keys == ("sub-1/aseg.stats", "b.txt")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"people": PEOPLE.replace("b.txt", "c.txt")}, "site/c.txt: does not exist"),
    ({"people": PEOPLE.replace("b.txt", "sub-1")}, "site/sub-1: is not a file"),
    (
        {"people": PEOPLE.replace("b.txt", "../b.txt")},
        "people.csv: row 3, column file: '../b.txt' leads out of the fol",
    ),
    ({"people": PEOPLE.replace("b.txt", "/etc/passwd")}, "column file: '/etc/passwd' leads out of the folder"),
    ({"people": PEOPLE.replace("b.txt", "a\0b")}, "people.csv: row 3: holds the character NUL"),
    (
        {"people": PEOPLE.replace("b.txt", "a" * 300)},
        "a{300}: cannot be read|column file: 'a{37}...' is not a file's name",
    ),
    ({"people": PEOPLE.replace("b.txt", "./sub-1/aseg.stats")}, "row 3, column file: .* stands in row 2 too"),
    ({"people": PEOPLE.replace("b.txt", "")}, "row 3, column file: is missing, expected a key"),
    ({"people": PEOPLE.replace("age", "Age")}, r"people.csv: has no column age; did you mean Age\?"),
    ({"people": PEOPLE.replace("group", "class")}, r"people.csv: has no column group"),
    ({"people": "file,age,group\n"}, "people.csv: has no rows"),
    ({"stats": ""}, "aseg.stats: holds no regions"),
    ({"stats": b"# M\xe4ure"}, "aseg.stats: is not text in UTF-8"),
    ({"stats": STATS[: STATS.index("Left-Amygdala")]}, "aseg.stats: has no region or measure Left-Amygdala"),
    ({"stats": STATS.replace("eTIV", "ETIV")}, r"aseg.stats: has no region or measure eTIV; did you mean ETIV\?"),
    ({"stats": STATS + "  3  18  1  1.0  Left-Amygdala\n"}, "aseg.stats: has 2 different values of Left-Amygdala"),
    (
        {"stats": STATS.replace("1200000.0", "much")},
        "sub-1/aseg.stats: column BrainSeg: holds 'much', expected a",
    ),
    ({"pairs": PAIRS.replace("1500", "inf")}, "b.txt: column Left-Amygdala: holds 'inf', expected a finite number"),
    ({"pairs": PAIRS.replace("\t1500", " 1500")}, "b.txt: row 2: has no tab"),
    ({"pairs": PAIRS.replace("1500", "NA")}, "b.txt: column Left-Amygdala: is missing"),
]


@pytest.mark.parametrize(("files", "said"), BAD)
def test_every_fault_is_named(tmp_path: Path, files: dict[str, Any], said: str) -> None:
    folder = write(tmp_path, **files)
    with pytest.raises(DataError, match=said) as error:
        read_samples(spec_of(), folder)
    assert not any(private in error.value.public_message for private in ("b.txt", "sub-1", str(tmp_path)))


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (tmp_path / "secret.txt").write_text(PAIRS)
    (folder / "b.txt").unlink()
    (folder / "b.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(DataError, match=r"'b\.txt' leads out of the folder"):
        read_samples(spec_of(), folder)


def test_a_missing_number_is_dropped_where_the_schema_says_so(tmp_path: Path) -> None:
    found = read_samples(spec_of(missing="drop"), write(tmp_path, pairs=PAIRS.replace("1500", "")) / "people.csv")
    assert found.keys == ("sub-1/aseg.stats",)
    assert "b.txt: column Left-Amygdala: is missing; 1 of 2 rows lack a value and are left out" in found.notes[0]


def test_subjects_have_groups_kept_columns_and_gaps_like_the_rows_of_any_table(tmp_path: Path) -> None:
    folder = write(tmp_path, PEOPLE.replace(",25", ","), pairs=PAIRS.replace("1500", "NA"))
    (folder / "more.csv").write_text("file,iq,family\nb.txt,101,f2\n./sub-1/aseg.stats,99,01\nc.txt,1,f3\n")
    changes = {"covariates": ["people.csv", "more.csv"], "missing": "impute", "group": "family"}
    keep = {"harmonise": {"name": "combat", "keep": ["iq", "eTIV"]}}
    task = {"name": "regression"}
    spec = run_spec(task=task, data=DATA | changes | {"label": "group", "values": []}, preparation=keep)
    for path in (folder, folder / "people.csv"):
        found = read_samples(spec, path)
        assert np.isnan(found.inputs).tolist() == [[False, False, False, True], [False, True, False, False]]
        assert found.groups == ("01", "f2")
        assert found.covariates is not None
        assert found.covariates.tolist() == [[99, 1560284.5], [101, 1.4e6]]
        assert found.labels is not None
        assert found.labels.tolist() == [0, 1]
        assert found.dropped == 1
        assert len(found.notes) == 2


def test_for_a_prediction_neither_label_nor_group_is_needed(tmp_path: Path) -> None:
    folder = write(tmp_path, "file,age\nb.txt,30\n")
    found = read_samples(spec_of(group="family"), folder, beside=())
    assert (found.labels, found.groups, found.keys) == (None, None, ("b.txt",))
