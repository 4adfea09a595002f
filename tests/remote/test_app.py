"""The routes on a socket: what each answers, in every state of a round, and to whatever comes."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch

from rankdad.common.errors import UserError
from rankdad.common.protocol.codec import pack_failure, unpack
from rankdad.common.protocol.messages import failure_message
from rankdad.common.rounds.base import Collected
from rankdad.common.rounds.hello import Roster
from rankdad.local.drivers.http import AggregatorClient
from rankdad.remote.auth import Identity, hashed
from rankdad.remote.connections import Timeouts
from rankdad.remote.site_status import site_statuses
from rankdad.remote.updates import Update
from tests.conftest import SITES, site_config
from tests.remote.serving import Later, Served, ask, complete_hello, reason, serving
from tests.remote.serving import served as served


def test_a_round_is_answered_to_all_and_again_to_whoever_asks(served: Served) -> None:
    assert ask(served, "GET", "/rounds/alpha/0") == (204, b"")
    update = complete_hello(served)
    assert unpack(update, served.aggregator.plan, up=False).round == 0
    assert ask(served, "GET", "/rounds/beta/0") == (200, update)
    assert ask(served, "POST", "/rounds/beta", served.hello("beta")) == (200, update)
    assert ask(served, "GET", "/rounds/beta/1") == (204, b"")
    for asked in (("GET", "/rounds/beta/2"), ("POST", "/rounds/beta", served.step("beta", 2))):
        status, said = reason(ask(served, *asked))
        assert status == 409
        assert said.startswith("r: got round 2, but the run is in round 1; an aggregator cannot resume from an older")


@pytest.mark.slow
def test_a_long_wait_is_answered_not_yet_and_the_body_counts_once(tmp_path: Path) -> None:
    with serving(tmp_path / "run", timeouts=Timeouts(hold=0.2)) as served:
        assert ask(served, "POST", "/rounds/alpha", served.hello("alpha")) == (202, b'{"status":"not yet"}')
        assert ask(served, "GET", "/rounds/alpha/0") == (202, b'{"status":"not yet"}')
        assert ask(served, "GET", "/rounds/beta/0") == (204, b"")
        held = [Later(served, "POST", f"/rounds/{site}", served.hello(site)) for site in SITES[1:]]
        for request in held:
            request.wait()
        status, update = ask(served, "GET", "/rounds/alpha/0")
        assert status == 200
        assert unpack(update, served.aggregator.plan, up=False).body == Roster(train=((10, 11, 12),))


def test_an_answer_of_a_round_before_goes_to_nobody_who_waits_for_another(served: Served) -> None:
    """Two processes of one site: one goes through the run again while the other waits."""
    update = complete_hello(served)
    waiting = Later(served, "POST", "/rounds/alpha", served.step("alpha", 1))
    served.until(lambda: served.aggregator.barrier.holds("alpha"))
    assert ask(served, "POST", "/rounds/alpha", served.hello("alpha")) == (200, update)
    for site in SITES[1:]:
        last = Later(served, "POST", f"/rounds/{site}", served.step(site, 1))
    assert waiting.wait() == last.wait()
    assert waiting.answer[1] != update


def test_two_processes_of_a_site_are_told_at_their_first_turn_and_a_restart_is_none(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two agents with one token and other data took turns for 60 rounds, and the owner saw a plain end."""

    def said(process: str) -> tuple[int, str]:
        named = {"x_rankdad_process": process} if process else {}
        status, body = ask(served, "GET", "/rounds/alpha/1", None, **named)
        return status, json.loads(body)["code"] if body else ""

    def shown() -> str:
        return served.aggregator.status.problems.get("alpha", "")

    complete_hello(served, x_rankdad_process="a")
    for process in ("b", "a", "b"):  # one that only asks replaces none
        assert said(process) == (204, "")
    cannot = pack_failure(failure_message("alpha", 1, UserError("t.csv: is empty", code="table-empty"), final=False))
    assert ask(served, "POST", "/rounds/alpha", cannot, x_rankdad_process="b")[0] == 200
    assert said("a") == (204, ""), "it could not take part, and had ended the one that does"
    again = Later(served, "POST", "/rounds/alpha", served.step("alpha", 1), x_rankdad_process="b")
    served.until(lambda: served.aggregator.barrier.holds("alpha"))
    for process in ("a", ""):
        assert said(process) == (409, "process-replaced")
    served.until(lambda: "does a second process use its name and token? Stop one of the two" in shown())
    for site in SITES[1:]:
        last = Later(served, "POST", f"/rounds/{site}", served.step(site, 1), x_rankdad_process="a")
    assert again.wait() == last.wait()
    assert shown(), "of what it sends, nothing tells which process is the right one"
    assert served.aggregator.recorder.progress.warnings == {"two-processes": ["alpha"]}
    monkeypatch.setattr("rankdad.remote.site_processes.CONTESTED", 0.0)
    served.aggregator.take("alpha", served.step("alpha", 2))
    assert not shown()


