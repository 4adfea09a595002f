"""The service in containers of the image, as the platform starts them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rankdad.common.data import SiteData, read_site
from rankdad.common.documents import validate
from rankdad.common.policy import Policy
from rankdad.common.spec import RunSpec
from rankdad.local.privacy.assigning import PartAssigner, secret_of_files
from rankdad.platforms.coinstac.fields import FIELDS
from rankdad.platforms.coinstac.mounts import LIMITS
from rankdad.platforms.coinstac.site_run import BEGINNING
from rankdad.simulations.lockstep import run as lockstep
from tests.coinstac.nodes import ContainerNode
from tests.coinstac.platform import Faults, Platform, When
from tests.docker.images import image
from tests.platforms.test_service import digests, platform_of, small, without_the_platform, write_member

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.xdist_group("containers"), pytest.mark.timeout(600)]


def run(folder: Path, sites: int, kills: Collection[tuple[int, str, When]] = ()) -> Platform:
    spec, form = small(sites)
    start = partial(ContainerNode, image=image())
    platform = platform_of(form, folder / "platform", write_member, start=start, faults=Faults(kills=kills))
    platform.run()
    folders = [node.input for node in platform.sites]
    assert digests(platform) == without_the_platform(spec, folders, folder / "http")
    assert all(stop.seconds < 5 and stop.status == 0 for stop in platform.stops.values()), platform.stops
    return platform


@pytest.mark.exhaustive
@pytest.mark.alone
def test_containers_begin_soon_and_end_with_the_weights_of_the_run_over_http(tmp_path: Path) -> None:
    platform = run(tmp_path, 2)
    opened = max(accepted for node in platform.nodes.values() for accepted in node.accepted)
    first = opened + sum(one.seconds for one in platform.iterations[:2])  # the second carries hello
    print(f"\ncontainers: socket open after {opened:.2f} s at most, first round complete {first:.1f} s after the start")
    assert opened <= 3
    assert first <= 25  # 15 where nothing else runs


@pytest.mark.exhaustive
def test_containers_that_are_killed_change_nothing(tmp_path: Path) -> None:
    """Four sites; one dies between two iterations, one in the middle of one, and the aggregator twice."""
    run(
        tmp_path,
        4,
        [(4, "local0", "before"), (6, "local3", "during"), (5, "remote", "before"), (8, "remote", "answered")],
    )


def hospitals(table: pd.DataFrame, shares: Sequence[int]) -> Callable[[Path, int], Sequence[str]]:
    """Return what writes the part of a table that each of some hospitals has, as plain CSV."""
    shuffled, ends = table.sample(frac=1, random_state=0), np.cumsum(shares)

    def write(folder: Path, place: int) -> Sequence[str]:
        own = shuffled.iloc[ends[place] - shares[place] : ends[place]]
        own.to_csv(folder / "patients.csv", index=False)
        return ["patients.csv"]

    return write


def form_alone(folder: Path, form: Mapping[str, Any], table: pd.DataFrame, shares: Sequence[int]) -> Any:
    """Return what the owner is shown, when everything else has been checked."""
    start = partial(ContainerNode, image=image(), files_owner=4321 if os.geteuid() == 0 else None)
    write = hospitals(table, shares)
    platform = platform_of([form] * len(shares), folder / "platform", write, start=start)
    shown = platform.run()
    spec = validate(RunSpec, json.loads((platform.remote.output / "run" / "run.json").read_text()))
    clients = {node.client_id: node for node in platform.sites}
    policy, data = Policy(**{name: FIELDS[name].default for name in LIMITS}), dict[str, SiteData]()
    for place, site in enumerate(spec.federation.sites):
        file = clients[site].input / "patients.csv"
        drawn = (clients[site].output / BEGINNING).read_text()
        assigner = PartAssigner(spec, secret_of_files(file), policy.min_rows, level=policy.min_level, beginning=drawn)
        data[site] = read_site(spec, file, place, assigner=assigner)
    policies = dict.fromkeys(data, policy)
    over_http = next(iter(lockstep(spec, data, folder / "http", policies=policies).values())).weights_sha256
    assert digests(platform) == over_http
    assert len(shown["global_stats"]) >= 3
    for node in platform.sites:
        for path in shown["global_stats"]:
            assert (node.output / path).read_bytes().startswith(b"\x89PNG")
        assert (node.output / "report.html").read_text().count("<svg") >= 3
    return shown


@pytest.mark.exhaustive
def test_a_form_and_three_hospitals_tables_with_text_labels(tmp_path: Path) -> None:
    from sklearn.datasets import load_breast_cancer  # a second of every collection

    table = load_breast_cancer(as_frame=True).frame
    table["diagnosis"] = np.where(table.pop("target") == 0, "malignant", "benign")
    table.insert(0, "id", [f"P{row:04d}" for row in range(len(table))])
    shown = form_alone(tmp_path, {"label": "diagnosis"}, table, (300, 180, 89))
    print(f"\nbreast cancer, form alone: {shown['global_metrics']}")
    assert shown["global_metrics"]["samples"] == 569
    assert shown["global_metrics"]["auc"] >= 0.98
    assert shown["global_metrics"]["balanced_accuracy"] >= 0.92


@pytest.mark.exhaustive
def test_a_form_and_three_hospitals_tables_with_a_number_to_predict(tmp_path: Path) -> None:
    from sklearn.datasets import load_diabetes

    table = load_diabetes(as_frame=True, scaled=False).frame.rename(columns={"target": "progression"})
    table.insert(0, "id", np.arange(1000, 1000 + len(table)))
    form = {"task": "regression", "label": "progression", "categorical": "sex"}
    shown = form_alone(tmp_path, form, table, (221, 147, 74))
    print(f"\ndiabetes, form alone: {shown['global_metrics']}")
    assert shown["global_metrics"]["pearson_r"] >= 0.68
