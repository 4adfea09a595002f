"""An aggregator that has seen a newer log of a site, or another, takes no older one: what left would add up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankdad.__main__ import app
from rankdad.common.errors import ProtocolError
from rankdad.common.privacy.heads import Heads, chained
from rankdad.common.privacy.parts import Secret
from rankdad.common.run.replica import Replica
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.known_logs import KnownLogs
from rankdad.remote.persistence import LedgerOptions
from tests.conftest import run_spec
from tests.remote.test_aggregator import hello_of


def log(*runs: str, secret: bytes = bytes(32)) -> Heads:
    return chained(Secret(secret), ((run,) for run in runs))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Callable[[str], Aggregator]]:
    """Yield what makes the aggregator of one of a service's runs."""
    spec, logs, made = run_spec(), KnownLogs(tmp_path), list[Aggregator]()

    def begin(run: str) -> Aggregator:
        made.append(Aggregator(spec, Replica(spec), tmp_path / run, time.perf_counter, logs=logs))
        return made[-1]

    yield begin
    for one in made:
        one.abandon()


@pytest.mark.parametrize(
    ("later", "code"),
    [
        (log("a"), "log-too-old"),
        (log("b", "a", "c"), "log-forked"),
        (log("a", "b", "c", secret=b"o" * 32), "log-replaced"),
        (None, "log-missing"),
    ],
    ids=["older copy", "forked", "another", "none"],
)
def test_a_later_run_of_a_service_refuses_a_log_that_is_not_the_newest_until_its_people_forget(
    tmp_path: Path, service: Callable[[str], Aggregator], later: Heads | None, code: str
) -> None:
    first, second = service("one"), service("two")
    first.take("alpha", hello_of(first, log=log("a", "b")))
    first.take("beta", hello_of(first))
    hello = hello_of(second, log=later)
    with pytest.raises(ProtocolError) as refused:
        second.take("alpha", hello)
    assert (refused.value.code, refused.value.field, second.barrier.missing()[0]) == (code, "d.log", "alpha")
    second.take("beta", hello_of(second, log=log("x")))  # another site, and one that had none
    assert CliRunner().invoke(app, ["forget", str(tmp_path), "alpha", "--log"]).exit_code == 0
    second.take("alpha", hello)
    assert "alpha" not in second.barrier.missing()


def test_a_run_that_noted_and_crashed_before_its_hello_and_one_whose_log_has_gone_on_since_are_let_in(
    service: Callable[[str], Aggregator],
) -> None:
    first, second = service("one"), service("two")
    with pytest.raises(ProtocolError):
        first.take("alpha", hello_of(first, log=log("never"), spec_sha256="0" * 64))  # leaves nothing behind
    first.take("alpha", hello_of(first, log=log("a")))
    second.take("alpha", hello_of(second, log=log("a", "lost", "b")))
    first.take("alpha", hello_of(first, log=log("a")))  # the same again, whose answer was lost
    first.take("alpha", hello_of(first, log=log("a", "lost", "b")))  # the site was started again before all were there
    assert "alpha" not in first.barrier.missing()
    with pytest.raises(ProtocolError) as refused:
        first.take("alpha", hello_of(first, log=log("a", "lost", "b"), dropped=1))
    assert refused.value.code == "contribution-repeated"


def test_the_aggregator_of_a_single_run_remembers_while_its_directory_lasts(tmp_path: Path) -> None:
    spec = run_spec()
    begin = partial(Aggregator, spec, Replica(spec), tmp_path / "run", time.perf_counter, ledger=LedgerOptions())
    before = begin()
    before.take("alpha", hello_of(before, log=log("a", "b")))
    before.abandon()
    again = begin()
    again.resume()
    with pytest.raises(ProtocolError) as refused:
        again.take("alpha", hello_of(again, log=log("a")))
    again.abandon()
    assert refused.value.code == "log-too-old"
