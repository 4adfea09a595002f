"""Real processes behind a relay: whatever it does to their messages, the run ends with an undisturbed one's bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.conftest import SITES
from tests.e2e.test_processes import ENVIRONMENT, alive, benchmark, children_of, rankdad, simulation

FAULTS: list[dict[str, Any]] = [
    {"kind": "reset", "at": [2], "after": 0},  # a site asks for the run
    {"kind": "truncate", "direction": "response", "at": [3]},
    {"kind": "drop", "at": [20], "seconds": 0.4},
    {"kind": "drop", "direction": "response", "at": [24], "seconds": 0.4},
    {"kind": "delay", "at": [28], "seconds": 0.2},
    {"kind": "delay", "direction": "response", "at": [30], "seconds": 0.2},
    {"kind": "truncate", "at": [34]},
    {"kind": "truncate", "direction": "response", "at": [38], "after": 20},  # within the head
    {"kind": "truncate", "direction": "response", "at": [42], "after": 200},
    {"kind": "reset", "at": [46]},
    {"kind": "reset", "direction": "response", "at": [50]},
    {"kind": "reorder", "every": 11, "seconds": 0.3},
    {"kind": "duplicate", "every": 4},
]


def relay_file(tmp_path: Path, **spec: Any) -> Path:
    path = tmp_path / "relay.json"
    path.write_text(json.dumps(spec))
    return path


def undisturbed(file: Path, tmp_path: Path) -> str:
    done = rankdad("simulate", file, "--output", tmp_path / "undisturbed", "--json", "--lockstep")
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["aggregator_sha256"])


def faults_of(directory: Path) -> dict[str, Any]:
    return dict(json.loads((directory / "relay.json").read_text())["faults"])


def started(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks", *map(str, words)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True
    )


def first_line(process: subprocess.Popen[str], beginning: str) -> str:
    assert process.stdout is not None
    return next(line for line in process.stdout if line.startswith(beginning))


@pytest.mark.exhaustive
def test_faults_of_every_kind_change_no_bit(tmp_path: Path) -> None:
    file = simulation(tmp_path, training={"epochs": 4})
    relay = relay_file(tmp_path, seed=1, delay=1, jitter=1, bandwidth=10_000_000, faults=FAULTS)
    done = benchmark("behind", relay, file, "--output", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    weights = json.loads(done.stdout)["weights_sha256"]
    assert set(weights) == set(SITES)
    assert set(weights.values()) == {undisturbed(file, tmp_path)}
    faults = faults_of(tmp_path / "run")
    for rule in FAULTS:
        if "at" in rule:
            assert set(rule["at"]) <= set(faults[rule["kind"]][rule.get("direction", "request") + "s"]), rule
    assert faults["duplicate"]["count"] >= 10
    assert sum(faults.get(kind, {"count": 0})["count"] for kind in ("reorder", "not overtaken")) >= 5


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["terminal", "killed"])
def test_no_process_of_a_simulation_with_a_relay_is_left(tmp_path: Path, how: str) -> None:
    file, relay = simulation(tmp_path, training={"epochs": 9999}), relay_file(tmp_path, delay=1)
    process = started("behind", relay, file, "--output", tmp_path / "run")
    first_line(process, "step ")
    children = children_of(process)
    assert len(children) == 5
    if how == "terminal":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.kill()
    _, err = process.communicate(timeout=30)
    assert "Traceback" not in err
    deadline = time.monotonic() + 15
    while any(alive(child) for child in children) and time.monotonic() < deadline:
        time.sleep(0.1)  # after a kill they notice it themselves
    assert not any(alive(child) for child in children)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "interrupted"
    assert json.loads((tmp_path / "run" / "relay.json").read_text())["connections"] >= 3


@pytest.mark.exhaustive
def test_a_relay_started_by_hand_says_what_it_did(tmp_path: Path) -> None:
    rule = {"kind": "reset", "direction": "response", "at": [2], "after": 0}
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        to = f"127.0.0.1:{server.server_port}"
        relay = started("relay", relay_file(tmp_path, faults=[rule]), "--listen", "127.0.0.1:0", "--to", to)
        address = first_line(relay, "listening on").split(",")[0].removeprefix("listening on ")
        with pytest.raises(HTTPError, match="501"):
            urlopen(address)
        with pytest.raises(ConnectionResetError):
            urlopen(address)
        relay.send_signal(signal.SIGINT)
        out, err = relay.communicate(timeout=10)
        server.shutdown()
        serving.join()
    assert (relay.returncode, err) == (0, "")
    assert "relay: 2 connections, 2 requests" in out
    assert "reset: 1 (responses 2)" in out


@pytest.mark.exhaustive
def test_a_connection_that_goes_silent_for_good_is_left_by_the_site_itself(tmp_path: Path) -> None:
    """After a minute, for which nothing else is done; tests/local/test_http.py has it with less patience."""
    file = simulation(tmp_path)
    relay = relay_file(tmp_path, faults=[{"kind": "drop", "at": [20], "seconds": 1000}])
    done = benchmark("behind", relay, file, "--output", tmp_path / "run", "--json", timeout=110)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["weights_sha256"].values()) == {undisturbed(file, tmp_path)}
    assert faults_of(tmp_path / "run")["drop"] == {"count": 1, "requests": [20]}
