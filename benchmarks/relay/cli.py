"""`python -m benchmarks relay` and `behind`: slow links and faults by hand, and a simulation behind them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from rankdad.common.errors import RankdadError, UserError

REPORT = "relay.json"  # in a run's directory
SpecArgument = Annotated[Path, typer.Argument(metavar="RELAY.json", help="Bandwidth, latency and faults to simulate.")]


def relay(
    file: SpecArgument,
    to: Annotated[str, typer.Option(help="HOST:PORT of the aggregator.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT that sites connect to; port 0 takes a free one.")],
    report: Annotated[
        Path | None, typer.Option(help="Write the report to this file; the end of standard input ends the relay, too.")
    ] = None,
) -> None:
    """Relay traffic between sites and aggregator with slow links and faults until Ctrl-C, then print a report."""
    from benchmarks.relay.faults import RelaySpec
    from benchmarks.relay.relay import run_relay, show_report
    from rankdad.common.documents import load_json, validate
    from rankdad.common.files import write_json
    from rankdad.remote.server import listen as listen_on

    spec = validate(RelaySpec, load_json(file), file=file)
    listening = listen_on(*_address("--listen", listen))
    host, port = listening.getsockname()[:2]
    print(f"listening on http://{host}:{port}, passing on to {to}", flush=True)
    found = run_relay(spec, listening, _address("--to", to), None if report is None else sys.stdin.fileno())
    if report is None:
        show_report(found, print)
    else:
        write_json(report, found)


def behind(
    spec: SpecArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE.json", help="Spec of a run and its simulation.")],
    output: Annotated[Path, typer.Option(help="Directory of the run; the relay's report is relay.json there.")],
    ledger: Annotated[bool, typer.Option("--ledger", help="As in `rankdad simulate`.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="As in `rankdad simulate`.")] = False,
) -> None:
    """Run a simulation whose sites reach the aggregator through a relay."""
    from rankdad.remote.persistence import LedgerOptions
    from rankdad.simulations.simulator import simulate
    from rankdad.simulations.spec import read_simulation

    between = partial(relayed, spec, output / REPORT)
    kept = LedgerOptions() if ledger else None
    summary = simulate(read_simulation(file, []), output, json_output=json_, ledger=kept, between=between)
    if json_:
        print(json.dumps(summary))


@contextmanager
def relayed(spec: Path, report: Path, url: str) -> Iterator[str]:
    """Start a relay in front of an address; yield its own.

    Args:
        spec: the relay's file.
        report: file for its report.
        url: address that it passes on to.

    Raises:
        RankdadError: the relay has not started; its own message is on standard error.
    """
    words = [sys.executable, "-m", "benchmarks", "relay", str(spec), "--report", str(report)]
    words += ["--listen", "127.0.0.1:0", "--to", urlsplit(url).netloc]
    pipes: dict[str, int] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    # Its own session, so that Ctrl-C at a terminal ends the sites first.
    with subprocess.Popen(words, **pipes, text=True, start_new_session=True) as process:  # type: ignore[call-overload]
        line = process.stdout.readline()
        if not line.startswith("listening on "):
            raise RankdadError(f"{spec}: the relay has not started", code="relay-ended")
        try:
            yield line.removeprefix("listening on ").split(",")[0]
        finally:
            process.communicate()  # closes its standard input


def _address(option: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UserError(
            f"{option}: got {text!r}, expected HOST:PORT such as 127.0.0.1:8765", code="address-malformed", field=option
        )
    return host.strip("[]"), int(port)


COMMANDS: tuple[Callable[..., None], ...] = (relay, behind)
