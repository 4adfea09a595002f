"""The page: it says what the tables say, of one fold or five, and which command makes what is missing."""

from __future__ import annotations

import pandas as pd
import pytest

from benchmarks.paper.claims import claims
from benchmarks.paper.page import TITLES, Meta, write
from benchmarks.paper.settings import SETTINGS
from tests.benchmarks.paper.tables import curve, seconds, sizes, spectra, timing
from tests.e2e.test_processes import ROOT

META = Meta(SETTINGS["middle"], " --quick", "2 processors, torch 9.9.", frozenset({"figure-3", "figure-6"}))


@pytest.mark.slow
def test_a_page_of_nothing_and_of_everything() -> None:
    assert write({}, META).count("Not measured yet") == len(TITLES)
    vit = pd.concat([curve("top-rows", (0.6, 0.7), "cifar10"), curve("dsgd", (0.6, 0.9), "cifar10", folds=(0,))])
    everything = {
        "figure-2": curve("dsgd", (0.9,)),
        "figure-3": spectra((4, 3, 2)),
        "figure-4": curve("dsgd", (0.9,), "natops"),
        "figure-5": vit,
        "figure-5-seconds": seconds(top_rows=1.0, dsgd=2.0, rank_dad_4=1.0),
        "figure-6": sizes("dsgd", 2),
        "table-3": timing(published_10=(0.05, 0.04)),
    }
    page = write(everything, META)
    assert "Not measured yet" not in page
    assert "| unshaped | dSGD | 2.000 (2.000 to 2.000) | 2.0 | 0.67 | -1.00 | 1 of 1 |" in page
    assert "| rank-dAD, converged, r=10 | 100 Mbit/s | dSGD | 0.050 | 0.040 |" in page
    for claim in claims(everything):
        assert f"{claim.statement} | {claim.measured} | **{claim.outcome}** |" in page
    del everything["figure-5-seconds"]
    assert "Not measured yet: figure-5-seconds;" in write(everything, META)


@pytest.mark.slow
def test_the_committed_page_is_what_its_tables_say() -> None:
    """Nobody has written a number or a verdict into it by hand."""
    folder = ROOT / "docs" / "paper"
    page = (folder / "README.md").read_text(encoding="utf-8")
    machine = page.partition("**Where.** ")[2].partition("\n")[0]
    tables = {path.stem: pd.read_csv(path) for path in folder.glob("*.csv")}
    pictures = frozenset(path.stem for path in folder.glob("*.png"))
    assert write(tables, Meta(SETTINGS["middle"], " --setting middle", machine, pictures)) == page
    assert {"figure-2", "figure-3", "figure-4", "figure-5", "figure-6", "table-3"} <= pictures
