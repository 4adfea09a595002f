"""What a run logs: every record names the run and the site, and none holds a secret."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.logs import JsonFormatter, LogOptions, NamesFilter, log_names, set_up
from rankdad.local.drivers.running import run_site
from rankdad.remote.auth import Identity, hashed
from tests.conftest import site_config, write_policy, write_site
from tests.e2e.conftest import refused as refused
from tests.remote.serving import serving

ALONE: dict[str, Any] = {"federation": {"sites": ["alpha"]}}
TOKEN = "t0ken-of-alpha-that-nobody-else-may-know"


def logged(options: LogOptions, work: Callable[[], None]) -> str:
    """What is written to a log file while something works."""
    file = io.StringIO()
    set_up(options, file)
    work()
    return file.getvalue()


@pytest.mark.slow
def test_a_sites_records_name_the_run_and_the_site_and_hold_no_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.addFilter(NamesFilter())
    caplog.set_level(logging.DEBUG, "rankdad")
    write_site(tmp_path / "data", 44, 0)
    (tmp_path / "token").write_text(TOKEN)
    paths = {key: str(tmp_path / key) for key in ("data", "output")} | {"token_file": str(tmp_path / "token")}
    with serving(tmp_path / "run", Identity(("alpha",), {"alpha": hashed(TOKEN)}), **ALONE) as served:
        run_site(site_config(served.port, policy=write_policy(tmp_path), **paths))
    records = [record for record in caplog.records if record.name.startswith("rankdad.local")]
    assert {vars(record)["site"] for record in records} == {"alpha"}
    messages = {record.getMessage(): vars(record)["run"] for record in records}
    assert {run for message, run in messages.items() if "round" in message} == {"small"}
    assert any("samples to train on" in message for message in messages)
    events = [vars(record)["event"] for record in caplog.records if record.name == "rankdad.remote.audit"]
    assert {"address": "127.0.0.1", "site": "alpha", "round": 0} in events
    lines = [JsonFormatter().format(record) for record in caplog.records]
    assert not any(TOKEN in line or hashed(TOKEN) in line for line in lines)


def test_a_line_for_people_has_level_names_and_traceback_and_acts_on_no_terminal() -> None:
    def work() -> None:
        with log_names(run="study", site="alpha"), log_names(site="beta"):
            try:
                raise ValueError("of \x1b[2J")
            except ValueError:
                logging.getLogger("rankdad.x").exception("what\nnow", extra={"event": {"status": 500, "why": "\x07"}})

    first, *trace = logged(LogOptions(), work).splitlines()
    assert first[20:] == 'ERROR study/beta: what\\nnow status=500 why="\\u0007"'
    assert trace[-1] == "ValueError: of \\x1b[2J"


@pytest.mark.parametrize(
    ("flags", "written"),
    [({}, "info warning"), ({"verbose": True}, "debug info warning"), ({"quiet": True}, "warning")],
)
def test_flags_choose_what_is_written_and_standard_error_has_the_warnings(
    capsys: pytest.CaptureFixture[str], flags: dict[str, bool], written: str
) -> None:
    log = logging.getLogger("rankdad.x")

    def work() -> None:
        for level in ("debug", "info", "warning"):
            getattr(log, level)(level)

    options = LogOptions.of(**{"verbose": False, "quiet": False, "as_json": True} | flags)
    lines = [json.loads(line) for line in logged(options, work).splitlines()]
    assert " ".join(line["message"] for line in lines) == written
    assert [json.loads(line)["level"] for line in capsys.readouterr().err.splitlines()] == ["warning"]


def test_a_log_that_nobody_can_write_ends_nothing() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(ENOSPC, text)

    set_up(LogOptions(), Full())
    logging.getLogger("rankdad.x").info("the run goes on")


@pytest.mark.slow
def test_a_command_logs_json_lines_alone_and_its_error_is_the_last(tmp_path: Path, refused: Callable[..., str]) -> None:
    policy, paths = write_policy(tmp_path), {"data": "data", "output": "out"}
    config = {"name": "alpha", "aggregator": "http://127.0.0.1:1", "policy": policy} | paths
    (tmp_path / "SITE.json").write_text(json.dumps(config))
    said = refused("site", tmp_path / "SITE.json", "--patience", 0.3, "--log-json", "-q")
    tries, end = [json.loads(line) for line in said.splitlines()][:-1], json.loads(said.splitlines()[-1])
    assert len(tries) >= 2
    for line in tries:
        assert (line["level"], line["logger"]) == ("warning", "rankdad.local.drivers.http")
        assert (line["run"], line["site"]) == ("", "alpha")
        assert "connection refused; trying again" in line["message"]
        assert line["time"].endswith("+00:00")
    assert end["level"] == "error"
    assert "no aggregator for 0 s" in end["message"]
    assert end["event"] == {"code": "unreachable"}
