"""Statistics of FreeSurfer: either form, of every version, and every fault by its file without telling its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankdad.common.data import read_samples
from rankdad.common.data.columns import resolved
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import FreesurferData
from tests.common.data.readings import inputs_of, labels_of, two_classes
from tests.common.faults import Fault, fault, refused
from tests.conftest import run_spec

DATA: dict[str, Any] = {
    **{"reader": "freesurfer", "covariates": "people.csv", "key": "file", "label": "group", "values": [0, 1]},
    **{"features": ["eTIV", "Left-Amygdala", "BrainSeg"], "covariate_features": ["age"]},
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
    return two_classes(DATA | changes)


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
    assert inputs_of(found) == [[1560284.5, 1612.699951171875, 1.2e6, 25], [1.4e6, 1500, 1.1e6, 30]]
    assert (labels_of(found), found.keys) == ([0, 1], ("sub-1/aseg.stats", "b.txt"))


@pytest.mark.parametrize(
    ("file", "old", "new", "found"),
    [
        ("people", "b.txt", "c.txt", ("file-missing", "", None)),
        ("people", "b.txt", "sub-1", ("file-missing", "", None)),
        *[("people", "b.txt", out, ("cell", "file", 3)) for out in ("../b.txt", "/etc/passwd")],
        ("people", "b.txt", "a" * 300, ("cannot-read", "", None)),
        ("people", "b.txt", "./sub-1/aseg.stats", ("key-repeated", "file", 3)),
        ("people", "b.txt", "", ("key-missing", "file", 3)),
        ("people", "age", "Age", ("column-missing", "age", None)),
        ("people", PEOPLE[15:], "", ("no-rows", "", None)),
        ("stats", STATS, "", ("statistics-empty", "", None)),
        ("stats", "eTIV", "ETIV", ("region-missing", "eTIV", None)),
        ("stats", "1200000.0", "much", ("not-a-number", "BrainSeg", None)),
        ("pairs", "1500", "inf", ("not-a-number", "Left-Amygdala", None)),
        ("pairs", "eTIV", "Left-Amygdala\t1\neTIV", ("region-repeated", "Left-Amygdala", None)),
        ("pairs", "\t1500", " 1500", ("line-malformed", "", 2)),
        ("pairs", "1500", "NA", ("cell", "Left-Amygdala", None)),
    ],
)  # fmt: skip
def test_every_fault_is_named(tmp_path: Path, file: str, old: str, new: str, found: Fault) -> None:
    held = {"people": PEOPLE, "stats": STATS, "pairs": PAIRS}[file]
    assert old in held
    folder = write(tmp_path, **{file: held.replace(old, new)})
    assert fault(lambda: read_samples(spec_of(), folder), "b.txt", "sub-1", str(tmp_path)) == found


def test_bytes_that_are_no_text_and_links_that_lead_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, stats=b"# M\xe4ure")
    assert fault(lambda: read_samples(spec_of(), folder)) == ("not-utf-8", "", None)
    (folder / "sub-1" / "aseg.stats").write_text(STATS)
    (tmp_path / "secret.txt").write_text(PAIRS)
    (folder / "b.txt").unlink()
    (folder / "b.txt").symlink_to(tmp_path / "secret.txt")
    assert fault(lambda: read_samples(spec_of(), folder)) == ("cell", "file", 3)


def test_a_missing_number_is_dropped_where_the_schema_says_so(tmp_path: Path) -> None:
    found = read_samples(spec_of(missing="drop"), write(tmp_path, pairs=PAIRS.replace("1500", "")) / "people.csv")
    assert (found.keys, found.dropped, len(found.notes)) == (("sub-1/aseg.stats",), 1, 1)


def test_subjects_have_groups_kept_columns_and_gaps_like_the_rows_of_any_table(tmp_path: Path) -> None:
    folder = write(tmp_path, PEOPLE.replace(",25", ","), pairs=PAIRS.replace("1500", "NA"))
    (folder / "more.csv").write_text("file,iq,family\nb.txt,101,f2\n./sub-1/aseg.stats,99,01\nc.txt,1,f3\n")
    changes = {"covariates": ["people.csv", "more.csv"], "missing": "impute", "group": "family", "values": []}
    keep = {"harmonise": {"name": "combat", "keep": ["iq", "eTIV"]}}
    spec = run_spec(task={"name": "regression"}, data=DATA | changes, preparation=keep)
    for path in (folder, folder / "people.csv"):
        found = read_samples(spec, path)
        assert np.isnan(found.inputs).tolist() == [[False, False, False, True], [False, True, False, False]]
        assert (found.groups, labels_of(found)) == (("01", "f2"), [0, 1])
        assert found.covariates is not None
        assert found.covariates.tolist() == [[99, 1560284.5], [101, 1.4e6]]
        assert (found.dropped, len(found.notes)) == (1, 2)


def test_for_a_prediction_neither_label_nor_group_is_needed(tmp_path: Path) -> None:
    folder = write(tmp_path, "file,age\nb.txt,30\n")
    found = read_samples(spec_of(group="family"), folder, beside=())
    assert (found.labels, found.groups, found.keys) == (None, None, ("b.txt",))


def aseg(version: int) -> str:
    """What recon-all of a version writes to aseg.stats; three regions of 45."""
    measures = (
        "# Measure lhCortex, lhCortexVol, Left hemisphere cortical gray matter volume, 237312.4, mm^3\n"
        "# Measure IntraCranialVol, ICV, Intracranial Volume, 1560284.5, mm^3"
        if version == 5
        else "# Measure VentricleChoroidVol, VentricleChoroidVol, Volume of ventricles, 18713.0, mm^3\n"
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
# Measure BrainSeg, BrainSegVol, Brain Segmentation Volume, 1177343.000000, mm^3
{measures}
# SegVolFile mri/aseg.mgz
# Only reporting non-empty segmentations
{table}# NRows 3
# NTableCols 6
# ColHeaders  Index SegId NVoxels Volume_mm3 StructName normMean
  1   4      6563     6631.3  Left-Lateral-Ventricle            26.8
  2  17      3842     3899.0  Left-Hippocampus                  71.2
  3  77      1012     {"1020" if version == 8 else "1020.0"}  WM-hypointensities                64.9
"""


