"""FreeSurfer's statistics as data, in both forms in which they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankdad.common.data import read_samples
from rankdad.common.data.columns import resolved
from rankdad.common.errors import DataError
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import FreesurferData
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
    ({"stats": STATS[: STATS.index("Left-Amygdala")]}, "aseg.stats: row 9: has 4 cells, expected 7"),
    ({"stats": STATS.replace("eTIV", "ETIV")}, r"aseg.stats: has no region or measure eTIV; did you mean ETIV\?"),
    (
        {"stats": STATS.replace("# NRows 2\n", "") + "  3  18  1  1.0  Left-Amygdala 1 2\n"},
        "aseg.stats: has 2 different values of Left-Amygdala",
    ),
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


def aseg(version: int) -> str:
    """What recon-all of a version writes to aseg.stats; three regions of 45."""
    measures = {
        5: "BrainSeg, BrainSegVol, Brain Segmentation Volume, 1177343.000000, mm^3\n"
        "# Measure lhCortex, lhCortexVol, Left hemisphere cortical gray matter volume, 237312.4, mm^3\n"
        "# Measure IntraCranialVol, ICV, Intracranial Volume, 1560284.5, mm^3",
    }
    measures[6] = measures[7] = measures[8] = (
        "BrainSeg, BrainSegVol, Brain Segmentation Volume, 1177343.000000, mm^3\n"
        "# Measure VentricleChoroidVol, VentricleChoroidVol, Volume of ventricles and choroid plexus, 18713.0, mm^3\n"
        "# Measure MaskVol-to-eTIV, MaskVol-to-eTIV, Ratio of MaskVol to eTIV, 1.1, unitless\n"
        "# Measure EstimatedTotalIntraCranialVol, eTIV, Estimated Total Intracranial Volume, 1560284.5, mm^3"
    )
    made = {5: "cvs_version $Id: mri_segstats.c,v 1.75.2.9 $", 6: "cvs_version $Id: mri_segstats.c,v 1.121 $"}
    table = "".join(
        f"# TableCol {place:2} ColHeader {name}\n# TableCol {place:2} FieldName {name}\n# TableCol {place:2} Units NA\n"
        for place, name in enumerate(["Index", "SegId", "NVoxels", "Volume_mm3", "StructName", "normMean"], 1)
    )
    return f"""# Title Segmentation Statistics
#
# generating_program mri_segstats
# {made.get(version, f"cvs_version {version}.4.1")}
# cmdline mri_segstats --seg mri/aseg.mgz --sum stats/aseg.stats --pv mri/norm.mgz --empty
# anatomy_type volume
#
# Measure {measures[version]}
# SegVolFile mri/aseg.mgz
# ColorTable /opt/freesurfer/ASegStatsLUT.txt
# Only reporting non-empty segmentations
# VoxelVolume_mm3 1
{table}# NRows 3
# NTableCols 6
# ColHeaders  Index SegId NVoxels Volume_mm3 StructName normMean
  1   4      6563     6631.3  Left-Lateral-Ventricle            26.8
  2  17      3842     3899.0  Left-Hippocampus                  71.2
  3  77      1012     {"1020" if version == 8 else "1020.0"}  WM-hypointensities                64.9
"""


APARC = ["NumVert", "SurfArea", "GrayVol", "ThickAvg", "ThickStd", "MeanCurv", "GausCurv", "FoldInd", "CurvInd"]


def aparc(version: int, side: str = "lh") -> str:
    """What recon-all of a version writes to ?h.aparc.stats; two regions of 34."""
    more = "" if version == 5 else (
        "# Measure BrainSegNotVent, BrainSegVolNotVent, Brain Segmentation Volume Without Ventricles, 1155, mm^3\n"
        "# Measure EstimatedTotalIntraCranialVol, eTIV, Estimated Total Intracranial Volume, 1560284.5, mm^3\n"
    )  # fmt: skip
    units = ["NA", "unitless", "mm^2", "mm^3", "mm", "mm", "mm^-1", "mm^-2", "unitless", "unitless"]
    table = "".join(
        f"# TableCol {place:2} ColHeader {name}\n# TableCol {place:2} Units {unit}\n"
        for place, (name, unit) in enumerate(zip(["StructName", *APARC], units, strict=True), 1)
    )
    return f"""# Title Segmentation Statistics
