"""The pages of a service in a real Chromium: real agents train what is submitted there, and nobody else may."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.protocol.service import State
from rankdad.local.drivers.http_library import httpx
from rankdad.page.stream import MAX_VIEWERS
from tests.conftest import SITES, run_document, write_site
from tests.e2e.consortium import OVER, Consortium
from tests.page.looking import LOOKS, TEXT, check_look, until
from tests.remote.report.browser import Browser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("browser")]

PEOPLE = {"owners": ["anna", "otto"], "viewers": ["vera"]}
HOSTILE = "<img src=https://evil.example/x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"
LONG = run_document(name="long", training={"epochs": 100_000, "validation": 0.2})
SUBMIT = "document.querySelector('#submission button').click()"
BUTTONS = "[...document.querySelectorAll('main button')].map(button => button.ariaLabel || button.textContent)"
STEPS = "document.getElementById('steps-chart')?.data?.at(-1).x.at(-1) ?? 0"
REFUSALS = ('"source": "network"', "Password forms")  # what is meant to be refused is no fault of the page's
FOCUSED = "(box => box.ariaLabel || box.id || box.className || box.textContent)(document.activeElement)"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for number, (site, count) in enumerate(zip(SITES, (60, 50, 40), strict=True)):
        write_site(folder / site, count, number)
    return folder


@pytest.fixture(scope="module")
def all_(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Iterator[Consortium]:
    folder = tmp_path_factory.mktemp("consortium")
    policies = {"beta": {"methods": ["dsgd"]}}
    with Consortium(folder / "all", data, SITES, consortium=PEOPLE, policies=policies, tokens=True).started() as one:
        one.until(lambda client: client.runs() is not None)
        yield one


@pytest.fixture
def page(chromium: Browser) -> Iterator[Browser]:
    """A browser in which nobody has shown a token, and whose pages ask nobody else for anything."""
    chromium.call("Network.clearBrowserCookies")
    chromium.requests.clear()
    chromium.complaints.clear()
    yield chromium
    hosts = {httpx.URL(one).host for one in chromium.requests if not one.startswith(("data:", "about:"))}
    assert hosts <= {"127.0.0.1"}
    assert not [one for one in chromium.complaints if not any(word in one for word in REFUSALS)]
    chromium.open("about:blank", 1200)


def token(all_: Consortium, name: str) -> str:
    return all_.token_file(name).read_text()


def enter(page: Browser, all_: Consortium, name: str, path: str = "", width: int = 1200, *, dark: bool = False) -> None:
    """Open a page as somebody."""
    page.open(f"{all_.url}/runs/{path}", width, dark=dark)
    if page.evaluate("!!document.getElementById('token')"):
        given = json.dumps(token(all_, name))
        page.evaluate(f"document.getElementById('token').value = {given}; document.forms[0].submit()")
    until(
        lambda: page.evaluate("!!document.querySelector('#sites-table thead, #hospitals-table thead')"),
        what="the page says nothing",
    )


def paste(page: Browser, text: str) -> None:
    """Submit a text."""
    page.evaluate(f"(box => {{ box.value = {json.dumps(text)}; box.dispatchEvent(new Event('input')) }})"
                  "(document.getElementById('spec'))")  # fmt: skip
    page.evaluate(SUBMIT)


def row(page: Browser, run: str) -> str:
    """Return what a run's row says."""
    found: str = page.evaluate(f"document.querySelector('tr[data-name={json.dumps(run)}]')?.innerText ?? ''")
    return found


def answer(page: Browser) -> str:
    found: str = page.evaluate("document.getElementById('answer').innerText")
    return found


def submitted(all_: Consortium, document: dict[str, Any], *states: State) -> str:
    """Submit a run by the command's way, and return its name once it is in one of some states."""
    run = all_.submit(document)
    all_.until(lambda client: client.run(run).state in states)
    return run


