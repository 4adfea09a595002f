"""How much the platform carries: known from the plan, and said before anything is sent."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.errors import RankdadError, SpecError
from rankdad.common.models import build_model
from rankdad.common.protocol.plan import make_plan
from rankdad.platforms.coinstac import aggregator_node
from rankdad.platforms.coinstac.form import FormError
from rankdad.platforms.coinstac.limits import MAX_BYTES, check_size, largest_message
from tests.conftest import OPEN, run_spec
from tests.platforms.nodes import REMOTE, Iterations, site_file
from tests.platforms.test_members import hospitals
from tests.platforms.test_nodes import consortium


def wide(sites: int, method: dict[str, Any], width: int = 256) -> Any:
    names = [f"site-{number}" for number in range(sites)]
    return run_spec(
        model={"name": "mlp", "hidden": [width, width]},
        data={"shape": [784]},
        task={"name": "classification", "classes": 10},
        method=method,
        federation={"sites": names},
    )


def test_a_run_whose_messages_fit_is_let_through_and_one_byte_more_is_not() -> None:
    spec = wide(4, {"name": "rank-dad", "rank": 10})
    model = build_model(spec)
    size = largest_message(spec, make_plan(spec, model))
    check_size(spec, model, size)
    with pytest.raises(SpecError):
        check_size(spec, model, size - 1)


@pytest.mark.slow
def test_what_is_too_large_is_refused_with_the_figure_and_what_fits() -> None:
    spec = wide(20, {"name": "dsgd"}, 1024)
    model = build_model(spec)
    assert largest_message(spec, make_plan(spec, model)) > 20 * 4 / 3 * 7_454_760 > MAX_BYTES
    with pytest.raises(SpecError) as raised:
        check_size(spec, model)
    said = str(raised.value)
    assert "method: dsgd with this network and 20 sites needs messages of up to 189.6 MiB, but the platform" in said
    assert "at most 100.0 MiB; what fits: wire bfloat16 (94.8 MiB), or wire int8 (50.5 MiB), or rank-dad with" in said


def test_a_replica_that_does_not_fit_into_an_update_is_seen_too() -> None:
    spec = wide(2, {"name": "rank-dad", "rank": 4})
    model = build_model(spec)
    with pytest.raises(SpecError, match=r"what fits: federation\.compare_every 0 \(\d\.\d MiB\)"):
        check_size(spec, model, 2**20)


def test_the_run_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregator_node, "check_size", partial(check_size, max_bytes=100_000))
    _, inputs = consortium(tmp_path, {"name": "dsgd"})
    run = Iterations(tmp_path, inputs)
    with pytest.raises(RankdadError, match=r"dsgd with this network and 3 sites needs messages of up to 0.4 MiB"):
        run.go()
    assert len(run.outputs) == 1
    assert not (tmp_path / REMOTE / "output" / "run").exists()


def test_a_forms_owner_is_advised_of_what_the_form_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregator_node, "check_size", partial(check_size, max_bytes=60_000))
    inputs = hospitals(tmp_path, method="dsgd", network="mlp-256-128")
    for client, given in inputs.items():
        site_file(tmp_path / client / "base", policy=OPEN)
        given["files"].append("site.json")
    with pytest.raises(FormError) as raised:
        Iterations(tmp_path, inputs).go(2)
    assert (raised.value.code, raised.value.field) == ("messages-too-large", "method")
    assert "rank-dad with rank" in str(raised.value) or "a smaller network" in str(raised.value)
    assert "wire" not in str(raised.value)
    assert "federation." not in str(raised.value)