REFUSED = [
    ("POST", "/rounds/delta", b"", 404, "no such site in this run"),
    ("POST", "/rounds/-x", b"", 422, "a site's name has 1 to 63"),
    ("POST", "/rounds/" + "a" * 9999, b"", 422, "a site's name has 1 to 63"),
    ("POST", "/rounds/a%00%0ab", b"", 422, "a site's name has 1 to 63"),
    ("GET", "/rounds/%C3%A9/0", None, 422, "a site's name has 1 to 63"),
    ("POST", "/snapshots/..", b"", 422, "a site's name has 1 to 63"),
    ("GET", "/rounds/alpha/-1", None, 422, "the round is not a whole number"),
    ("GET", "/rounds/alpha/" + "9" * 99, None, 422, "the round is not a whole number"),
    ("GET", "/rounds/alpha/999999999999", None, 409, "r: got round 999999999999, but the run is in round 0"),
    ("POST", "/rounds/alpha", b"\xc1", 422, "the body is not msgpack"),
    ("POST", "/rounds/alpha", b"", 422, "the body is not msgpack"),
    ("POST", "/rounds/alpha", b"\x81" * 9999, 422, "the body is not msgpack"),
    ("POST", "/snapshots/alpha", b"x", 413, "the body has 1 bytes, expected at most 0"),
    ("GET", "/rounds/alpha", None, 405, "GET is not known at this path"),
    ("DELETE", "/run", None, 405, "DELETE is not known at this path"),
    ("GET", "/docs", None, 401, "no token; expected the header"),
    ("GET", "/run/", None, 404, "GET is not known at this path"),
    ("POST", "/rounds/", b"", 404, "POST is not known at this path"),
]


@pytest.mark.slow
def test_what_cannot_be_is_refused_in_one_line_and_logged(served: Served) -> None:
    expected = []
    for verb, path, body, status, said in REFUSED:
        answer = reason(ask(served, verb, path, body))
        assert (answer[0], answer[1][: len(said)]) == (status, said), (verb, path)
        assert "\n" not in answer[1]
        expected.append(("127.0.0.1", *answer))
    refused = [line for line in served.audited() if line["what"] == "refused"]
    assert [(line["address"], line["status"], line["reason"]) for line in refused] == expected
    assert served.aggregator.barrier.round == 0
    assert served.aggregator.barrier.missing() == SITES


def test_a_contribution_to_another_run_is_refused(served: Served) -> None:
    for question in (("POST", "/rounds/alpha", served.hello()), ("GET", "/rounds/alpha/0", None)):
        status, said = reason(ask(served, *question, x_rankdad_run="f" * 16))
        assert (status, "is for another run" in said) == (409, True)
        status, said = reason(ask(served, *question, x_rankdad_run=""))
        assert status == 409
    assert served.aggregator.barrier.missing() == SITES


@pytest.mark.slow
def test_others_are_answered_while_a_round_is_aggregated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path / "run", training={"threads": 1}) as served:
        make, go_on, at_work = served.aggregator.source.make, threading.Event(), list[tuple[str, int]]()

        def slow(here: Collected) -> Update | None:
            at_work.append((threading.current_thread().name, torch.get_num_threads()))
            assert go_on.wait(10)
            return make(here)

        missing, readers = served.aggregator.barrier.missing, set[str]()

        def noted() -> tuple[str, ...]:
            readers.add(threading.current_thread().name)
            return missing()

        monkeypatch.setattr(served.aggregator.source, "make", slow)
        monkeypatch.setattr(served.aggregator.barrier, "missing", noted)
        held = [Later(served, "POST", f"/rounds/{site}", served.hello(site)) for site in SITES]
        served.until(lambda: at_work)
        status = json.loads(ask(served, "GET", "/status")[1])
        assert (status["round"], status["waiting_for"]) == (0, [])
        assert readers == {"aggregator_0"}, "others read a value that does not change"
        assert reason(ask(served, "POST", "/rounds/delta", b""))[0] == 404
        go_on.set()
        assert {request.wait()[0] for request in held} == {200}
        assert reason(ask(served, "POST", "/rounds/alpha", b"?"))[0] == 422
    assert at_work == [("aggregator_0", served.aggregator.plan.threads)]


