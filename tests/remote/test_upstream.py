"""What the command of a region's aggregator refuses before it serves anybody."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rankdad.__main__ import app
from rankdad.common.errors import UnreachableError, UserError
from rankdad.common.protocol.plan import make_plan
from rankdad.common.protocol.versions import OUR_VERSION
from rankdad.common.run.replica import Replica
from rankdad.common.spec import Federation, RunSpec
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.http import AggregatorClient
from rankdad.remote.upstream import Upstream, answering
from tests.conftest import run_document

pytestmark = pytest.mark.slow

Offering = tuple[str, dict[str, str]]
FEDERATION = {"sites": ["alpha", "beta", "gamma"], "regions": {"north": ["alpha", "beta"]}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run_document(federation=FEDERATION)))
    return path


@pytest.fixture
def other() -> Iterator[Offering]:
    """The address of an aggregator that has another run, and what it says of that."""
    offered = {**OUR_VERSION, "plan_sha256": "0" * 64, "id": "0" * 16}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(offered).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", offered
    server.shutdown()
    thread.join()
    server.server_close()


def refused(file: Path, tmp_path: Path, *words: str) -> str:
    done = CliRunner().invoke(app, ["aggregator", str(file), "--output", str(tmp_path / "out"), "--port", "0", *words])
    assert done.exception is not None
    return str(done.exception)


HERE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--upstream", HERE), "--region is missing: the region of this aggregator"),
        (
            ("--upstream", HERE, "--region", "south"),
            "--region: south is not a region of this run, expected one of north",
        ),
        (
            ("--upstream", HERE, "--region", "alpha"),
            "--region: alpha is not a region of this run, expected one of north",
        ),
        (("--region", "north"), "--region: --upstream is missing"),
        (("--upstream", "http://10.0.0.1:8765", "--region", "north"), "would be reached without encryption"),
        (("--upstream", "nowhere.json"), "--upstream: 'nowhere.json' is neither a file nor an address"),
        (("--upstream", "localhost:18", "--region", "north"), "--upstream: 'localhost:18' is neither a file nor an"),
        (
            ("--upstream", "http://localhost:99999", "--region", "north"),
            "--upstream: aggregator: got 'http://localhost",
        ),
        (
            ("--upstream", "http://localhost:x", "--region", "north"),
            "whose port is none: expected a number up to 65535",
        ),
        (("--upstream", "http://me:secret@localhost", "--region", "north"), "--upstream: aggregator: expected an addr"),
        (("--upstream", HERE, "--region", "../x"), "--upstream: name: "),
        (
            ("--upstream", HERE, "--region", "north", "--set", "federation.regions={}"),
            "--region: north is not a region of this run, whose federation.regions has none",
        ),
    ],
)
def test_what_cannot_be_a_region_is_refused_and_the_option_is_named(
    file: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    reason = refused(file, tmp_path, *words)
    assert said in reason
    assert "secret" not in reason
    assert not (tmp_path / "out" / "run.json").exists()


def test_another_run_above_is_refused(file: Path, tmp_path: Path, other: Offering) -> None:
    said = refused(file, tmp_path, "--upstream", other[0], "--region", "north")
    assert said.startswith(f"--upstream: {other[0]} has another run than this file: its plan_sha256 is 000000")
    assert not (tmp_path / "out" / "run.sqlite").exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_an_aggregator_above_itself_is_refused_at_once(file: Path, tmp_path: Path, host: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://{host}:{free.getsockname()[1]}"
    said = refused(file, tmp_path, "--upstream", address, "--region", "north", "--port", address.rpartition(":")[2])
    assert said == f"--upstream: {address} is the address of this aggregator, expected that of the one above"


def test_a_sibling_above_is_refused(file: Path, other: Offering) -> None:
    address, offered = other
    spec = RunSpec.read(file, [])
    plan = make_plan(spec, Replica(spec).model)
    offered |= {"plan_sha256": plan.sha256(), "aggregator": "south"}
    config = SiteConfig(name="north", aggregator=address, data=".", output=".")
    with pytest.raises(UserError, match="is the aggregator of south, but north is a member of aggregator"):
        Upstream(config, spec, plan).ask()
    offered["aggregator"] = "aggregator"
    assert Upstream(config, spec, plan).ask() == "0" * 16


def test_a_site_s_file_says_which_region_it_is(file: Path, tmp_path: Path, other: Offering) -> None:
    path = tmp_path / "SITE.json"
    path.write_text(json.dumps({"name": "north", "aggregator": other[0], "data": "data", "output": "result"}))
    assert "has another run" in refused(file, tmp_path, "--upstream", str(path))
    assert "is the file of north" in refused(file, tmp_path, "--upstream", str(path), "--region", "south")


def test_a_new_region_is_refused_where_the_run_is_under_way(file: Path, tmp_path: Path, other: Offering) -> None:
    """It took its sites' contributions, and none of them could ever go on."""
    address, offered = other
    spec = RunSpec.read(file, [])
    plan = make_plan(spec, Replica(spec).model)
    offered |= {"plan_sha256": plan.sha256(), "aggregator": "aggregator", "round": 7}  # type: ignore[dict-item]
    said = refused(file, tmp_path, "--upstream", address, "--region", "north")
    assert said == (
        f"--output: is new, but the run of {address} is in round 7: north can only resume from its original directory"
    )
    config = SiteConfig(name="north", aggregator=address, data=".", output=".")
    assert Upstream(config, spec, plan).ask() == "0" * 16


def test_regions_that_name_each_other_end_at_once_and_say_so(tmp_path: Path) -> None:
    """Each waited for the other until its patience was over."""
    federation = Federation(sites=("alpha", "beta", "gamma"), regions={"north": ("alpha",), "south": ("beta",)})
    spec = RunSpec.model_validate(run_document(federation=federation.model_dump()))
    plan = make_plan(spec, Replica(spec).model)
    with socket.create_server(("127.0.0.1", 0)) as listening, answering(listening, "south", federation):
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        config = SiteConfig(name="north", aggregator=address, data=".", output=".", patience=20)
        said = f"--upstream: {address} refused (409): is the aggregator of south, but north is a member of aggregator"
        with pytest.raises(UserError, match=f"^{re.escape(said)}$"):
            Upstream(config, spec, plan).ask()
        site = SiteConfig(name="beta", aggregator=address, data=".", output=".", patience=0.2)
        with AggregatorClient(site) as client, pytest.raises(UnreachableError, match="answered 503"):
            client.run()
