"""Real processes in a tree: killed they go on to the same bits; what an aggregator moves grows with its children."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.conftest import SITES, write_policy
from tests.e2e.test_crashes import long_run, wait_for_steps
from tests.e2e.test_processes import rankdad, simulation, start
from tests.ports import free_port
from tests.runs import summary_of

REGIONS = {"north": ["alpha", "beta"]}


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_a_killed_region_and_a_killed_aggregator_above_it_go_on_to_the_same_bits(tmp_path: Path) -> None:
    federation = {"sites": list(SITES), "regions": REGIONS}
    file, undisturbed = long_run(tmp_path, {"name": "rank-dad", "rank": 2}, epochs=60, federation=federation)
    ports = {"aggregator": free_port(), "north": free_port()}
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    split = rankdad("split", file, "--output", tmp_path / "demo", "--aggregator", urls["aggregator"])
    assert split.returncode == 0, split.stderr
    for name in REGIONS["north"]:
        path = tmp_path / "demo" / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"aggregator": urls["north"]}))
    serve: dict[str, tuple[object, ...]] = {
        name: ("aggregator", file, "--output", tmp_path / name, "--port", port) for name, port in ports.items()
    }
    serve["north"] += ("--region", "north", "--upstream", urls["aggregator"])
    running = {name: start(*words) for name, words in serve.items()}
    running |= {name: start("site", tmp_path / "demo" / f"{name}.json", "--patience", 60) for name in SITES}
    try:
        for steps, victim in ((60, "north"), (130, "aggregator"), (200, "north")):
            wait_for_steps(tmp_path / "aggregator", steps)
            running[victim].send_signal(signal.SIGKILL)
            running[victim].communicate()
            running[victim] = start(*serve[victim])
        for name, process in running.items():
            said, logged = process.communicate(timeout=90)
            assert process.returncode == 0, (name, said, logged)
    finally:
        for process in running.values():
            process.kill()
            process.communicate()
    for name in ports:
        summary = summary_of(tmp_path / name)
        assert summary["status"] == "completed"
        assert summary["weights_sha256"] == dict.fromkeys([*SITES, "north"], undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_region_whose_run_is_no_longer_above_it_ends_and_says_so_to_both_sides(tmp_path: Path) -> None:
    file = simulation(tmp_path, federation={"sites": list(SITES[:2]), "regions": REGIONS}, training={"epochs": 400})
    split = rankdad("split", file, "--output", tmp_path / "demo", "--aggregator", f"http://127.0.0.1:{free_port()}")
    assert split.returncode == 0, split.stderr
    port = {
        "aggregator": free_port(),
        "north": json.loads((tmp_path / "demo" / "alpha.json").read_text())["aggregator"],
    }
    top = ("aggregator", file, "--output", tmp_path / "top", "--port", port["aggregator"])
    region = ("aggregator", file, "--output", tmp_path / "north", "--port", port["north"].rpartition(":")[2])
    upstream = ("--region", "north", "--upstream", f"http://127.0.0.1:{port['aggregator']}")
    running = {"top": start(*top), "north": start(*region, *upstream)}
    running |= {name: start("site", tmp_path / "demo" / f"{name}.json", "--patience", 30) for name in SITES[:2]}
    try:
        wait_for_steps(tmp_path / "top", 20)
        running["top"].kill()
        running["top"].communicate()
        shutil.rmtree(tmp_path / "top")
        running["top"] = start(*top)
        for process in running.values():
            _, logged = process.communicate(timeout=90)
            assert process.returncode == 1, logged
            assert "is for another run" in logged
    finally:
        for process in running.values():
            process.kill()
            process.communicate()
    assert summary_of(tmp_path / "top")["reason"].startswith("north: aggregator: http://127.0.0.1")


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_a_simulated_tree_killed_at_once_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    federation = {"sites": list(SITES), "regions": REGIONS}
    file, undisturbed = long_run(tmp_path, {"name": "rank-dad", "rank": 2}, epochs=60, federation=federation)
    process = start("simulate", file, "--output", tmp_path / "run", "--ledger", new_session=True)
    wait_for_steps(tmp_path / "run", 120)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    done = rankdad("simulate", "--resume", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["weights_sha256"] == dict.fromkeys([*SITES, "north"], undisturbed)
    assert "resumed from the ledger" in (tmp_path / "run" / "regions" / "north" / "log.txt").read_text()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_tree_whose_members_prove_who_they_are(tmp_path: Path) -> None:
    """The region shows the kit of a site to the aggregator above, and is itself the aggregator of a consortium."""
    file = simulation(tmp_path, federation={"sites": list(SITES), "regions": REGIONS})
    assert rankdad("split", file, "--output", tmp_path / "demo").returncode == 0
    members, running = {"aggregator": ["north", "gamma"], "north": REGIONS["north"]}, {}
    for name, sites in members.items():
        path, port = tmp_path / f"{name}.json", free_port()
        path.write_text(json.dumps({"name": name, "aggregator": f"https://127.0.0.1:{port}", "sites": sites}))
        assert rankdad("provision", path, "--output", tmp_path / name).returncode == 0
        own = tmp_path / name / "aggregator"
        words: list[object] = ["aggregator", file, "--output", tmp_path / f"run-{name}", "--port", port]
        words += ["--host", "0.0.0.0", "--exposed", "--tls-cert", own / "server.pem", "--tls-key", own / "server.key"]
        words += ["--client-ca", own / "ca.pem", "--tokens", own / "tokens.json"]
        if name == "north":
            words += ["--upstream", tmp_path / "aggregator" / "sites" / "north" / "SITE.json"]
        running[name] = start(*words)
    for site, above in (("alpha", "north"), ("beta", "north"), ("gamma", "aggregator")):
        kit = tmp_path / above / "sites" / site
        shutil.copytree(tmp_path / "demo" / site / "data", kit / "data", dirs_exist_ok=True)
        write_policy(kit)
        running[site] = start("site", kit / "SITE.json")
    try:
        for name, process in running.items():
            said, logged = process.communicate(timeout=90)
            assert process.returncode == 0, (name, said, logged)
    finally:
        for process in running.values():
            process.kill()
            process.communicate()
    digests = [summary_of(tmp_path / f"run-{name}")["weights_sha256"] for name in members]
    assert digests[0] == digests[1]
    assert len(set(digests[0].values())) == 1


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
def test_64_sites_in_8_regions_are_processes_of_equal_weights(tmp_path: Path) -> None:
    """The aggregator above moves no more than with 16 sites in as many regions."""
    moved = []
    for sites in (16, 64):
        file = simulation(tmp_path / str(sites), 12 * sites, method={"name": "rank-dad", "rank": 2})
        options = ("--sites", sites, "--regions", 8, "--set", "run.training.epochs=1", "--json")
        done = rankdad("simulate", file, *options, "--output", tmp_path / str(sites) / "run", timeout=200)
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        assert len(summary["weights_sha256"]) == sites + 8
        assert set(summary["weights_sha256"].values()) == {summary["aggregator_sha256"]}
        moved.append(8 * (summary["bytes_up_per_site_step"] + summary["bytes_down_per_site_step"]))
        of_region = summary_of(tmp_path / str(sites) / "run" / "regions" / "region-1")
        assert len(of_region["sites"]) == sites // 8
        assert of_region["weights_sha256"] == summary["weights_sha256"]
    assert moved[0] == moved[1]