def aparc(version: int, side: str = "lh") -> str:
    """What recon-all of a version writes to ?h.aparc.stats; two regions of 34."""
    more = "" if version == 5 else (
        "# Measure BrainSegNotVent, BrainSegVolNotVent, Brain Segmentation Volume Without Ventricles, 1155, mm^3\n"
        "# Measure EstimatedTotalIntraCranialVol, eTIV, Estimated Total Intracranial Volume, 1560284.5, mm^3\n"
    )  # fmt: skip
    names = "StructName NumVert SurfArea GrayVol ThickAvg ThickStd MeanCurv GausCurv FoldInd CurvInd"
    table = "".join(f"# TableCol {place:2} ColHeader {name}\n" for place, name in enumerate(names.split(), 1))
    return f"""# Title Segmentation Statistics
#
# generating_program mris_anatomical_stats
# mrisurf.c-cvs_version {version}
# anatomy_type surface
# hemi {side}
# AnnotationFile ../label/{side}.aparc.annot
# Measure Cortex, NumVert, Number of Vertices, 144204, unitless
# Measure Cortex, WhiteSurfArea, White Surface Total Area, 98553.7, mm^2
# Measure Cortex, MeanThickness, Mean Thickness, 2.45, mm
{more}{table}# NTableCols 10
# ColHeaders {names}
bankssts                                 1374    938   2300  2.541 0.412     0.101     0.023       11     1.2
transversetemporal                        601    412   1104  2.413 0.298     0.115     0.031        6     0.7
"""


def read_one_file(folder: Path, name: str, content: str, features: list[str]) -> dict[str, float]:
    (folder / name).write_text(content)
    (folder / "people.csv").write_text(f"file,group,age\n{name},0,30\n")
    spec = spec_of(features=features, covariate_features=[])
    assert isinstance(spec.data, FreesurferData)
    data = resolved(spec.data, folder)
    (values,) = inputs_of(read_samples(spec.model_copy(update={"data": data}), folder))
    return dict(zip(data.features, values, strict=True))


