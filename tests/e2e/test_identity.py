"""Real processes that prove who they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import SITES, write_policy
from tests.e2e.test_processes import rankdad, simulation, start, wait_for_line
from tests.ports import free_port


@pytest.mark.slow
def test_a_whole_run_with_start_kits(tmp_path: Path) -> None:
    file, port = simulation(tmp_path), free_port()
    assert rankdad("split", file, "--output", tmp_path / "demo").returncode == 0
    consortium = tmp_path / "consortium.json"
    address = f"https://127.0.0.1:{port}"
    consortium.write_text(json.dumps({"name": "study", "aggregator": address, "sites": list(SITES)}))
    kits = tmp_path / "kits"
    assert rankdad("provision", consortium, "--output", kits).returncode == 0
    own = kits / "aggregator"
    tls = ("--tls-cert", own / "server.pem", "--tls-key", own / "server.key", "--client-ca", own / "ca.pem")
    aggregator = start(
        *("aggregator", file, "--output", tmp_path / "run", "--host", "0.0.0.0", "--exposed", "--port", port),
        *(*tls, "--tokens", own / "tokens.json"),
    )
    assert f"listening on https://0.0.0.0:{port};" in wait_for_line(aggregator, "listening on")
    sites = {}
    for name in SITES:
        path = kits / "sites" / name / "SITE.json"
        data = json.loads((tmp_path / "demo" / f"{name}.json").read_text())["data"]
        path.write_text(json.dumps(json.loads(path.read_text()) | {"data": str(tmp_path / "demo" / data)}))
        write_policy(path.parent)  # of a run with steps of six samples
        sites[name] = start("site", path)
    try:
        for name, site in sites.items():
            _, complained = site.communicate(timeout=60)
            assert site.returncode == 0, (name, complained)
        _, complained = aggregator.communicate(timeout=60)
        assert aggregator.returncode == 0, complained
    finally:
        for process in (aggregator, *sites.values()):
            process.kill()
            process.communicate()
    audit = [json.loads(line) for line in (tmp_path / "run" / "audit.jsonl").read_text().splitlines()]
    assert (audit[0]["what"], audit[-1]["what"], audit[-1]["status"]) == ("run started", "run ended", "completed")
    came = sorted((line["what"], line["site"]) for line in audit[1:-1])
    assert came == sorted((what, site) for what in ("identified", "accepted hello") for site in SITES)