def training(all_: Consortium) -> str:
    """Return a run that trains."""
    run = submitted(all_, LONG, State.RUNNING)
    all_.until(lambda client: client.run(run).step > 20)
    return run


def cancelled(all_: Consortium, run: str) -> None:
    with all_.client() as client:
        client.cancel(run)


@pytest.mark.exhaustive
def test_a_wrong_token_shows_nothing(page: Browser, all_: Consortium) -> None:
    run = submitted(all_, run_document(name="secret"), *OVER)
    names = ("secret", "anna", *SITES, *PEOPLE["viewers"])
    with httpx.Client(trust_env=False, timeout=20) as client:
        for given in (None, "wrong", token(all_, "alpha")):
            cookie = {"cookie": f"rankdad-{all_.port}={given}"}
            for headers in ({}, {"authorization": f"Bearer {given}"}, cookie, cookie | {"x-rankdad-page": "1"}):
                for path in ("", "state", "events", "service.js", "shared.js"):
                    for place in ("", f"{run}/", "not-there-9/"):
                        found = client.get(f"{all_.url}/runs/{place}{path}", headers=headers if given else {})
                        assert found.status_code == 401, (place, path, headers)
                        assert not any(name in found.text for name in names)
                assert client.get(f"{all_.url}/runs/{run}/report.html", headers=headers).status_code == 401
                for path in ("submit?id=0123456789abcdef", f"{run}/cancel"):
                    refused = client.post(f"{all_.url}/runs/{path}", headers=headers, content=b"{}")
                    assert refused.status_code in (401, 403)
    page.open(f"{all_.url}/runs/", 1200)
    before = page.evaluate(TEXT)
    page.evaluate("document.getElementById('token').value = 'wrong'; document.forms[0].submit()")
    until(lambda: "not known here" in page.evaluate(TEXT))
    assert not any(name in before + page.evaluate(TEXT) for name in names)


def test_an_owner_submits_sees_it_learn_and_cancels(page: Browser, all_: Consortium, tmp_path: Path) -> None:
    enter(page, all_, "anna")
    assert page.evaluate("document.cookie") == "", "scripts can read the token"
    paste(page, '{"name":\n "long",}')
    until(lambda: "line 2, column" in answer(page))
    wrong = tmp_path / "RUN.json"
    wrong.write_text(json.dumps({"run": LONG | {"seed": "seven", "tsak": 1, "method": {"name": "dsgd", "rank": 0}}}))
    page.call("DOM.enable")
    root = page.call("DOM.getDocument")["root"]["nodeId"]
    node = page.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
    page.call("DOM.setFileInputFiles", files=[str(wrong)], nodeId=node)
    until(lambda: "tsak" in page.evaluate("document.getElementById('spec').value"))
    page.evaluate(SUBMIT)
    until(lambda: "It is not submitted" in answer(page))
    for field in ("run.seed: got", "run.tsak: is not known here: did you mean task?", "run.method.rank: is not known"):
        assert field in answer(page)
    paste(page, json.dumps(LONG))
    until(lambda: "is submitted" in answer(page))
    run = answer(page).split()[0]
    assert page.evaluate("document.getElementById('spec').value") == ""
    until(lambda: "running" in row(page, run) and " of " in row(page, run), what="it does not train")
    for word in ("anna", "dsgd", "alpha, beta, gamma"):
        assert word in row(page, run)
    sites = "document.querySelector('#sites-table tbody').innerText"
    until(lambda: page.evaluate(sites).count(run) == len(SITES) == page.evaluate(sites).count("connected"))

    enter(page, all_, "anna", f"{run}/")
    page.evaluate("document.getElementById('tab-technical').click()")
    until(lambda: page.evaluate(STEPS) > 5, what="no curve")
    before = page.evaluate(STEPS)
    until(lambda: page.evaluate(STEPS) > before, what="the curve does not grow")
    until(
        lambda: (
            f"{run}/alpha" in page.evaluate(TEXT)
            or "epoch" in page.evaluate("document.getElementById('lines').innerText")
        )
    )
    page.screenshot(tmp_path / "run.png")

    enter(page, all_, "anna")
    until(lambda: f"Cancel {run}" in page.evaluate(BUTTONS))
    press = f"document.querySelector('[aria-label={json.dumps(f'Cancel {run}')}]').click()"
    page.evaluate(f"confirm = () => false; {press}")
    time.sleep(0.5)
    assert "cancelled" not in row(page, run)
    page.evaluate(f"confirm = said => said.includes({json.dumps(run)}); {press}")
    until(lambda: "cancelled: by anna" in row(page, run))
    assert f"Cancel {run}" not in page.evaluate(BUTTONS)

    enter(page, all_, "vera", f"{run}/")
    until(lambda: "Ended: interrupted" in page.evaluate(TEXT) or "Ended: cancelled" in page.evaluate(TEXT))
    page.evaluate("document.getElementById('tab-technical').click()")
    until(lambda: page.evaluate(STEPS) > before, what="a run that is over has no curve")