def test_a_snapshot_is_given_and_logged(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(served, "POST", "/snapshots/alpha", b"") == (204, b"")
    monkeypatch.setattr(served.aggregator, "snapshot", lambda site: f"state of {site}".encode())
    assert ask(served, "POST", "/snapshots/alpha", b"") == (200, b"state of alpha")
    (line,) = [line for line in served.audited() if line["what"] == "snapshot given"]
    assert (line["site"], line["address"], line["bytes"]) == ("alpha", "127.0.0.1", 14)


def test_who_comes_is_logged_once_and_not_at_every_step(served: Served) -> None:
    complete_hello(served)
    ask(served, "GET", "/rounds/alpha/0")
    ask(served, "GET", "/rounds/alpha/0")
    lines = [(line["what"], line["site"]) for line in served.audited()]
    assert sorted(lines) == sorted((what, site) for what in ("connected", "accepted hello") for site in SITES)


def test_a_site_that_has_died_may_return_and_the_end_does_not_wait_for_it(served: Served) -> None:
    departed, drained = served.host._departed, served.host._drained
    departed.add("gamma")
    complete_hello(served)
    assert not departed, "it has spoken again"
    departed.add("gamma")
    served.host._unacknowledged = {"gamma"}
    served.aggregator.fail("gamma", "killed")
    served.host.mark_acknowledged()
    assert drained.is_set()


@pytest.mark.slow
def test_a_body_must_not_be_slow(tmp_path: Path) -> None:
    timeouts = Timeouts(body=0.2, bytes_per_second=100_000, refused=0.1)
    with serving(tmp_path / "run", timeouts=timeouts) as served, served.connect() as slow:
        head = f"POST /rounds/alpha HTTP/1.1\r\nhost: localhost\r\nx-rankdad-run: {served.aggregator.run_id}\r\n"
        slow.sendall(f"{head}content-length: 60000\r\n\r\n".encode() + bytes(10_000))  # 0.1 s more
        answer = slow.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"the body was slower than 100000 bytes per second" in answer


@pytest.mark.slow
def test_a_site_that_has_only_looked_is_not_gone(tmp_path: Path) -> None:
    """As `rankdad check SITE.json` does: it says by its token who it is, asks for the run, and sends nothing."""
    (tmp_path / "token").write_text("a" * 43)
    identity = Identity(SITES, {"alpha": hashed("a" * 43)})
    with serving(tmp_path / "run", identity) as served:

        def alpha() -> str:
            return site_statuses(served.host)[0].kind

        config = site_config(served.port, token_file=str(tmp_path / "token"), allow_plain_http=True)
        assert alpha() == "absent"
        with AggregatorClient(config) as client:
            client.run()
            assert alpha() == "awaited"
        served.until(lambda: not served.host.connected())
        assert alpha() == "absent"
        with AggregatorClient(config) as client:
            client.run()
            client.give_up(b"?")  # whatever it sends
        served.until(lambda: not served.host.connected())
        assert alpha() == "gone"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "status", "code"),
    [
        ("localhost:80", 200, None),
        ("127.0.0.1", 200, None),
        ("[::1]:80", 200, None),
        ("evil.example", 421, "host-unknown"),
        ("evil.example:80", 421, "host-unknown"),
        ("evil", 421, "host-unknown"),  # of a network whose owner gives names
        ("127.0.0.1@evil.example", 400, "request-malformed"),
        ("x:evil.example", 400, "request-malformed"),
        ("[", 400, "request-malformed"),
    ],
)
def test_an_aggregator_without_tokens_answers_no_page_that_has_made_its_name_lead_here(
    served: Served, host: str, status: int, code: str | None
) -> None:
    answered, body = ask(served, "GET", "/run", host=host)
    assert (answered, json.loads(body).get("code")) == (status, code)


@pytest.mark.slow
def test_no_page_of_another_site_sends_a_contribution(served: Served) -> None:
    answered, body = ask(served, "POST", "/rounds/alpha", b"x", **{"sec-fetch-site": "cross-site"})
    assert (answered, json.loads(body)["code"]) == (403, "other-page")
