"""A site's own policy, approval and disclosure log, which hold although an engine starts the site."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rankdad.__main__ import app
from rankdad.common.protocol.calls import Call, unpacked
from rankdad.local.privacy.log_file import FILE
from tests.conftest import SITES
from tests.platforms.nvflare.conftest import ID
from tests.platforms.nvflare.engine import Engine
from tests.platforms.policies import ALLOWED, REFUSED, settle

pytestmark = pytest.mark.slow
Make = Callable[..., Engine]


@pytest.fixture
def settled(consortium: Make, tmp_path: Path) -> Make:
    """Return what makes a job of sites with patients enough for the default policy, which holds at all of them."""

    def make(rows: int = 120, **changes: Any) -> Engine:
        engine = consortium(**(ALLOWED | changes))
        settle(tmp_path, rows)
        for site in SITES:
            kit = tmp_path / site
            own = json.loads((kit / "rankdad.json").read_text())
            (kit / "rankdad.json").write_text(json.dumps(own | {"privacy": "privacy"}))
        return engine

    return make


def heard(engine: Engine) -> dict[str, list[Call]]:
    """See a job through, and return what every site has said to the server."""
    calls = dict[str, list[Call]]()

    def note(node: str, result: Any) -> Any:
        if "rankdad" in result:
            calls.setdefault(node, []).append(unpacked(Call, result["rankdad"], 1 << 30))
        return result

    engine.spoil = note
    engine.run()
    return calls


def test_what_leaves_a_site_stands_in_its_disclosure_log(settled: Make, tmp_path: Path) -> None:
    calls = heard(engine := settled())
    assert not engine.controller.panics
    assert "send" in {call.what for call in calls["beta"]}
    done = CliRunner().invoke(app, ["disclosures", str(tmp_path / "beta" / "rankdad.json")], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert ID in done.output
    assert "of a patient's cells" in done.output


@pytest.mark.parametrize(("changes", "said"), REFUSED)
def test_of_a_run_that_a_policy_refuses_nothing_leaves(
    settled: Make, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    calls = heard(engine := settled(**changes))
    (panic,) = engine.controller.panics
    assert said in panic
    assert {call.what for call in calls["beta"]} <= {"run", "give-up", "end"}


def test_a_disclosure_log_that_is_damaged_lets_nothing_out(settled: Make, tmp_path: Path) -> None:
    engine = settled()
    folder = tmp_path / "beta" / "privacy"
    folder.mkdir()
    (folder / FILE).write_text("this is no log")
    calls = heard(engine)
    (panic,) = engine.controller.panics
    assert "log-unusable" in panic
    assert {call.what for call in calls["beta"]} <= {"run", "give-up", "end"}
    assert (folder / FILE).read_text() == "this is no log"
