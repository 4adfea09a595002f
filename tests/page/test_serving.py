"""The page over HTTP: who sees it, what it says of itself, and what viewers are told and when."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.errors import UserError
from rankdad.common.rounds.evaluation import PooledMetrics
from rankdad.local.drivers.http_library import httpx
from rankdad.page import serving as page_serving
from rankdad.page.stream import MAX_VIEWERS
from rankdad.page.viewers import VIEWER_TOKEN
from rankdad.remote.auth import Identity, hashed
from rankdad.remote.config import Access
from rankdad.remote.recorder import Recorder
from tests.conftest import SITES
from tests.remote.serving import Served, serving

VIEWER = "a viewer's token, which is long"
TOKENS = {site: hashed(f"the token of {site}") for site in SITES}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "run", Identity(SITES, TOKENS), viewers={"pi": hashed(VIEWER)}) as one:
        yield one


@pytest.fixture
def client(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{served.port}", trust_env=False, timeout=10) as one:
        yield one


def bearer(token: str = VIEWER) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def still_improving(recorder: Recorder, best: int) -> None:
    """A training of two epochs ends, one of which was the best."""
    values = dict.fromkeys(("loss", "auc"), 0.5)
    where = {"split": "validation", "fold": 0, "epoch": 1, "samples": 9, "values": values, "auc_error": None}
    recorder.progress.validation = PooledMetrics.model_validate(where | {"absent": 0})
    recorder.progress.epoch, recorder.progress.best_epoch = 2, best
    recorder._record_end()


def told(lines: Iterator[str]) -> tuple[str, dict[str, Any]]:
    """Return the next event."""
    for line in lines:
        if line.startswith("event: "):
            return line.removeprefix("event: "), json.loads(next(lines).removeprefix("data: "))
    raise AssertionError("the stream has ended")


@pytest.mark.slow
def test_a_form_makes_the_token_a_cookie_that_scripts_and_other_sites_cannot_use(client: httpx.Client) -> None:
    assert client.get("/page").headers["location"] == "page/"
    form = client.get("/page/")
    assert (form.status_code, "small" in form.text) == (401, False)
    wrong = client.post("/page/", data={"token": "wrong"})
    assert (wrong.status_code, "not known here" in wrong.text, "set-cookie" in wrong.headers) == (401, True, False)
    assert client.post("/page/", content=b"token=" + b"x" * 5000).status_code == 401
    entered = client.post("/page/", data={"token": f" {VIEWER}\n"})
    assert (entered.status_code, entered.headers["location"]) == (303, "./")
    cookie = entered.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/;"))
    assert client.get("/docs").status_code == 200, "what a viewer's token opens"
    page = client.get("/page/")
    assert page.status_code == 200
    assert "<h1>small</h1>" in page.text
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe-inline" not in page.headers["content-security-policy"].partition("style-src")[0]
    assert "<script>" not in page.text
    client.post("/page/leave")
    assert client.get("/page/state").status_code == 401


@pytest.mark.slow
def test_a_viewer_is_no_site_and_a_site_no_viewer(served: Served, client: httpx.Client) -> None:
    refused = client.post("/rounds/alpha", headers=bearer(), content=served.hello())
    assert refused.status_code == 401
    assert client.get("/run", headers=bearer()).status_code == 401
    client.post("/page/", data={"token": VIEWER})
    assert client.post("/rounds/alpha", content=served.hello()).status_code == 401
    assert served.aggregator.status.waiting_for == SITES
    assert client.get("/page/state", headers=bearer("the token of alpha")).status_code == 401
    assert client.get("/page/state", headers=bearer()).json()["waiting"]["sites"] == list(SITES)


def test_an_aggregator_of_one_run_answers_as_a_service_does_but_has_no_queue(
    served: Served, client: httpx.Client
) -> None:
    assert [client.get(path).text for path in ("/healthz", "/readyz")] == ["ok\n", "ok\n"]
    for path in ("/metrics", "/docs", "/openapi.json"):
        asked = [client.get(path), client.get(path, headers=bearer("the token of alpha"))]
        assert [(answer.status_code, answer.json()["code"]) for answer in asked] == [
            (401, "token-missing"),
            (401, "token-unknown"),
        ]
        assert client.get(path, headers=bearer()).status_code == 200
    figures = client.get("/metrics", headers=bearer()).text
    run = served.aggregator.run_id
    assert f'rankdad_waiting_sites{{run="{run}"}} 3.0' in figures
    assert 'rankdad_runs{state="running"} 1.0' in figures
    paths = client.get("/openapi.json", headers=bearer()).json()["paths"]
    assert {"/rounds/{site}", "/runs/{run}/rounds/{site}", "/page/state", "/metrics"} <= set(paths)
    assert not {"/runs", "/agents/{site}", "/asks"} & set(paths)
    for verb, path in (("POST", "/runs"), ("POST", f"/runs/{run}/cancel"), ("GET", "/agents/alpha/asks/1")):
        refused = client.request(verb, path, headers=bearer())
        assert (refused.status_code, refused.json()["code"]) == (404, "path-unknown")
    assert client.get("/").headers["location"] == "page/"


@pytest.mark.slow
def test_without_plotly_the_page_says_what_to_install(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    script = client.get("/page/plotly.js", headers=bearer())
    assert (script.status_code, "Plotly" in script.text) == (200, True)
    monkeypatch.setattr(page_serving, "find_spec", lambda name: None)
    page = client.get("/page/", headers=bearer())
    assert "pip install &#39;rankdad[page]&#39;" in page.text
    assert "plotly.js" not in page.text
    assert client.get("/page/plotly.js", headers=bearer()).status_code == 404


@pytest.mark.slow
def test_a_training_that_was_still_improving_is_warned_of_with_its_remedy(served: Served, client: httpx.Client) -> None:
    recorder, stand = served.aggregator.recorder, []
    for best in (0, 1):
        still_improving(recorder, best)
        stand.append(client.get("/page/state", headers=bearer()).json()["stand"]["warning"])
    assert stand == ["", recorder.progress.undertrained["warning"]]
    assert "training.epochs" in stand[1]


@pytest.mark.slow
def test_viewers_are_told_of_changes_once_a_second_and_all_the_same(served: Served, client: httpx.Client) -> None:
    with client.stream("GET", "/page/events", headers=bearer()) as one, httpx.Client(trust_env=False) as beside:
        lines = one.iter_lines()
        kind, whole = told(lines)
        assert (kind, whole["waiting"]["sites"], whole["curves"]) == ("whole", list(SITES), {})
        assert [site["state"] for site in whole["sites"]] == ["not here yet"] * 3
        page = f"http://127.0.0.1:{served.port}"
        with beside.stream("GET", f"{page}/page/events", headers=bearer()) as other, served.connect() as site:
            others = other.iter_lines()
            assert told(others)[1]["waiting"] == whole["waiting"]
            body, token = served.hello(), b"the token of alpha"
            run = served.aggregator.run_id.encode()
            names = b"authorization: Bearer %s\r\nx-rankdad-run: %s\r\n" % (token, run)
            head = b"POST /rounds/alpha HTTP/1.1\r\nhost: localhost\r\n" + names
            site.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            served.until(lambda: served.aggregator.barrier.holds("alpha"))
            history, times = served.aggregator.recorder.history, list[float]()
            while len(times) < 3:
                for _ in range(100):
                    history.add_step(1.0, 0.1, 0.01, [])
                kind, change = told(lines)
                assert kind == "change"
                assert told(others) == (kind, change)
                times.append(time.monotonic())
                assert change["curves"]["steps"]["x"][-1] == history.steps.points
            assert all(later - earlier > 0.8 for earlier, later in pairwise(times))
            now = client.get("/page/state", headers=bearer()).json()
            assert now["waiting"]["sites"] == ["beta", "gamma"]
            assert [row["state"] for row in now["sites"]] == ["done", "not here yet", "not here yet"]
        served.until(lambda: client.get("/page/state", headers=bearer()).json()["sites"][0]["kind"] == "gone")


def test_too_many_are_turned_away(served: Served, client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_VIEWERS >= 10
    monkeypatch.setattr("rankdad.page.stream.MAX_VIEWERS", 1)
    with client.stream("GET", "/page/events", headers=bearer()) as one:
        lines = one.iter_lines()  # kept: the stream ends with it
        told(lines)
        assert client.get("/page/events", headers=bearer()).status_code == 503


def test_a_run_without_a_file_of_viewers_has_a_token_of_its_own(tmp_path: Path) -> None:
    own = Access().viewers_in(tmp_path)
    path = tmp_path / VIEWER_TOKEN
    assert own == {"viewer": hashed(path.read_text().strip())} == Access().viewers_in(tmp_path)
    assert path.stat().st_mode & 0o077 == 0
    for name in ("tokens", "viewers"):
        (tmp_path / name).write_text(json.dumps(TOKENS))
    with pytest.raises(UserError, match=r"--viewers .*: has the token of a site"):
        Access(tokens=tmp_path / "tokens", viewers=tmp_path / "viewers").check(SITES)