def test_a_viewer_sees_no_buttons_and_can_do_nothing(page: Browser, all_: Consortium) -> None:
    run = training(all_)
    try:
        enter(page, all_, "vera")
        until(lambda: run in page.evaluate(TEXT))
        assert page.evaluate(BUTTONS) == []
        assert page.evaluate("document.querySelectorAll('textarea, main form, [type=file]').length") == 0
        act = "fetch({}, {{method: 'POST', headers: {{'x-rankdad-page': '1'}}, body: '{{}}'}}).then(one => one.status)"
        for path in ("submit?id=0123456789abcdef", f"{run}/cancel"):
            found = page.call("Runtime.evaluate", expression=act.format(json.dumps(path)), awaitPromise=True)
            assert found["result"]["value"] == 403
        page.call("Network.clearBrowserCookies")
        enter(page, all_, "otto")
        until(lambda: run in page.evaluate(TEXT))
        assert page.evaluate(BUTTONS) == ["Submit"], "another owner's run"
    finally:
        cancelled(all_, run)


def session(all_: Consortium, name: str) -> dict[str, str]:
    """Return the header of a browser that has shown somebody's token."""
    entered = httpx.post(f"{all_.url}/runs/", data={"token": token(all_, name)}, trust_env=False)
    return {"cookie": entered.headers["set-cookie"].partition(";")[0]}


def test_no_page_of_another_site_acts_in_an_owners_name(all_: Consortium) -> None:
    run = training(all_)
    cookie = session(all_, "anna")
    own = cookie | {"x-rankdad-page": "1"}
    with httpx.Client(trust_env=False, timeout=20, base_url=f"{all_.url}/runs/") as client:
        forms: list[tuple[dict[str, str], int]] = [(cookie, 401), (cookie | {"origin": "https://evil.example"}, 403)]
        forms += [(own | {"sec-fetch-site": site}, 403) for site in ("cross-site", "same-site")]
        forms += [(own | {"origin": origin}, 403) for origin in ("null", f"http://127.0.0.1:{all_.port + 1}")]
        for headers, status in forms:
            for path in (f"{run}/cancel", "submit?id=0123456789abcdef"):
                assert client.post(path, headers=headers, content=b"{}").status_code == status, (path, headers)
        with all_.client() as known:
            assert known.run(run).state is State.RUNNING
        assert client.options(f"{run}/cancel", headers=own).status_code == 405, "no other site may ask for the header"
        same = own | {"origin": all_.url, "sec-fetch-site": "same-origin"}
        assert client.post(f"{run}/cancel", headers=same).json()["state"] == "cancelled"