#
# generating_program mris_anatomical_stats
# mrisurf.c-cvs_version {version}
# cmdline mris_anatomical_stats -th3 -mgz -f ../stats/{side}.aparc.stats -b bert {side}
# anatomy_type surface
# annot ../label/{side}.aparc.annot
# hemi {side}
# AnnotationFile ../label/{side}.aparc.annot
# AnnotationFileTimeStamp 2026/01/01 10:00:00
# Measure Cortex, NumVert, Number of Vertices, 144204, unitless
# Measure Cortex, WhiteSurfArea, White Surface Total Area, 98553.7, mm^2
# Measure Cortex, MeanThickness, Mean Thickness, 2.45, mm
{more}{table}# NTableCols 10
# ColHeaders StructName NumVert SurfArea GrayVol ThickAvg ThickStd MeanCurv GausCurv FoldInd CurvInd
bankssts                                 1374    938   2300  2.541 0.412     0.101     0.023       11     1.2
transversetemporal                        601    412   1104  2.413 0.298     0.115     0.031        6     0.7
"""


def read_one_file(folder: Path, name: str, content: str, features: list[str]) -> tuple[list[str], list[float]]:
    (folder / name).write_text(content)
    (folder / "people.csv").write_text(f"file,group,age\n{name},0,30\n")
    spec = spec_of(features=features, covariate_features=[])
    assert isinstance(spec.data, FreesurferData)
    data = resolved(spec.data, folder)
    found = read_samples(spec.model_copy(update={"data": data}), folder)
    return list(data.features), np.asarray(found.inputs)[0].tolist()


@pytest.mark.parametrize("version", [5, 6, 7, 8])
def test_aseg_of_every_version_is_read_whole(tmp_path: Path, version: int) -> None:
    names, values = read_one_file(tmp_path, "aseg.stats", aseg(version), ["*"])
    regions = {"Left-Lateral-Ventricle": 6631.3, "Left-Hippocampus": 3899, "WM-hypointensities": 1020}
    measures = {"BrainSegVol": 1177343, "lhCortexVol": 237312.4, "ICV": 1560284.5}
    if version > 5:
        measures = {"BrainSegVol": 1177343, "VentricleChoroidVol": 18713, "MaskVol-to-eTIV": 1.1, "eTIV": 1560284.5}
    assert names == [*measures, *regions]
    assert values == pytest.approx([*measures.values(), *regions.values()], rel=1e-6)


@pytest.mark.parametrize("side", ["lh", "rh"])
@pytest.mark.parametrize("version", [5, 6, 7, 8])
def test_aparc_of_every_version_is_read_whole(tmp_path: Path, version: int, side: str) -> None:
    names, values = read_one_file(tmp_path, f"{side}.aparc.stats", aparc(version, side), ["*"])
    kinds = ["NumVert", "area", "volume", "thickness", "thicknessstd", "meancurv", "gauscurv", "foldind", "curvind"]
    assert [name for name in names if name.startswith(f"{side}_")] == [
        f"{side}_{region}_{kind}" for region in ("bankssts", "transversetemporal") for kind in kinds
    ]
    held = dict(zip(names, values, strict=True))
    assert held[f"{side}_bankssts_thickness"] == pytest.approx(2.541)
    assert held[f"{side}_transversetemporal_curvind"] == pytest.approx(0.7)
    assert (held["NumVert"], held["MeanThickness"]) == pytest.approx((144204, 2.45))
    assert len(names) == 3 + 18 + 2 * (version > 5)
    chosen, thick = read_one_file(tmp_path, f"{side}.aparc.stats", aparc(version, side), ["*_thickness"])
    assert len(chosen) == 2
    assert thick == pytest.approx([2.541, 2.413])


OTHERS = {
    "samseg.stats": (
        "# Measure Left-Amygdala, 1612.3, mm^3\n# Measure Intra-Cranial, 1540000, mm^3\n",
        "Intra-Cranial",
    ),
    "lh.w-g.pct.stats": (
        "# hemi lh\n# NRows 1\n# ColHeaders  Index SegId NVertices Area_mm2 StructName Mean StdDev\n"
        "  1   1001   1374    938.4  bankssts   21.3  4.1\n",
        "lh_bankssts_Mean",
    ),
    "wmparc.stats": (
        "# NRows 1\n# ColHeaders  Index SegId NVoxels Volume_mm3 StructName normMean\n"
        " 1 3001 900 913.5 wm-lh-bankssts 95\n",
        "wm-lh-bankssts",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_statistics_of_freesurfer_are_read_too(tmp_path: Path, name: str) -> None:
    content, wanted = OTHERS[name]
    assert wanted in read_one_file(tmp_path, name, content, ["*"])[0]


@pytest.mark.parametrize(
    ("content", "row"),
    [
        (aparc(7).replace(" 2.413 0.298", ""), "last"),  # a row is cut
        (aparc(7).rstrip("\n")[:-2], "last"),  # in the middle of its last number
        (aseg(7).rstrip("\n")[:-2], "last"),
        (aparc(7).partition("bankssts  ")[0], None),  # nothing but the header
        (aparc(7).replace("NTableCols 10", "NTableCols 11"), None),
        (aparc(7).replace("# ColHeaders StructName", "# ColHeaders Name"), "headers"),
        (aseg(7).replace("  2  17      3842     3899.0  Left-Hippocampus                  71.2\n", ""), None),
        (aseg(7).replace("Left-Hippocampus  ", "Left Hippocampus  "), "17"),
        (aseg(7).replace("Intracranial Volume, 1560284.5, mm^3", "").replace(", Estimated Total", ""), "measure"),
    ],
)
def test_statistics_that_are_not_whole_are_refused(tmp_path: Path, content: str, row: str | None) -> None:
    with pytest.raises(DataError) as error:
        read_one_file(tmp_path, "x.stats", content, ["*"])
    assert (error.value.code, error.value.file) == ("statistics-incomplete", str(tmp_path / "x.stats"))
    assert (error.value.row is None) == (row is None)


def test_a_region_of_another_version_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read_one_file(tmp_path, "aseg.stats", aseg(5), ["eTIV"])
    assert (error.value.code, error.value.field) == ("region-missing", "eTIV")
