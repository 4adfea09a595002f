"""Real processes on loopback: the simulator, the commands started by hand, and every bad input that ends them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import OPEN, SITES, run_document, write_policy, write_site
from tests.warm import Warm

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-m", "rankdad"]
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "FORCE_COLOR"} | {"PYTHONPATH": str(ROOT)}


def simulation(tmp_path: Path, samples: int = 150, *, keyed_folds: bool = True, **changes: Any) -> Path:
    """A quick simulation file over an npz of its own."""
    pool = write_site(tmp_path / "pool", samples, 0)
    document = {
        "run": run_document(**({"method": {"name": "rank-dad", "rank": 2}} | changes)),
        "simulation": {"source": {"name": "npz", "path": str(pool / "data.npz")}},
    }
    document["simulation"]["policy"] = OPEN | {"keyed_folds": keyed_folds}
    path = tmp_path / "file.json"
    path.write_text(json.dumps(document))
    return path


def rankdad(*words: object, timeout: float = 200) -> subprocess.CompletedProcess[str]:
    process = start(*words)
    try:
        out, err = process.communicate(timeout)
    finally:
        process.kill()
    assert process.returncode is not None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def benchmark(*words: object, timeout: float = 200) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=ENVIRONMENT)


def start(*words: object, new_session: bool = False) -> Warm:
    return Warm(*words, environment=ENVIRONMENT, new_session=new_session)


def children_of(process: Warm | subprocess.Popen[str]) -> list[int]:
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(pid) for pid in listed.split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for_line(process: Warm, beginning: str) -> str:
    for line in process.stdout:
        if line.startswith(beginning):
            return line
    raise AssertionError(f"ended without a line that starts with {beginning!r}: {process.communicate()}")


@pytest.mark.parametrize(
    ("method", "tuning"),
    [
        ({"name": "rank-dad", "rank": 2}, None),
        pytest.param(
            {"name": "rank-dad", "rank": 2}, {"weight_decay": [0, 0.5], "rank": [1, 2]}, marks=pytest.mark.slow
        ),
        pytest.param({"name": "powersgd", "rank": 2, "wire": "int8"}, None, marks=pytest.mark.slow),
        pytest.param({"name": "top-k", "preset": "sparseloco", "local_steps": 2}, None, marks=pytest.mark.slow),
    ],
)
def test_processes_and_lockstep_give_the_same_bits(tmp_path: Path, method: dict[str, Any], tuning: Any) -> None:
    model, evaluation = (
        {"name": "mlp", "hidden": [16, 16], "dropout": 0.1},
        {"name": "holdout", "references": ["local"]},
    )
    own = {"alpha": {"epochs": 1, "batch_size": 5}, "beta": {"local_steps": 3}} if "local_steps" in method else {}
    federation = {"sites": SITES, "overrides": own}
    changes = {"model": model, "method": method, "evaluation": evaluation, "tuning": tuning, "federation": federation}
    file = simulation(tmp_path, keyed_folds="wire" in method, **changes)
    summaries = []
    for name, options in (("processes", []), ("lockstep", ["--lockstep"])):
        done = rankdad("simulate", file, "--output", tmp_path / name, "--json", *options)
        assert done.returncode == 0, done.stderr
        summaries.append(json.loads(done.stdout))
    assert summaries[0]["status"] == "completed"
    assert summaries[0]["tuning"] == summaries[1]["tuning"]
    assert bool(summaries[0]["tuning"]) == bool(tuning)
    references = [summary["metrics"]["references"]["local"] for summary in summaries]
    assert references[0] == references[1]
    assert references[0]["samples"] == summaries[0]["metrics"]["test"]["samples"]
    assert set(summaries[0]["weights_sha256"]) == set(SITES)
    digests = {digest for summary in summaries for digest in summary["weights_sha256"].values()}
    assert len(digests) == 1
    best = [tmp_path / name / "model" / "best.safetensors" for name in ("processes", "lockstep")]
    assert best[0].read_bytes() == best[1].read_bytes()
    assert (tmp_path / "processes" / "sites" / "alpha" / "model" / "best.safetensors").read_bytes() == best[
        0
    ].read_bytes()


def test_started_by_hand_and_predicted_from(tmp_path: Path) -> None:
    file = simulation(tmp_path)
    aggregator = start("aggregator", file, "--output", tmp_path / "run", "--port", 0, "--log-json", "-v")
    address = wait_for_line(aggregator, "listening on").split(";")[0].removeprefix("listening on ").strip()
    assert rankdad("split", file, "--output", tmp_path / "hand", "--aggregator", address).returncode == 0
    sites = [start("site", tmp_path / "hand" / f"{name}.json") for name in SITES]
    for site in sites:
        out, err = site.communicate(timeout=60)
        assert site.returncode == 0, (out, err)
        assert "done after 2 epochs" in out
    out, err = aggregator.communicate(timeout=60)
    assert aggregator.returncode == 0, err
    logged = [json.loads(line) for line in err.splitlines()]
    assert {(line["run"], line["site"]) for line in logged} == {("small", "aggregator")}
    events = [line["event"] for line in logged if line["message"] == "accepted hello"]
    assert {event["site"] for event in events} == set(SITES)
    assert any(line["message"].startswith("round 0 (hello) is complete") for line in logged)
    assert "epoch 2 of 2" in out
    assert "test:    AUC" in out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert len(set(summary["weights_sha256"].values())) == 1
    data = write_site(tmp_path / "new", 40, 7) / "data.npz"
    done = rankdad("predict", tmp_path / "run", data)
    assert done.returncode == 0, done.stderr
    header, *rows = done.stdout.splitlines()
    assert header == "row,label,predicted,probability_0,probability_1,probability_2"
    assert len(rows) == 40
    assert re.search(r"^40 samples: AUC [01]\.\d+, accuracy 0\.\d+", done.stderr, re.MULTILINE)
    table = [line.split(",") for line in rows]
    assert all(sum(map(float, row[3:])) == pytest.approx(1, abs=1e-4) for row in table)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_site_that_is_told_to_stop_leaves_between_steps_and_can_come_back(tmp_path: Path, number: int) -> None:
    file = simulation(tmp_path, keyed_folds=number == signal.SIGTERM, training={"epochs": 14})
    aggregator = start("aggregator", file, "--output", tmp_path / "run", "--port", 0)
    address = wait_for_line(aggregator, "listening on").split(";")[0].removeprefix("listening on ").strip()
    assert rankdad("split", file, "--output", tmp_path / "hand", "--aggregator", address).returncode == 0
    sites = {name: start("site", tmp_path / "hand" / f"{name}.json") for name in SITES}
    wait_for_line(aggregator, "step ")
    sites["beta"].send_signal(number)
    out, err = sites["beta"].communicate(timeout=15)
    assert sites["beta"].returncode == 128 + number
    assert err.splitlines()[-1] == f"error: stopped by {signal.Signals(number).name} [stopped]"
    assert re.search(r"stopped after step \d+; start it again", out), out
    sites["beta"] = start("site", tmp_path / "hand" / "beta.json")
    for name, process in (*sites.items(), ("aggregator", aggregator)):
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, (name, err)
        assert name != "beta" or re.search(r"continues from its checkpoint of step \d+", err), err
    assert len(list(tmp_path.glob("hand/*/disclosed.json"))) == (number == signal.SIGINT) * len(SITES)
    undisturbed = rankdad("simulate", file, "--output", tmp_path / "undisturbed", "--json", "--lockstep")
    digests = json.loads((tmp_path / "run" / "summary.json").read_text())["weights_sha256"]
    assert set(digests.values()) == {json.loads(undisturbed.stdout)["aggregator_sha256"]}


@pytest.mark.parametrize("whom", ["simulator", "terminal"])
def test_ctrl_c_ends_all_processes_within_five_seconds(tmp_path: Path, whom: str) -> None:
    words = ("simulate", simulation(tmp_path), "--output", tmp_path / "run", "--set", "run.training.epochs=9999")
    process = start(*words, new_session=True)
    wait_for_line(process, "step ")
    children = children_of(process)
    assert len(children) == 4
    began = time.monotonic()
    if whom == "simulator":
        process.send_signal(signal.SIGINT)
    else:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, err = process.communicate(timeout=10)
    assert time.monotonic() - began < 5
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "the records are in" in err
    assert not any(alive(child) for child in children)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert summary["steps"] >= 1
    assert (tmp_path / "run" / "model" / "final.safetensors").exists()


def test_a_killed_simulator_leaves_no_process_behind(tmp_path: Path) -> None:
    process = start("simulate", simulation(tmp_path), "--output", tmp_path / "run", "--set", "run.training.epochs=9999")
    wait_for_line(process, "step ")
    children = children_of(process)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 15
    while any(alive(child) for child in children) and time.monotonic() < deadline:
        time.sleep(0.1)  # they notice their parent's death
    assert not any(alive(child) for child in children)


def test_a_site_that_dies_ends_the_simulation_with_its_name(tmp_path: Path) -> None:
    process = start("simulate", simulation(tmp_path), "--output", tmp_path / "run", "--set", "run.training.epochs=9999")
    wait_for_line(process, "step ")
    children = children_of(process)
    began = time.monotonic()
    os.kill(children[2], signal.SIGKILL)  # the aggregator, alpha, beta, gamma
    _, err = process.communicate(timeout=15)
    assert time.monotonic() - began < 5
    assert (tmp_path / "run" / "model" / "final.safetensors").exists()
    assert process.returncode == 1
    first, *last_lines = err.splitlines()
    assert first == "error: beta failed: killed by SIGKILL [site-ended]"
    assert "samples to train on" in last_lines[1]
    assert not any(alive(child) for child in children)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


@pytest.mark.slow
def test_a_killed_aggregator_ends_the_simulation_and_the_summary_says_so(tmp_path: Path) -> None:
    process = start("simulate", simulation(tmp_path), "--output", tmp_path / "run", "--set", "run.training.epochs=9999")
    wait_for_line(process, "step ")
    children = children_of(process)
    os.kill(children[0], signal.SIGKILL)
    _, err = process.communicate(timeout=15)
    assert process.returncode == 1
    assert "aggregator failed: killed by SIGKILL" in err
    assert not any(alive(child) for child in children)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_a_site_that_cannot_save_is_named_though_the_run_was_complete(tmp_path: Path) -> None:
    (tmp_path / "run" / "sites" / "beta").mkdir(parents=True)
    (tmp_path / "run" / "sites" / "beta" / "model").symlink_to("nowhere")  # in the way
    done = rankdad("simulate", simulation(tmp_path), "--output", tmp_path / "run")
    assert done.returncode == 2
    assert done.stderr.startswith("error: beta: ")
    assert "the model cannot be written" in done.stderr


@pytest.mark.exhaustive
def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path: Path) -> None:
    process = start("simulate", simulation(tmp_path), "--output", tmp_path / "run", "--set", "run.training.epochs=30")
    process.stdout.readline()
    process.stdout.close()
    process.communicate(timeout=60)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "completed"


def diverging(tmp_path: Path) -> Path:
    return simulation(tmp_path, training={"epochs": 50, "optimizer": {"name": "sgd", "lr": 1e30}})


def test_a_site_that_cannot_go_on_ends_the_simulation_with_its_reason(tmp_path: Path) -> None:
    done = rankdad("simulate", diverging(tmp_path), "--output", tmp_path / "run")
    assert done.returncode == 1
    what = r"the (gradient of \S+ in step \d+|training loss in step \d+|validation loss) holds NaN or infinity"
    assert re.search(r"(alpha|beta|gamma) failed: " + what, done.stderr)
    assert "Traceback" not in done.stderr


def spoiled(tmp_path: Path, **arrays: Any) -> Path:
    file = simulation(tmp_path)
    write_site(tmp_path / "pool", 150, 0, **arrays)
    return file


def test_a_mistake_ends_a_command_with_status_2(tmp_path: Path) -> None:
    """And a command starts by itself."""
    words = ("simulate", simulation(tmp_path), "--output", tmp_path / "run", "--set", "run.method.rank=0")
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.slow
def test_check_finds_the_same_mistakes_without_running(tmp_path: Path) -> None:
    file = simulation(tmp_path)
    assert "rank-dad, 3 sites: at most" in rankdad("check", file).stdout
    for assignment, said in (("run.data.shape=[5]", "expected [samples, 5]"), ("run.metod=3", "did you mean method?")):
        done = rankdad("check", file, "--set", assignment)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    began = time.monotonic()
    done = rankdad("check", site_file(tmp_path))
    assert done.returncode == 2
    assert "no aggregator for 5 s" in done.stderr
    assert time.monotonic() - began < 10


def test_an_output_that_already_holds_a_run_is_not_touched(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    command = ("simulate", simulation(tmp_path), "--output", tmp_path / "run")
    assert "already has a run" in refused(*command)
    (tmp_path / "run" / "run.sqlite").touch()
    assert f"--resume {tmp_path / 'run'} resumes an interrupted one" in refused(*command)
    assert "--ledger: a run with --lockstep cannot go on" in refused(*command, "--lockstep", "--ledger")


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = rankdad("aggregator", simulation(tmp_path), "--output", tmp_path / "run", "--port", port)
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr


def site_file(tmp_path: Path, **changes: Any) -> Path:
    config = {"name": "alpha", "aggregator": "http://127.0.0.1:1", "data": "data", "output": "out"} | changes
    if "policy" not in config:
        config["policy"] = write_policy(tmp_path)
    path = tmp_path / "site.json"
    path.write_text(json.dumps(config))
    return path


def test_an_aggregator_that_is_not_there_is_tried_and_given_up(tmp_path: Path) -> None:
    began = time.monotonic()
    done = rankdad("site", site_file(tmp_path), "--patience", 1.5)
    assert done.returncode == 2
    assert 1.5 <= time.monotonic() - began < 10
    delays = [float(found) for found in re.findall(r"connection refused; trying again in ([\d.]+) s", done.stderr)]
    assert len(delays) >= 3
    assert delays == sorted(delays)
    assert delays[0] < delays[-1]
    assert "no aggregator for 2 s" in done.stderr


def test_a_site_checks_its_file_and_the_run_before_its_data(tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "nmae: is not known here" in refused("site", site_file(tmp_path, nmae="x"))
    aggregator = start("aggregator", simulation(tmp_path), "--output", tmp_path / "run", "--port", 0)
    try:
        address = wait_for_line(aggregator, "listening on").split(";")[0].removeprefix("listening on ").strip()
        assert "delta is not a site of this run, expected one of alpha, beta, gamma" in refused(
            "site", site_file(tmp_path, name="delta", aggregator=address)
        )
        assert "data.npz: does not exist" in refused("site", site_file(tmp_path, aggregator=address))
        write_site(tmp_path / "data", 20, 0, y=np.full(20, 9))
        assert "y holds 9 in row 0, expected whole numbers from 0 to 2" in refused(
            "site", site_file(tmp_path, aggregator=address)
        )
        seen = wait_for_line(aggregator, "alpha cannot take part: ")
        assert not any(word in seen for word in ("data.npz", "row", "9"))
    finally:
        aggregator.send_signal(signal.SIGTERM)
        _, err = aggregator.communicate(timeout=10)
    assert aggregator.returncode == 130
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.alone
def test_help_answers_in_under_half_a_second() -> None:
    began = time.monotonic()
    assert "simulate" in rankdad("--help").stdout
    assert time.monotonic() - began < 0.5