def test_what_others_say_is_text_and_a_refusal_is_shown(page: Browser, all_: Consortium) -> None:
    forbidden = submitted(all_, run_document(name="forbidden", method={"name": "rank-dad", "rank": 2}), *OVER)
    all_.stop("gamma")
    hostile = submitted(all_, run_document(name="hostile"), State.WAITING)
    try:
        with all_.client() as client:
            id_ = client.run(hostile).id
        body = {"id": id_, "answer": "refused", "reason": HOSTILE}
        headers = {"authorization": f"Bearer {token(all_, 'gamma')}"}
        found = httpx.post(f"{all_.url}/agents/gamma/runs/{hostile}", json=body, headers=headers, trust_env=False)
        assert found.status_code == 204
        enter(page, all_, "anna")
        until(lambda: "onerror" in row(page, hostile))
        assert f"refused: gamma: {HOSTILE}" in row(page, hostile)
        assert "method.name: the run asks for rank-dad, but this site's policy allows dsgd" in row(page, forbidden)
        paste(page, json.dumps(LONG | {HOSTILE: 1}))
        until(lambda: "onerror" in answer(page))
        assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0
        assert page.evaluate("document.title") == "test"
        until(lambda: "disconnected" in page.evaluate(TEXT))
    finally:
        all_.start("gamma")


@pytest.mark.exhaustive
def test_a_run_that_is_over_keeps_its_page_and_has_a_report(page: Browser, all_: Consortium) -> None:
    run = submitted(all_, run_document(name="short", training={"validation": 0.2}), State.ENDED)
    waiting = f"document.querySelector('[aria-label={json.dumps(f'Report of {run}')}]')?.href ?? ''"
    enter(page, all_, "vera")
    until(lambda: page.evaluate(waiting))
    assert page.evaluate(waiting) == f"{all_.url}/runs/{run}/report.html"
    assert all_.stop("service") == 0
    all_.start("service")
    until(lambda: "does not answer" in page.evaluate(TEXT) or "connected" in page.evaluate(TEXT))
    all_.until(lambda client: client.run(run))
    enter(page, all_, "vera", f"{run}/")
    until(lambda: "Ended: completed" in page.evaluate(TEXT))
    summary = all_.summary(run)
    assert f"after {summary['steps']} steps" in page.evaluate(TEXT)
    epochs = page.evaluate("document.getElementById('metric-chart').data.find(one => one.name === 'all together').x")
    assert epochs == [1, 2]
    assert not page.evaluate("document.getElementById('metric-chart').hidden")
    assert "epoch 2 of 2" in page.evaluate("document.getElementById('lines').innerText")
    unvalidated = submitted(all_, run_document(name="unvalidated", training={"validation": 0}), State.ENDED)
    page.open(f"{all_.url}/runs/{unvalidated}/", 1200)
    until(lambda: "Too early to tell." in page.evaluate(TEXT))
    assert page.evaluate("document.getElementById('metric-chart').data?.at(-1).x") == [1, 2], "the training loss"
    page.open(f"{all_.url}/runs/{run}/report.html", 1200)
    until(lambda: "short" in page.evaluate(TEXT))
    assert page.evaluate("location.origin === 'null' || origin === 'null'"), "a report acts in nobody's name"
    with httpx.Client(trust_env=False, timeout=60, base_url=f"{all_.url}/runs/") as client:
        cookie = session(all_, "vera")
        assert "sandbox" in client.get(f"{run}/report.html", headers=cookie).headers["content-security-policy"]
        assert client.get("not-there-9/report.html", headers=cookie).status_code == 404
        assert client.get("not-there-9/", headers=cookie).status_code == 404
        assert "event: end" in client.get(f"{run}/events", headers=cookie).text
        with contextlib.ExitStack() as stack:
            told = []
            while True:
                answer = stack.enter_context(client.stream("GET", "events", headers=cookie))
                if answer.status_code != 200:
                    break
                told.append(answer.iter_bytes())  # kept: the stream ends with it
                next(told[-1])
            assert (answer.status_code, len(told)) == (503, MAX_VIEWERS)
            assert client.get(f"{run}/events", headers=cookie).status_code == 503, "the limit is one for all pages"
        until(lambda: client.get(f"{run}/events", headers=cookie).status_code == 200)


