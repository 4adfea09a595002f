"""Real reverse proxies that end TLS, with the settings that docs/how-to/aggregator.md names."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankdad.common.documents import load_json
from rankdad.local.drivers.http_library import httpx
from tests.conftest import SITES, run_document, write_policy, write_site
from tests.e2e.test_service import rankdad
from tests.ports import free_port
from tests.warm import Warm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
ROOT = Path(__file__).parents[2]
EPOCHS = 60


def settings(name: str, changes: dict[str, str]) -> str:
    """Return a proxy's settings, from the file or the page that has them, with this machine's addresses in them."""
    page = (ROOT / "docs" / "how-to" / "aggregator.md").read_text()
    found = re.search(r"^    aggregator\.example {.*?^    }$", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    text = (ROOT / "docker" / "nginx" / "tokens.conf").read_text() if name == "nginx" else found.group()
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def command(name: str, folder: Path, outside: int, inside: int, certificates: Path, **changes: str) -> list[str]:
    """Write a proxy's settings, and return what starts it."""
    pem, key = certificates / "server.pem", certificates / "server.key"
    if name == "nginx":
        block = settings(
            name,
            changes
            | {
                "443": f"127.0.0.1:{outside}",
                "8765": str(inside),
                "/etc/rankdad/server.pem": str(pem),
                "/etc/rankdad/server.key": str(key),
            },
        )
        paths = "\n".join(
            f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        http = f"http {{ access_log off; {paths}\n{block}\n}}"
        (folder / "conf").write_text(f"daemon off; pid {folder}/pid; events {{}}\n{http}\n")
        return ["nginx", "-e", str(folder / "error.log"), "-c", str(folder / "conf")]
    changes |= {"aggregator.example {": f"https://127.0.0.1:{outside} {{\n tls {pem} {key}", "8765": str(inside)}
    (folder / "conf").write_text(f"{{\n admin off\n auto_https off\n}}\n{settings(name, changes)}\n")
    return ["caddy", "run", "--config", str(folder / "conf"), "--adapter", "caddyfile"]


@contextmanager
def proxy(words: list[str], outside: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a proxy, and stop it as its service would."""
    with log.open("ab") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file)
    try:
        for _ in range(200):
            assert process.poll() is None, log.read_text()
            with socket.socket() as trying:
                if trying.connect_ex(("127.0.0.1", outside)) == 0:
                    break
            time.sleep(0.05)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["nginx", "caddy"])
def test_a_run_behind_a_proxy_that_is_started_again_ends_with_one_digest(tmp_path: Path, name: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name} on this machine (Debian: apt-get install {name})")
    outside, inside, kits = free_port(), free_port(), tmp_path / "kits"
    (tmp_path / "consortium.json").write_text(
        json.dumps(
            {"name": "c", "aggregator": f"https://127.0.0.1:{outside}", "sites": list(SITES), "mutual_tls": False}
        )
    )
    rankdad("provision", tmp_path / "consortium.json", "--output", kits)
    run = tmp_path / "run.json"
    # 6 MB in each direction and step: more than a proxy takes or keeps without being told
    document = run_document(
        model={"name": "mlp", "hidden": [1200, 1200]}, training={"epochs": EPOCHS, "batch_size": 64}
    )
    run.write_text(json.dumps(document))
    words = command(name, tmp_path, outside, inside, kits / "aggregator")
    own = ("--output", tmp_path / "run", "--port", inside, "--tokens", kits / "aggregator" / "tokens.json")
    with (tmp_path / "log").open("ab") as log:
        processes = [Warm("aggregator", run, *own, log=log)]
        for number, site in enumerate(SITES):
            folder = kits / "sites" / site
            write_site(folder / "data", 60, number)
            write_policy(folder)
            processes.append(Warm("site", folder / "SITE.json", log=log))
    try:
        with proxy(words, outside, tmp_path / "proxy.log"):
            token_file = tmp_path / "run" / "viewer-token"
            for _ in range(600):
                if token_file.exists():
                    break
                time.sleep(0.1)
            token = token_file.read_text().strip()
            page = f"https://127.0.0.1:{outside}/page/"
            authority = ssl.create_default_context(cafile=str(kits / "aggregator" / "ca.pem"))
            with httpx.Client(verify=authority, trust_env=False, timeout=30) as client:
                assert client.get(page).status_code == 401
                bearer = {"authorization": f"Bearer {token}"}
                with client.stream("GET", f"{page}events", headers=bearer) as events:
                    began, steps = time.monotonic(), set[str]()
                    for line in events.iter_lines():
                        steps |= set(re.findall(r'"step": ?(\d+)', line))
                        if len(steps) >= 3:
                            break
                    assert time.monotonic() - began < 20, "events come as they are sent"
                entered = client.post(page, data={"token": token})
                cookie = entered.headers["set-cookie"].lower()
                assert "httponly" in cookie
                assert "samesite=strict" in cookie
                assert "secure" in cookie or name == "caddy"
        with proxy(words, outside, tmp_path / "proxy.log"):
            assert [process.wait(200) for process in processes] == [0] * len(processes), (tmp_path / "log").read_text()
    finally:
        for process in processes:
            process.kill()
            process.wait(30)
    summary = load_json(tmp_path / "run" / "summary.json")
    assert summary["status"] == "completed"
    assert set(summary["weights_sha256"].values()) == {summary["aggregator_sha256"]}
    assert "Traceback" not in (tmp_path / "log").read_text()
