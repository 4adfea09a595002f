"""What a person sees of real processes on a real terminal, and what is left of it where there is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.test_processes import simulation
from tests.screen import on_terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

NAMES = ["alpha", "beta", "a-hospital-whose-name-is-as-long-as-names-of-hospitals-may-be-000"[:63]]


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        (("--lockstep",), {}),
        ((), {}),
        ((), {"NO_COLOR": "1"}),
        (("--lockstep",), {"TERM": "dumb"}),
        ((), {"TERM": "dumb"}),
    ],
)
def test_a_simulation_draws_where_the_terminal_can_be_drawn_on(
    tmp_path: Path, options: tuple[str, ...], environment: dict[str, str]
) -> None:
    file = simulation(tmp_path, 100, training={"epochs": 6})
    with on_terminal("simulate", file, "--output", tmp_path / "run", *options, environment=environment) as terminal:
        whole = terminal.end()
    assert terminal.process.returncode == 0, whole
    assert terminal.screen.cursor
    dumb = "TERM" in environment
    assert (terminal.screen.moves == 0) == dumb
    assert bool(terminal.screen.colours) == (not environment)
    lines = re.findall(r"^epoch [0-9]+ of 6 · training loss", whole, re.MULTILINE)
    assert len(lines) == 6 * dumb
    assert (whole.count(" done\n") == 3) == (not dumb and not options)
    assert "weights: equal at all sites" in whole.replace("\n", " ")
