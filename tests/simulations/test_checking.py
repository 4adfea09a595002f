"""`check` predicts a step's bytes, and `verify` tells an exact method from one that is not."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from rankdad.common.data import Samples, SiteData
from rankdad.common.documents import validate
from rankdad.common.lowrank.factors import Factor
from rankdad.common.lowrank.routes import Payload
from rankdad.common.methods import Contribution, dad
from rankdad.common.models import build_model
from rankdad.common.protocol.message_sizes import step_bytes
from rankdad.common.protocol.messages import DataWarning
from rankdad.common.protocol.plan import make_plan
from rankdad.common.spec import RunSpec
from rankdad.common.spec.solver import NOT_EXACT
from rankdad.local.admission import NO_SUMS
from rankdad.remote.journal import PAGE
from rankdad.simulations.checking import show_plan
from rankdad.simulations.verifying import show_verification, verify
from tests.conftest import SITES, part_of, run_document, run_spec

Data = Callable[..., dict[str, SiteData]]
RANK_DAD = {"name": "rank-dad", "rank": 2, "reducer": "exact"}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exact_methods_are_exact_and_the_rest_is_near_optimal(site_data: Data, dtype: str) -> None:
    spec = run_spec(model={"name": "mlp", "hidden": [64, 64]}, method=RANK_DAD, training={"dtype": dtype})
    data = {site: part_of(own, "train") for site, own in site_data(spec).items()}
    found = {verification.method: verification for verification in verify(spec, data)[0]}
    assert list(found) == ["dsgd", "dad", "edad", "top-k", "rank-dad", "powersgd"]
    assert {name for name, one in found.items() if one.is_exact(dtype)} == {"dsgd", "dad", "edad"}
    for deviation in found["rank-dad"].deviations:
        assert deviation.rank == 2
        assert deviation.optimal <= deviation.error <= 1.3 * deviation.optimal + 1e-6, "reduced twice"
    for deviation in found["top-k"].deviations:
        assert deviation.dense or 0 < deviation.optimal <= deviation.error < 1
    for deviation in found["powersgd"].deviations:
        assert deviation.optimal <= deviation.error < 1 or deviation.error == pytest.approx(0, abs=1e-6)
    assert found["rank-dad"].up < found["dad"].up < found["dsgd"].up
    assert len(found["dsgd"].norms) == 3
    assert min(found["dsgd"].norms) > 0
    assert show_verification(spec, list(found.values()), Console(quiet=True))


@pytest.mark.slow
def test_bytes_that_are_not_verified_are_said(site_data: Data, capsys: pytest.CaptureFixture[str]) -> None:
    for second_moment, said in (("elementwise", False), ("factored", True)):
        spec = run_spec(training={"optimizer": {"name": "adam", "lr": 0.01, "second_moment": second_moment}})
        data = {site: part_of(own, "train") for site, own in site_data(spec).items()}
        assert show_verification(spec, verify(spec, data)[0], Console())
        assert ("without the projections of a factored second moment" in capsys.readouterr().out) == said


def test_an_exact_method_that_is_not_is_found_out(site_data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(contributions: list[Contribution]) -> Payload:
        """The plain mean of unequal sites."""
        parts = [contribution.payload for contribution in contributions]
        return tuple(
            Factor(torch.cat([v.delta for v in values]) / 3, torch.cat([v.activation for v in values]))
            if isinstance(values[0], Factor)
            else torch.stack(list(values)).mean(dim=0)
            for values in zip(*parts, strict=True)
        )

    monkeypatch.setattr(dad, "pooled", wrong)
    spec = run_spec(model={"name": "mlp", "hidden": [64, 64]}, method={"name": "dad"})
    data = {site: part_of(own, "train") for site, own in site_data(spec).items()}
    data["gamma"] = data["gamma"].take(torch.arange(3))
    found, _ = verify(spec, data)
    assert {one.method: one.is_exact("float32") for one in found[:3]} == {"dsgd": True, "dad": False, "edad": True}
    assert not show_verification(spec, found, Console(quiet=True))


def test_check_prints_every_parameter_and_the_largest_body(tmp_path: Path) -> None:
    spec = run_spec(
        model={"name": "mlp", "hidden": [1024, 1024]},
        data={"shape": [64]},
        task={"name": "classification", "classes": 10},
        method={"name": "rank-dad", "rank": 4},
    )
    with (tmp_path / "out").open("w") as file:
        show_plan(spec, make_plan(spec, build_model(spec)), Console(file=file, width=120))
    printed = (tmp_path / "out").read_text()
    assert "3.weight + 3.bias" in printed
    assert "at most 66,838 bytes up and 66,838 down per site and step, 67.4 times fewer" in printed
    said = r"disk space at the aggregator: at most ([\d,]+) bytes per step and"
    found = re.search(said, " ".join(printed.split()))
    assert found
    assert 0 <= int(found[1].replace(",", "")) - 4 * 66_838 < 4 * 4 * PAGE, "three contributions and the update"


def test_a_step_has_as_many_batches_as_the_site_that_takes_most(tmp_path: Path) -> None:
    federation = {"sites": list(SITES), "overrides": {"beta": {"local_steps": 7}}}
    spec = run_spec(method={"name": "dsgd", "local_steps": 2}, federation=federation)
    with (tmp_path / "out").open("w") as file:
        show_plan(spec, make_plan(spec, build_model(spec)), Console(file=file, width=120))
    assert "per site and step of at most 7 batches" in " ".join((tmp_path / "out").read_text().split())


def test_a_method_that_does_not_fit_is_left_out_and_says_why(site_data: Data) -> None:
    spec = run_spec(model={"name": "mlp", "hidden": [64, 64], "activation": "gelu"}, method=RANK_DAD)
    found, misfits = verify(spec, {site: part_of(own, "train") for site, own in site_data(spec).items()})
    assert [one.method for one in found] == ["dsgd", "dad", "top-k", "rank-dad", "powersgd"]
    assert len(misfits) == 1
    assert "edad is left out" in misfits[0]
    assert "GELU" in misfits[0]


@pytest.mark.parametrize(
    "method",
    [
        {"name": "dsgd"},
        {"name": "dad"},
        {"name": "edad"},
        {"name": "rank-dad", "rank": 2},
        {"name": "rank-dad", "rank": 2, "wire": "int8"},
        {"name": "powersgd", "rank": 2},
        {"name": "top-k", "wire": "int8"},
    ],
    ids=lambda method: method["name"],
)
def test_bytes_as_sent_are_those_that_the_plan_predicts(site_data: Data, method: dict[str, Any]) -> None:
    spec = run_spec(model={"name": "mlp", "hidden": [64, 64]}, method=method, training={"batch_size": 30})
    data = {
        site: part_of(own, "train").take(torch.arange(30) % len(own.splits[0].train))
        for site, own in site_data(spec).items()
    }
    plan = make_plan(spec, build_model(spec))
    (own,) = [one for one in verify(spec, data)[0] if one.method == method["name"]]
    assert own.up == step_bytes(plan, up=True)
    assert own.down == step_bytes(plan, up=False)


@pytest.mark.parametrize(("warnings", "step"), [((), False), ((NOT_EXACT,), True)])
def test_check_says_which_solver_the_policies_in_force_leave(warnings: tuple[DataWarning, ...], step: bool) -> None:
    """It said "exact or dsgd", and that full gradients are 2.0 times more than full gradients."""
    two = {"name": "classification", "classes": 2}
    document = run_document(model={"name": "linear"}, task=two) | {"training": {"solver": "auto"}}
    del document["method"]
    spec, note = validate(RunSpec, document), f"{NO_SUMS}: training.solver: why"
    own = SiteData(Samples(torch.zeros(1, 6), torch.zeros(1).long()), (), warnings=warnings, notes=(note,) * step)
    console = Console(file=StringIO(), width=200)
    show_plan(spec, make_plan(spec, build_model(spec)), console, dict.fromkeys(SITES, own))
    assert isinstance(console.file, StringIO)
    printed = console.file.getvalue()
    assert ("no step" in printed, note in printed) == (not step, step)
    assert "times" not in printed
