"""A site's policy refuses before data and weights are read; the site and its aggregator get the reason."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from rankdad.common.errors import DataError, PolicyError, SpecError, UserError
from rankdad.common.models import build_model
from rankdad.common.needs import Need
from rankdad.common.protocol.codec import unpack
from rankdad.common.protocol.messages import Failure
from rankdad.common.protocol.plan import make_plan
from rankdad.common.protocol.versions import OUR_VERSION
from rankdad.common.spec import RunSpec
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.running import run_site
from rankdad.local.taking_part import check_site, permitted
from tests.conftest import run_spec, write_site
from tests.local.policies import RANK_DAD, asking
from tests.local.test_http import Server
from tests.local.test_http import server as server


def site(tmp_path: Path, server: Server, spec: RunSpec, policy: dict[str, Any]) -> SiteConfig:
    """A site whose aggregator offers a run and takes one contribution."""
    offered = {**OUR_VERSION, "run": spec.model_dump(mode="json"), "id": "0" * 16}
    server.script = [(200, json.dumps(offered).encode()), (200, b"")]
    (tmp_path / "policy.json").write_text(json.dumps(policy))
    address = f"http://127.0.0.1:{server.server_port}"
    document = {"name": "alpha", "aggregator": address, "data": "data", "output": "out", "policy": "policy.json"}
    (tmp_path / "alpha.json").write_text(json.dumps(document))
    return SiteConfig.read(tmp_path / "alpha.json")


def test_a_site_is_told_all_lines_that_refuse_before_it_reads_any_data(tmp_path: Path, server: Server) -> None:
    lines: dict[str, Any] = {"columns": ["age"], "files": [], "group": "family", "min_sites": 4, "methods": []}
    with pytest.raises(PolicyError) as caught:
        check_site(site(tmp_path, server, asking(), lines), asking())
    told = [line for said in caught.value.quoted for line in lines if f"({line})" in said]
    assert told == ["min_sites", "files", "columns", "group", "methods"]


def test_a_check_looks_whether_results_can_be_written(tmp_path: Path, server: Server) -> None:
    config, blocked = site(tmp_path, server, asking(), {}), tmp_path / "file" / "out"
    blocked.parent.write_text("")
    with pytest.raises(UserError) as error:
        check_site(config.model_copy(update={"output": str(blocked)}), asking())
    assert (error.value.code, error.value.field) == ("cannot-write", "output")


def test_the_policy_speaks_before_the_data_and_to_the_aggregator(tmp_path: Path, server: Server) -> None:
    """There are no data here at all."""
    spec = run_spec(method={"name": "dad"})
    with pytest.raises(PolicyError) as error:
        run_site(site(tmp_path, server, spec, {}))
    assert error.value.exit_code == 2
    told = unpack(server.bodies[0], make_plan(spec, build_model(spec)), up=True).body
    assert told == Failure(
        site="alpha", reason=str(error.value), code="policy-refuses", field="method.name", final=False
    )


def test_the_policy_speaks_before_the_weights_to_begin_with(tmp_path: Path, server: Server) -> None:
    """There is no such file."""
    pretrained = {"file": "gone.safetensors", "sha256": "0" * 64}
    spec = run_spec(method={"name": "dad"}, model={"name": "mlp", "hidden": [4], "pretrained": pretrained})
    with pytest.raises(PolicyError) as error:
        run_site(site(tmp_path, server, spec, {"pretrained": None}))
    assert (error.value.code, error.value.field) == ("policy-refuses", "method.name")


@pytest.mark.parametrize("listed", [[], ["1" * 64]])
def test_weights_that_no_policy_lists_are_refused_before_they_are_read(
    tmp_path: Path, server: Server, listed: list[str]
) -> None:
    """There is no such file; a policy that lists its digest gets as far as looking for it."""
    digest = "0" * 64
    spec = run_spec(
        method=RANK_DAD,
        model={"name": "mlp", "hidden": [4], "pretrained": {"file": "gone.safetensors", "sha256": digest}},
    )
    with pytest.raises(PolicyError) as error:
        run_site(site(tmp_path, server, spec, {"pretrained": listed}))
    assert (error.value.code, error.value.field) == ("weights-not-listed", "model.pretrained.sha256")
    assert error.value.change == {"pretrained": [*listed, digest]}
    with pytest.raises(SpecError) as found:
        check_site(site(tmp_path, server, spec, error.value.change), spec)
    assert found.value.code == "weights-missing"


def test_a_site_and_its_aggregator_begin_with_the_same_weights_of_a_file(tmp_path: Path, server: Server) -> None:
    """The site's plan named the digest of random ones: no such run could begin."""
    alone = run_spec(method=RANK_DAD, model={"name": "mlp", "hidden": [4]})
    path = tmp_path / "w.safetensors"
    save_file(build_model(run_spec(method=RANK_DAD, model={"name": "mlp", "hidden": [4]}, seed=7)).state_dict(), path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    model = alone.model.model_dump() | {"pretrained": {"file": path.name, "sha256": digest}}
    spec = run_spec(method=RANK_DAD, model=model)
    config = site(tmp_path, server, spec, {"pretrained": [digest]}).model_copy(update={"weights": str(tmp_path)})
    _, _, plan = permitted(config, spec)
    assert plan.sha256() == make_plan(spec, build_model(spec, weights=tmp_path)).sha256()


def test_refused_runs_count_until_an_owner_has_had_enough(tmp_path: Path, server: Server) -> None:
    """An aggregator may give two runs one number: the second counts, too; one that comes back does not."""
    codes = list[str]()
    for lr in (0.1, 0.1, 0.2, 0.3):
        spec = run_spec(method={"name": "dad"}, training={"optimizer": {"name": "sgd", "lr": lr}})
        with pytest.raises(PolicyError) as error:
            run_site(site(tmp_path, server, spec, {"runs_per_day": 2}))
        codes.append(error.value.code)
    assert codes == ["policy-refuses"] * 3 + ["too-many-runs"]


def test_the_aggregator_is_not_told_how_few_samples_there_are(tmp_path: Path, server: Server) -> None:
    spec = run_spec(method=RANK_DAD)
    write_site(tmp_path / "data", 10, 0)
    with pytest.raises(PolicyError, match="7"):
        run_site(site(tmp_path, server, spec, {"min_rows": 8, "keyed_folds": True}))
    told = unpack(server.bodies[0], make_plan(spec, build_model(spec)), up=True).body
    assert isinstance(told, Failure)
    assert (told.site, told.final) == ("alpha", False)
    assert (told.code, told.field) == ("steps-of-too-few", "training.batch_size")
    assert not re.search(r"\d", told.reason)


@pytest.mark.slow
def test_a_check_says_what_the_policy_makes_of_the_run(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    spec = run_spec(method=RANK_DAD)
    with pytest.raises(DataError):  # nothing in the policy's way
        check_site(site(tmp_path, server, spec, {}))
    write_site(tmp_path / "data", 34, 0)
    asked = list[Need]()
    with pytest.raises(PolicyError):
        check_site(site(tmp_path, server, spec, {"max_rank": 1}), show=asked.extend)
    assert [(one.line, one.needed, one.here) for one in asked if one.refused] == [("max_rank", 2, 1)]
    assert {"min_rows", "methods", "min_sites"} < {one.line for one in asked}
    check_site(site(tmp_path, server, spec, {"min_rows": 7, "max_rank": 2, "rows_per_rank": 1, "keyed_folds": True}))
    assert "22 samples to train on" in capsys.readouterr().out
    assert "validation: 5 samples are left out" in caplog.text
    assert not server.bodies
