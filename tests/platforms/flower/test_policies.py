"""A site's own policy and disclosure log, which hold although Flower starts the site."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rankdad.__main__ import app
from rankdad.common.protocol.calls import Call, unpacked
from rankdad.local.privacy.log_file import FILE
from tests.platforms.flower.conftest import ID
from tests.platforms.flower.engine import Engine
from tests.platforms.policies import ALLOWED, REFUSED, settle

pytestmark = pytest.mark.slow
Make = Callable[..., Engine]


@pytest.fixture
def settled(consortium: Make, tmp_path: Path) -> Make:
    """Return what makes a job of sites with patients enough for the default policy, which holds at all of them."""

    def make(rows: int = 120, **changes: Any) -> Engine:
        engine = consortium(**(ALLOWED | changes))
        settle(tmp_path, rows)
        return engine

    return make


def calls_of(engine: Engine, site: str) -> set[str]:
    """Return the kinds of calls that have reached the server from a site."""
    calls = (unpacked(Call, crossed, 1 << 30) for crossed in engine.crossed if isinstance(crossed, bytes))
    return {call.what for call in calls if call.site == site}


def test_what_leaves_a_site_is_in_its_disclosure_log(settled: Make, tmp_path: Path) -> None:
    assert (engine := settled()).run() == ""
    assert "send" in calls_of(engine, "beta")
    done = CliRunner().invoke(app, ["disclosures", str(tmp_path / "beta.json")], env={"COLUMNS": "200"})
    assert (done.exit_code, ID in done.output, "of a patient's cells" in done.output) == (0, True, True), done.output


@pytest.mark.parametrize(("changes", "said"), REFUSED)
def test_nothing_leaves_of_a_run_that_a_policy_refuses(settled: Make, changes: dict[str, Any], said: str) -> None:
    engine = settled(**changes)
    assert said in engine.run()
    assert calls_of(engine, "beta") <= {"run", "give-up", "end"}


def test_nothing_leaves_where_the_disclosure_log_is_damaged(settled: Make, tmp_path: Path) -> None:
    engine, log = settled(), tmp_path / "beta" / "privacy" / FILE
    log.parent.mkdir(exist_ok=True)
    log.write_text("this is no log")
    assert "log-unusable" in engine.run()
    assert calls_of(engine, "beta") <= {"run", "give-up", "end"}
    assert log.read_text() == "this is no log"