@pytest.mark.parametrize("version", [5, 6, 7, 8])
def test_statistics_of_every_version_are_read_whole(tmp_path: Path, version: int) -> None:
    measures = {"BrainSegVol": 1177343, "lhCortexVol": 237312.4, "ICV": 1560284.5}
    if version > 5:
        measures = {"BrainSegVol": 1177343, "VentricleChoroidVol": 18713, "MaskVol-to-eTIV": 1.1, "eTIV": 1560284.5}
    regions = {"Left-Lateral-Ventricle": 6631.3, "Left-Hippocampus": 3899, "WM-hypointensities": 1020}
    found = read_one_file(tmp_path, "aseg.stats", aseg(version), ["*"])
    assert list(found) == [*measures, *regions]
    assert found == pytest.approx(measures | regions, rel=1e-6)
    kinds = ["NumVert", "area", "volume", "thickness", "thicknessstd", "meancurv", "gauscurv", "foldind", "curvind"]
    for side in ("lh", "rh"):
        held = read_one_file(tmp_path, f"{side}.aparc.stats", aparc(version, side), ["*"])
        expected = [f"{side}_{region}_{kind}" for region in ("bankssts", "transversetemporal") for kind in kinds]
        assert [name for name in held if name.startswith(f"{side}_")] == expected
        assert (held[expected[3]], held[expected[-1]]) == pytest.approx((2.541, 0.7))
        assert (held["NumVert"], held["MeanThickness"]) == pytest.approx((144204, 2.45))
        assert len(held) == 3 + 18 + 2 * (version > 5)
        thick = read_one_file(tmp_path, f"{side}.aparc.stats", aparc(version, side), ["*_thickness"])
        assert list(thick.values()) == pytest.approx([2.541, 2.413])


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("samseg.stats", "# Measure L, 1612.3, mm^3\n# Measure Intra-Cranial, 1540000, mm^3\n", "Intra-Cranial"),
        ("lh.w-g.pct.stats", "# hemi lh\n# NRows 1\n"
         "# ColHeaders  Index SegId NVertices Area_mm2 StructName Mean StdDev\n"
         "  1   1001   1374    938.4  bankssts   21.3  4.1\n", "lh_bankssts_Mean"),
        ("wmparc.stats", "# NRows 1\n# ColHeaders  Index SegId NVoxels Volume_mm3 StructName normMean\n"
         " 1 3001 900 913.5 wm-lh-bankssts 95\n", "wm-lh-bankssts"),
    ],
)  # fmt: skip
def test_other_statistics_of_freesurfer_are_read_too(tmp_path: Path, name: str, content: str, wanted: str) -> None:
    assert wanted in read_one_file(tmp_path, name, content, ["*"])


@pytest.mark.parametrize(
    ("content", "has_row"),
    [
        (aparc(7).replace(" 2.413 0.298", ""), True),  # a row is cut
        (aparc(7).rstrip("\n")[:-2], True),  # in the middle of its last number
        (aseg(7).rstrip("\n")[:-2], True),
        (aparc(7).partition("bankssts  ")[0], False),  # nothing but the header
        (aparc(7).replace("NTableCols 10", "NTableCols 11"), False),
        (aparc(7).replace("# ColHeaders StructName", "# ColHeaders Name"), True),
        (aseg(7).replace("  2  17      3842     3899.0  Left-Hippocampus                  71.2\n", ""), False),
        (aseg(7).replace("Left-Hippocampus  ", "Left Hippocampus  "), True),
        (aseg(7).replace("Intracranial Volume, 1560284.5, mm^3", "").replace(", Estimated Total", ""), True),
    ],
)
def test_statistics_that_are_not_whole_are_refused(tmp_path: Path, content: str, has_row: bool) -> None:
    error = refused(lambda: read_one_file(tmp_path, "x.stats", content, ["*"]))
    assert (error.code, error.file) == ("statistics-incomplete", str(tmp_path / "x.stats"))
    assert (error.row is not None) == has_row
