"""The commands of `python -m benchmarks`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import cli_quality, cli_speed
from benchmarks.paper.cli import paper
from benchmarks.privacy import cli as privacy
from benchmarks.relay import cli as relay
from rankdad.command import is_launched, new_app
from rankdad.common.errors import UserError

app = new_app("Measure: every figure of the documentation.")


@app.callback()
def _before() -> None:
    if is_launched():
        raise UserError(
            "benchmarks measure one machine, and start their own processes: run them without torchrun",
            code="one-process-only",
        )
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads would not survive the fork


def faults(
    kills: Annotated[int, typer.Option(help="Processes that are killed.", min=0)] = 200,
    flips: Annotated[int, typer.Option(help="Bits that are flipped, each in a copy.", min=0)] = 100,
    seed: Annotated[int, typer.Option(help="Of moments, victims and bits.")] = 0,
) -> None:
    """Kill processes of a simulation at random moments, and flip bits of its files: half an hour."""
    from rich.console import Console

    from benchmarks.faults import bench_faults

    if bench_faults(kills, flips, seed, Console()):
        raise UserError("a run came to something else: see above", code="promise-missed")


def ts(
    files: Annotated[list[Path], typer.Argument(metavar="FILE.ts", help="Series to train on, and maybe to test.")],
    output: Annotated[Path, typer.Option(help="The npz file.")],
) -> None:
    """Convert series of the UEA and UCR archives to a npz file, which runs and the simulator read."""
    from benchmarks.ts import convert

    arrays = convert(files, output)
    print(f"{output}: {', '.join(f'{name} {list(own.shape)}' for name, own in arrays.items())}")


def archives(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of published files.")] = Path("../shared/data"),
    output: Annotated[Path, typer.Option(help="Folder of the npz files.")] = Path("runs/data"),
) -> None:
    """Convert the published data sets of `benchmarks/specs` to npz files, which runs and the simulator read."""
    from benchmarks.archives import ARCHIVES, convert

    files = list(convert(folder, output))
    if not files:
        names = ", ".join(one.file for one in ARCHIVES.values())
        raise UserError(f"{folder}: has none of {names}", code="file-missing")
    print("\n".join(map(str, files)))


def house(
    root: Annotated[Path, typer.Argument(metavar="FOLDER", help="A checkout; this one without it.")] = Path(),
) -> None:
    """Print how much code there is, room by room, how it reads, and whether imports go in circles."""
    from rich.console import Console

    from benchmarks.house import ROOT, bench_house

    bench_house(ROOT if root == Path() else root.resolve(), Console(width=160))


COMMANDS: tuple[Callable[..., None], ...] = (
    paper,
    *cli_quality.COMMANDS,
    *cli_speed.COMMANDS,
    *privacy.COMMANDS,
    *relay.COMMANDS,
    faults,
    ts,
    archives,
    house,
)
for command in COMMANDS:
    app.command()(command)
