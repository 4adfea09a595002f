"""SIGINT and SIGTERM at a site: a flag, which is looked at between steps and while it waits."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rankdad.local import shutdown_signals
from rankdad.local.drivers.http import AggregatorClient
from rankdad.local.shutdown_signals import ShutdownError, ShutdownSignals
from rankdad.remote.persistence import LedgerOptions
from tests.conftest import site_config, write_policy, write_site
from tests.local.test_http import NOT_YET, RUN, Server
from tests.local.test_http import server as server
from tests.remote.serving import serving

DEAF = """
import os, signal, sys, time
from rankdad.local import taking_part
from rankdad.local.config import SiteConfig
from rankdad.local.passes import Passes
from rankdad.__main__ import main

def hold(*_, **__):  # as code does that takes every error for one of its own
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        try:
            time.sleep(0.1)
        except Exception as error:
            print("swallowed", type(error).__name__, flush=True)

if sys.argv.pop() == "reading":
    taking_part.read_site = hold
else:
    Passes.step = hold
main()
"""


@pytest.mark.parametrize("training", [False, True])
def test_a_signal_raises_nothing_where_it_comes(monkeypatch: pytest.MonkeyPatch, training: bool) -> None:
    monkeypatch.setattr(shutdown_signals, "MAX_STEP_SECONDS", 0.05)
    swallowed = list[Exception]()
    with ShutdownSignals() as signals:
        if training:
            signals.between_steps()
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)
        except Exception as error:
            swallowed.append(error)
        assert not swallowed
        with pytest.raises(ShutdownError) as stopped:
            signals.while_waiting()
        assert (stopped.value.code, stopped.value.exit_code) == ("stopped", 128 + signal.SIGTERM)
        assert signals.between_steps() == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_step_has_its_time_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    with ShutdownSignals() as signals:
        signals.between_steps()
        os.kill(os.getpid(), signal.SIGTERM)
        signals.while_waiting()
        monkeypatch.setattr(shutdown_signals, "MAX_STEP_SECONDS", 0.0)
        with pytest.raises(ShutdownError):
            signals.while_waiting()


def test_a_second_signal_ends_the_process_at_once() -> None:
    child = os.fork()
    if not child:  # pragma: no cover
        with ShutdownSignals() as signals:
            signals.between_steps()
            for number in (signal.SIGTERM, signal.SIGINT):
                with contextlib.suppress(BaseException):
                    os.kill(os.getpid(), number)
                    time.sleep(0.01)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + signal.SIGTERM


@pytest.mark.exhaustive
@pytest.mark.parametrize("phase", ["reading", "computing"])
def test_a_site_that_cannot_look_ends_as_if_it_were_killed(tmp_path: Path, phase: str) -> None:
    """Neither is the signal taken for a fault of the data or the model, nor does the site outlive it."""
    write_site(tmp_path / "data", 54, 0)
    with serving(tmp_path / "run", ledger=LedgerOptions(), federation={"sites": ["alpha"]}) as served:
        policy = write_policy(tmp_path)
        config = site_config(served.port, policy=policy, data=str(tmp_path / "data"), output=str(tmp_path / "out"))
        file = tmp_path / "alpha.json"
        file.write_text(config.model_dump_json(exclude_none=True))
        began = time.monotonic()
        words = [sys.executable, "-c", DEAF, "site", str(file), phase]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 128 + signal.SIGTERM, ended
        assert "swallowed" not in ended.stdout
        assert ended.stderr.splitlines()[-1] == "error: stopped by SIGTERM [stopped]"
        assert time.monotonic() - began < 40
        assert not served.aggregator.recorder.progress.problems
        assert not served.aggregator.ended


@pytest.mark.slow
@pytest.mark.parametrize("what", ["exchange", "run"])
@pytest.mark.parametrize("answer", [None, NOT_YET, (503, b"")], ids=["held", "not-yet", "broken"])
def test_every_wait_of_a_site_ends_with_the_flag(server: Server, what: str, answer: tuple[int, bytes] | None) -> None:
    """An answer that is held, one that is "not yet" over and over, and an aggregator that is not there."""
    server.script = [RUN, *[answer] * 400]
    signals = ShutdownSignals()
    with AggregatorClient(site_config(server.server_port), look=signals.while_waiting) as client, signals:
        client.run()
        if (what, answer) == ("run", NOT_YET):
            return  # which is not how a run is answered
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        began = time.monotonic()
        with pytest.raises(ShutdownError):
            client.run() if what == "run" else client.exchange(b"x", 0)
        assert time.monotonic() - began < 1.5
        timer.join()


@pytest.mark.parametrize("last", [AggregatorClient.done, lambda client: client.give_up(b"x")], ids=["done", "give-up"])
def test_what_a_site_says_last_is_said_whatever_has_come(
    server: Server, last: Callable[[AggregatorClient], None]
) -> None:
    server.script = [RUN, (200, b"")]
    signals = ShutdownSignals()
    with AggregatorClient(site_config(server.server_port), look=signals.while_waiting) as client, signals:
        client.run()
        os.kill(os.getpid(), signal.SIGTERM)
        last(client)
    assert len(server.bodies) == 1
