"""What an agent keeps of a run, and what it says of it."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path

import pytest

from rankdad.common.errors import UserError
from rankdad.common.logs import LogOptions
from rankdad.common.models import build_model
from rankdad.common.policy import EVERYTHING
from rankdad.common.protocol.plan import make_plan
from rankdad.common.protocol.service import Offers
from rankdad.local.agent.processes import Listen
from rankdad.local.agent.state import AUDIT, RunFolder
from rankdad.local.agent.words import what_leaves
from rankdad.local.drivers.service import ServiceClient
from tests.conftest import run_spec, site_config


def test_a_line_of_the_audit_log_is_whole_or_not_there(tmp_path: Path) -> None:
    folder, path = RunFolder(site_config(1, output=str(tmp_path)), "small-1"), tmp_path / AUDIT
    folder.audit("asked")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, before[1]))  # as a disk that is full there
    try:
        with pytest.raises(UserError, match=r"audit.jsonl: cannot be written: No space left on device"):
            folder.audit("accepted", by="somebody")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    folder.audit("refused", by="somebody")
    assert [json.loads(line)["what"] for line in path.read_text().splitlines()] == ["asked", "refused"]


def test_a_service_that_answers_at_once_is_not_asked_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    times = list[float]()

    class Writing:
        def send_bytes(self, _: bytes) -> None:
            times.append(time.monotonic())
            if len(times) == 4:
                raise EOFError

    monkeypatch.setattr(ServiceClient, "offers", lambda self, known: Offers(digest="same", runs=()))
    with pytest.raises(EOFError):
        Listen(site_config(1), LogOptions())(Writing())  # type: ignore[arg-type]
    assert times[-1] - times[0] > 0.5


def test_a_run_with_a_thousand_sites_and_columns_is_told_in_short_lines() -> None:
    many = [f"{'n' * 40}{number}" for number in range(1000)]
    data = {"reader": "csv", "file": "d.csv", "features": many, "label": "y", "values": [0, 1, 2]}
    spec = run_spec(federation={"sites": many}, data=data, training={"batch_size": 2000})
    lines = what_leaves(spec.at(many[0]), make_plan(spec, build_model(spec)), EVERYTHING, "anna")
    assert "and 960 more" in lines[0]
    assert max(map(len, lines)) < 4000


@pytest.mark.parametrize("batches", ["full", "even"])
def test_rows_of_a_step_are_told_as_the_most_that_there_are(batches: str) -> None:
    spec = run_spec(training={"batch_size": 27, "batches": batches})
    lines = what_leaves(spec, make_plan(spec, build_model(spec)), EVERYTHING, "anna")
    (step,) = (line for line in lines if line.startswith("sends in every step"))
    assert "of at most 27 rows" in step
    assert ("even" in step) == (batches == "even")