def test_no_text_is_clipped_and_keys_reach_everything(page: Browser, all_: Consortium, tmp_path: Path) -> None:
    run = training(all_)
    try:
        for width, dark in LOOKS:
            enter(page, all_, "anna", width=width, dark=dark)
            until(lambda: " of " in row(page, run))
            page.screenshot(tmp_path / f"service {width} {'dark' if dark else 'light'}.png")
            check_look(page, width, dark=dark)
            enter(page, all_, "anna", f"{run}/", width, dark=dark)
            page.evaluate("document.getElementById('tab-technical').click()")
            until(lambda: page.evaluate(STEPS) > 5)
            time.sleep(1.5)  # a resize is drawn in the next frame
            page.screenshot(tmp_path / f"run {width} {'dark' if dark else 'light'}.png")
            check_look(page, width, dark=dark)
        enter(page, all_, "anna")
        until(lambda: f"Cancel {run}" in page.evaluate(BUTTONS))
        reached = set()
        for _ in range(60):
            for kind in ("keyDown", "keyUp"):
                page.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
            reached.add(page.evaluate(FOCUSED))
        assert {"skip", "Sign out", run, f"Cancel {run}", "file", "spec", "Submit", "table"} <= reached
    finally:
        cancelled(all_, run)
    if kept := os.environ.get("RANKDAD_SCREENSHOTS"):
        shutil.copytree(tmp_path, kept, dirs_exist_ok=True)


def test_where_nobody_says_who_he_is_the_directorys_token_opens_the_pages(tmp_path: Path) -> None:
    all_ = Consortium(tmp_path / "all", tmp_path, ("alpha",))
    try:
        all_.start("service")
        all_.until(lambda client: client.runs() is not None)
        path = all_.directory / "owner-token"
        assert path.stat().st_mode & 0o077 == 0
        with httpx.Client(trust_env=False, timeout=20, follow_redirects=True) as client:
            assert client.get(all_.url).status_code == 401
            assert client.post(f"{all_.url}/runs/", data={"token": "wrong"}).status_code == 401
            page = client.post(f"{all_.url}/runs/", data={"token": path.read_text()})
            assert 'data-owner=""' in page.text
            evil = {"origin": "https://evil.example"}
            for address in ("runs", "runs/submit?id=0123456789abcdef"):
                assert client.post(f"{all_.url}/{address}", headers=evil, content=b"{}").status_code == 403
            many = json.dumps({f"key{number}": 1 for number in range(500)})
            submit = f"{all_.url}/runs/submit?id=0123456789abcdef"
            refused = client.post(submit, headers={"x-rankdad-page": "1"}, content=many)
            assert (refused.status_code, len(refused.json()["errors"])) == (422, 100)
            document = json.dumps(run_document(federation={"sites": ["alpha"]}))
            twice = [client.post(submit, headers={"x-rankdad-page": "1"}, content=document).json() for _ in range(2)]
            assert twice[0]["run"] == twice[1]["run"] == "small-1"
            state = client.get(f"{all_.url}/runs/state").json()
            assert [(run["name"], run["state"], run["reason"]) for run in state["runs"]] == [
                ("small-1", "waiting for sites", "answers from alpha")
            ]
            assert client.get(f"{all_.url}/runs/small-1/").url == f"{all_.url}/runs/", "it has no page yet"
            assert client.get(f"{all_.url}/runs/small-1/events").status_code == 503
            assert client.get(f"{all_.url}/runs/small-1/report.html").status_code == 409
    finally:
        all_.kill("service")


def test_a_token_that_is_revoked_ends_what_it_has_opened(page: Browser, all_: Consortium) -> None:
    """Last of all."""
    enter(page, all_, "vera")
    until(lambda: "connected" in page.evaluate(TEXT))
    all_.revoke("vera")
    until(lambda: page.evaluate("!!document.getElementById('token')"), 30)
    assert not any(site in page.evaluate(TEXT) for site in SITES)
