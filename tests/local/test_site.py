"""A site's own checks of what the aggregator offers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common import memory
from common.errors import RankdadError, UserError
from local import site
from local.config import SiteConfig
from local.site import run_id, run_site
from tests.conftest import write_site
from tests.remote.serving import Served, serving


def test_a_runs_number_is_taken_as_it_is() -> None:
    assert run_id({"id": "0123456789abcdef"}) == "0123456789abcdef"


@pytest.mark.parametrize(
    "found", [None, "", "..", "../../../etc", "0123456789abcde/", "0123456789ABCDEF", "a" * 400, 7]
)
def test_a_number_that_could_lead_out_of_the_folder_is_refused(found: object) -> None:
    with pytest.raises(UserError, match="expected 16 hexadecimal digits"):
        run_id({"id": found})


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "run") as running:
        yield running


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("version", "runs rankdad "),
        ("memory", "the network has "),
        ("device", "device: cuda is not available on this machine, expected cpu"),
        ("policy", "training.batch_size: the run makes steps of 8 samples here, but this site's policy allows none"),
        ("policy's file", "hospital/policy.json: min_rows: got 0, expected"),
        ("data", "data.npz: does not exist"),
        ("spec", "spec: other.json is not the run that "),
        ("output", "output: hospital/policy.json/out cannot be made: Not a directory"),
        ("anything", "an unexpected error (KeyError), of which its log says more"),
    ],
)
def test_a_site_that_cannot_take_part_says_so_and_the_run_waits_for_it(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, told: str
) -> None:
    folder = tmp_path / "hospital"
    write_site(folder / "data", 30, 0)
    policy = folder / "policy.json"
    policy.write_text('{"min_rows": 1}')
    names: dict[str, int] = {}
    places = {"data": folder / "data", "output": folder / "out", "policy": policy}
    device = "cpu"
    if what == "version":
        monkeypatch.setattr(site, "__version__", "0.0.1")
    elif what == "memory":
        monkeypatch.setattr(memory, "available", lambda: 1)
    elif what == "device":
        device = "cuda"
    elif what == "policy":
        policy.write_text('{"min_rows": 50}')
    elif what == "policy's file":
        policy.write_text('{"min_rows": 0}')
    elif what == "data":
        (folder / "data" / "data.npz").unlink()
    elif what == "spec":
        document = served.aggregator.spec.model_dump(mode="json") | {"seed": 7}
        (folder / "other.json").write_text(json.dumps(document))
        places["spec"] = folder / "other.json"
    elif what == "output":
        places["output"] = policy / "out"
    else:
        monkeypatch.setattr(site, "read_site", lambda *arguments: names["Mr. Smith"])
    fields: dict[str, Any] = {key: str(path) for key, path in places.items()}
    config = SiteConfig(name="alpha", aggregator=f"http://127.0.0.1:{served.port}", device=device, **fields)
    with pytest.raises((RankdadError, KeyError)):
        run_site(config)
    aggregator = served.aggregator
    problem = aggregator.recorder.progress.problems["alpha"]
    assert told.replace("hospital/", "") in problem
    assert str(tmp_path) not in problem
    assert not aggregator.ended
    assert aggregator.barrier.missing() == aggregator.plan.sites
    (line,) = [line for line in served.audited() if line["what"] == "cannot take part"]
    assert (line["site"], line["reason"]) == ("alpha", problem)
    assert json.loads((served.directory / "summary.json").read_text())["problems"] == {"alpha": problem}
    aggregator.receive("alpha", served.hello("alpha"))
    assert not aggregator.recorder.progress.problems, "it is back"
