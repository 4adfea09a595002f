"""`--against DIR`: a step of this tree over a step of another, such as a checkout of before a change, in turns.

Both are there all the time and compute one after the other, so that whatever else the machine does slows both.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.step import step_seconds
from benchmarks.turns import NETWORKS, WAYS
from rankdad.common.errors import UserError
from rankdad.simulate_command import command

HERE = Path(__file__).parent.parent
WARM_UP = 2  # turns
COLUMNS = ("what", "ms here", "ms there", "here / there", "of turns, from", "to")


def against_low_rank(other: Path, turns: int, steps: int, console: Console) -> None:
    """Print the steps of `LowRank` and of the hook on three networks, two gloo ranks of one thread, rank 4.

    Args:
        other: a tree with a folder `rankdad`.
        turns: of each tree.
        steps: of a turn.
        console: to print to.
    """
    table = _table(f"Steps of {HERE} over {other}, {turns} turns of {steps} steps each")
    for network in NETWORKS:
        for way in WAYS:
            with _ranks(HERE, network, way) as here, _ranks(_tree(other), network, way) as there:
                pairs = [(_turn(here, steps), _turn(there, steps)) for _ in range(WARM_UP + turns)]
            table.add_row(f"{network}, {way}", *_figures(pairs[WARM_UP:]))
    console.print(table)


def against_step(other: Path, file: Path, assignments: Sequence[str], turns: int, console: Console) -> None:
    """Print a site's step in whole simulations of processes, one of each tree in turn.

    Args:
        other: a tree with a folder `rankdad`.
        file: simulation that both know.
        assignments: as `--set` takes them.
        turns: of each tree.
        console: to print to.
    """
    trees = (HERE, _tree(other))
    pairs = [(_simulated(trees[0], file, assignments), _simulated(trees[1], file, assignments)) for _ in range(turns)]
    table = _table(f"Steps of {file.name}, {HERE} over {other}, {turns} runs each")
    table.add_row("a site's step", *_figures(pairs))
    console.print(table)


def _table(title: str) -> Table:
    table = Table(title=title)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "what" else "right")
    return table


def _figures(pairs: Sequence[tuple[float, float]]) -> list[str]:
    ratios = sorted(here / there for here, there in pairs)
    sides = [median(side) for side in zip(*pairs, strict=True)]
    return [f"{side:.2f}" for side in sides] + [f"{ratio:.3f}" for ratio in (median(ratios), ratios[0], ratios[-1])]


def _tree(folder: Path) -> Path:
    """Return a tree's folder.

    Raises:
        UserError: it has no package rankdad.
    """
    if not (folder / "rankdad" / "__init__.py").exists():
        problem = f"--against: {folder} has no folder rankdad: expected a checkout"
        raise UserError(problem, code="not-a-tree", field="against")
    return folder.resolve()


def _environment(tree: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}


@contextmanager
def _ranks(tree: Path, network: str, way: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Start two ranks that wait for their turns; they end with their input."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    script, pipe = str(Path(__file__).with_name("turns.py")), subprocess.PIPE
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, script, network, way, str(rank), port],
                    env=_environment(tree),
                    stdin=pipe,
                    stdout=pipe,
                    text=True,
                )
            )
            for rank in range(2)
        ]


def _turn(ranks: Sequence[subprocess.Popen[str]], steps: int) -> float:
    """Return the milliseconds of a step of the slower rank.

    Raises:
        UserError: a rank has ended.
    """
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write(f"{steps}\n")
        rank.stdin.flush()
    lines = [rank.stdout.readline() for rank in ranks if rank.stdout is not None]
    if not all(lines):
        raise UserError("--against: a rank has ended before its turn was over", code="rank-ended", field="against")
    return max(map(float, lines))


def _simulated(tree: Path, file: Path, assignments: Sequence[str]) -> float:
    """Return the median milliseconds of a site's step in a simulation.

    Raises:
        UserError: the simulation has ended with an error.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = command(file.resolve(), Path(folder) / "run", assignments)
        done = subprocess.run(words, env=_environment(tree), cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            problem = f"--against: the simulation of {tree} has ended: {done.stderr.strip().splitlines()[-1]}"
            raise UserError(problem, code="simulation-ended", field="against")
        return 1e3 * step_seconds(Path(folder) / "run")
