"""What a person sees of real processes on a real terminal, and what is left of it where there is none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.test_processes import ENVIRONMENT, rankdad, simulation, start
from tests.ports import free_port
from tests.screen import on_terminal
from tests.warm import Warm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

NAMES = ["alpha", "beta", "a-hospital-whose-name-is-as-long-as-names-of-hospitals-may-be-000"[:63]]


def end(processes: Sequence[Warm]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.exhaustive
def test_an_aggregator_draws_on_its_terminal_and_names_who_is_gone(tmp_path: Path) -> None:
    file = simulation(tmp_path, 300, federation={"sites": NAMES}, training={"epochs": 60})
    port = free_port()
    split = rankdad("split", file, "--output", tmp_path / "demo", "--aggregator", f"http://127.0.0.1:{port}")
    assert split.returncode == 0, split.stderr
    with ExitStack() as processes:
        options = ("--output", tmp_path / "run", "--port", port)
        aggregator = processes.enter_context(on_terminal("aggregator", file, *options))
        aggregator.wait_for(lambda text: re.search(r"^beta .* not here yet$", text, re.MULTILINE))
        sites = {name: (tmp_path / "demo" / f"{name}.json", "--patience", 60) for name in NAMES}
        others = [start("site", *sites[name]) for name in (*NAMES[1:], NAMES[0])]
        processes.callback(end, others)
        drawn_whole = [  # a process may be seen in the middle of a drawing
            r"epoch [0-9]+ of 60",
            r"^loss +[▁-█]+ best [0-9][.][0-9]{4} in epoch",
            r"^alpha +[0-9]+ +– +[0-9]+[.][0-9]{2} +connected$",
            r"^a-hospital-whose-name-is-… ",
        ]
        aggregator.wait_for(lambda text: all(re.search(part, text, re.MULTILINE) for part in drawn_whole))
        end(others[:1])
        aggregator.wait_for(lambda text: re.search(r"^beta .* gone$", text, re.MULTILINE))
        aggregator.wait_for(lambda text: re.search(r"^beta +[0-9]+ +[0-9]+ s .* gone$", text, re.MULTILINE))
        others.append(start("site", *sites["beta"]))
        whole = aggregator.end()
        assert aggregator.process.returncode == 0
    assert aggregator.screen.moves > 5, "it was drawn over and over"
    assert aggregator.screen.cursor
    assert max(map(len, whole.splitlines())) <= aggregator.screen.columns
    assert whole.count(" done\n") == 3
    assert len(re.findall(r"^site +rows", whole, re.MULTILINE)) == 1, "what is drawn over leaves nothing"


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


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [(), pytest.param(("--lockstep",), marks=pytest.mark.exhaustive)])
def test_without_a_terminal_every_epoch_is_one_short_line(tmp_path: Path, options: tuple[str, ...]) -> None:
    sites = [f"{number}-{'of-a-country-with-long-names-' * 2}"[:60] for number in range(5)]
    file = simulation(tmp_path, 200, federation={"sites": sites}, training={"epochs": 30})
    command = [sys.executable, "-m", "rankdad", "simulate", str(file), "--output", str(tmp_path / "run"), *options]
    environment = {**os.environ, **ENVIRONMENT, "FORCE_COLOR": "1", "COLUMNS": "40"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    lines, _, _ = done.stdout.partition("\nrank-dad, 5 sites")
    epochs = [line for line in lines.splitlines() if line.startswith("epoch")]
    assert [line.split(" · ")[0] for line in epochs] == [f"epoch {number} of 30" for number in range(1, 31)]
    assert all(" · training loss " in line and " · loss " in line for line in epochs)
    assert max(map(len, lines.splitlines())) <= 100
    assert "\x1b" not in done.stdout
    said = "".join((tmp_path / "run" / "sites" / sites[0] / "log.txt").read_text() if not options else "")
    own = [line for line in said.splitlines() if ": epoch " in line]
    assert len(own) == (0 if options else 30)
    assert all(len(line) <= 100 and " · loss " in line for line in own)
