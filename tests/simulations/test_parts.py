"""Whole runs of sites whose patients lie in few parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.data import SiteData, read_site
from rankdad.common.policy import MinLevel, Policy
from rankdad.common.privacy.parts import Secret
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.repeats import alike, equal_repeats
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.local.admission import admitted
from rankdad.local.privacy.assigning import PartAssigner
from rankdad.remote.report import narrative
from rankdad.remote.report.result_lines import result_lines
from rankdad.remote.results.run_results import read_results
from rankdad.simulations import lockstep
from rankdad.simulations.checking import check_policy
from tests.conftest import SITES, run_spec, write_site


def halves(folder: Path, evaluation: dict[str, Any], sites: int) -> tuple[RunSpec, dict[str, SiteData]]:
    """Hospitals of 40 patients, in two parts each."""
    spec = run_spec(evaluation=evaluation, federation={"sites": list(SITES[:sites])}, training={"epochs": 1})
    data = {}
    for place, site in enumerate(SITES[:sites]):
        write_site(folder / site, 40, place)
        data[site] = read_site(spec, folder / site, place, assigner=PartAssigner(spec, Secret(bytes([place]) * 32), 20))
    return spec, data


def test_a_repeat_is_equal_to_another_if_it_is_at_every_site_whatever_the_order_of_its_folds() -> None:
    assert alike(["a", "b", "a", "b", "c"]) == (0, 1, 0, 1, 4)
    one, other = (0, 1, 1, 0, 0, 1), (0, 1, 1, 0, 1, 0)
    assert equal_repeats([one], 2) == equal_repeats([other], 2) == (1, 2)
    assert equal_repeats([one, other], 2) == (1,)
    assert equal_repeats([one, (0, 1, 0, 1, 4, 5)], 2) == ()
    assert equal_repeats([], 2) == ()


@pytest.mark.slow
@pytest.mark.parametrize(("sites", "run"), [(1, 1), (2, 2)])
def test_equal_repeats_are_run_once_and_the_partitions_of_each_site_are_told(
    tmp_path: Path, sites: int, run: int
) -> None:
    """Two hospitals of two parts each: a fold is a part of each, and there are two ways to pair them."""
    spec, data = halves(tmp_path, {"name": "k-fold", "folds": 2, "repeats": 8}, sites)
    assert all(any("split this site's samples differently" in note for note in own.notes) for own in data.values())
    lockstep.run(spec, data, tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["partitions"] == {"repeats": 8, "run": run, "sites": dict.fromkeys(data, 1)}
    assert summary["metrics"]["folds"]["auc"]["count"] == 2 * run
    assert summary["metrics"]["test"]["samples"] == 40 * sites
    assert len(set(summary["weights_sha256"].values())) == 1
    read = read_results(tmp_path / "run")
    assert read.repeats == run
    assert f"{8 - run} that equal an earlier one at every site" in narrative.tested(read)
    assert f"repeats: {8 - run} of 8" in "\n".join(result_lines(summary, spec))
    apart = {"repeats": 8, "run": 8, "sites": {"alpha": 8, "beta": 3}}  # nothing is left out, and beta has fewer
    assert "repeats: different partitions of 8: beta 3, alpha 8" in list(
        result_lines(summary | {"partitions": apart}, spec)
    )
    assert ("2 times" in narrative.extent(read)) == (run == 2)


@pytest.mark.slow
@pytest.mark.parametrize("evaluation", ["k-fold", "leave-one-site-out"])
def test_a_site_of_a_single_part_trains_and_is_tested_where_sites_are_left_out(tmp_path: Path, evaluation: str) -> None:
    """Under the default policy: no fold holds out any of 19, six of each class, but a model of others meets them."""
    training = {"epochs": 1, "validation": 0.2, "batch_size": 16, "solver": "steps"}
    spec = run_spec(evaluation={"name": evaluation}, model={"name": "linear"}, training=training)
    policy, plan, data = Policy(), make_plan(spec, Replica(spec).model), dict[str, SiteData]()
    for place, (site, patients) in enumerate(zip(SITES, (60, 19, 60), strict=True)):
        write_site(tmp_path / site, patients, place)
        assigner = PartAssigner(spec, Secret(bytes([place]) * 32), policy.min_rows, level=MinLevel(count=4))
        data[site] = admitted(policy, spec, plan, read_site(spec, tmp_path / site, place, assigner=assigner))
    check_policy(policy, spec, plan, list(data.values()))
    lockstep.run(spec, data, tmp_path / "run")
    tested = {"alpha": 60, "beta": 19 if evaluation == "leave-one-site-out" else 0, "gamma": 60}
    assert {row["site"]: row["samples"] for row in read_results(tmp_path / "run").sites.to_dict("records")} == tested
    trained = [len(split.train) for split in data["beta"].splits]
    assert trained == ([19, 0, 19, 19] if evaluation == "leave-one-site-out" else [19] * 6)
