"""The service's figures, scraped by a real Prometheus and asked for with the queries of docs/how-to/service.md."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from rankdad.local.drivers.http_library import httpx
from tests.conftest import SITES, run_document, write_site
from tests.e2e.consortium import Consortium
from tests.ports import free_port

DOCS = Path(__file__).parents[2] / "docs" / "how-to" / "service.md"


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no Prometheus (Debian: apt-get install prometheus)")
def test_every_panels_query_has_an_answer(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for number, site in enumerate(SITES):
        write_site(data / site, 60, number)
    queries = re.findall(r"^\| [^|`]+ \| `(.*rankdad_.*)` \|", DOCS.read_text(), re.MULTILINE)
    assert len(queries) == 7
    port = free_port()
    with Consortium(tmp_path / "all", data, SITES, tokens=True).started() as all_:
        all_.submit(run_document(name="long", training={"epochs": 2000}))
        settings = {
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [
                {
                    "job_name": "rankdad",
                    "authorization": {"credentials_file": str(all_.token)},
                    "static_configs": [{"targets": [f"127.0.0.1:{all_.port}"]}],
                }
            ],
        }
        (tmp_path / "prometheus.yml").write_text(json.dumps(settings))  # YAML has all of JSON
        words = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb"]
        with (tmp_path / "prometheus.log").open("wb") as log:
            process = subprocess.Popen([*words, f"--web.listen-address=127.0.0.1:{port}"], stderr=log)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
                left, end = set(queries), time.monotonic() + 60
                while left:
                    assert time.monotonic() < end, (left, all_.said())
                    for query in list(left):
                        text = query.replace("> 120", ">= 0")  # nobody is silent here
                        try:
                            answer = client.get("/api/v1/query", params={"query": text}).json()
                        except (httpx.TransportError, json.JSONDecodeError):  # it starts
                            continue
                        assert answer["status"] == "success", (query, answer)
                        if answer["data"]["result"]:
                            left.discard(query)
                    time.sleep(0.5)
        finally:
            process.terminate()
            process.wait(30)
