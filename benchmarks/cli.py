"""The commands of `python -m benchmarks`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.paper.cli import paper
from rankdad.command import new_app

app = new_app("Measure: every figure of the documentation.")
app.command()(paper)
FileArgument = Annotated[Path, typer.Argument(metavar="FILE.json", help="A run and its simulation.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=JSON", help="Replace a value of the file.")]
DataOption = Annotated[Path | None, typer.Option(help="The source's data file, in place of the file's own path.")]
SPECS = Path(__file__).parent.parent / "simulations" / "specs"


@app.callback()
def _before() -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads would not survive the fork


@app.command()
def step(
    file: FileArgument = SPECS / "digits.json",
    sites: Annotated[str, typer.Option(help="Numbers of sites.")] = "2,4,8",
    size: Annotated[int, typer.Option("--bytes", help="Payload of the bare barriers.", min=1000)] = 200_000,
    steps: Annotated[int, typer.Option(help="Steps of each bare barrier and repetition.", min=10)] = 300,
    set_: SetOption = None,
    data: DataOption = None,
) -> None:
    """Take a step's time apart, beside the floor of the same bytes through the barest barriers."""
    from rich.console import Console

    from benchmarks.step import bench_step
    from rankdad.simulations.spec import read_simulation

    counts = _whole_numbers("--sites", sites)
    bench_step(read_simulation(file, set_ or [], data=data), counts, size, steps, Console(width=140))


@app.command()
def recovery(
    file: FileArgument = SPECS / "digits.json",
    epochs: Annotated[int, typer.Option(help="Epochs of each run.", min=1)] = 20,
    set_: SetOption = None,
    data: DataOption = None,
) -> None:
    """Measure what ledger, checkpoints and tokens add to a step."""
    from rich.console import Console

    from benchmarks.recovery import bench_recovery
    from rankdad.simulations.spec import read_simulation

    bench_recovery(read_simulation(file, set_ or [], data=data), epochs, Console(width=100))


@app.command()
def start(
    file: FileArgument = SPECS / "digits.json",
    runs: Annotated[int, typer.Option(help="How often.", min=1)] = 5,
) -> None:
    """Time from the command to the first step, beside the import of torch and fastapi."""
    from benchmarks.start import bench_start

    bench_start(file, runs)


@app.command()
def methods(
    file: FileArgument = SPECS / "digits.json",
    seeds: Annotated[str, typer.Option(help="Seeds of the runs.")] = "0",
    compare: Annotated[
        list[str] | None, typer.Option("--method", metavar="JSON", help="A method; dsgd and the file's own without it.")
    ] = None,
    lockstep: Annotated[bool, typer.Option("--lockstep", help="All sites in one process.")] = False,
    set_: SetOption = None,
    data: DataOption = None,
) -> None:
    """Train with several methods, and print quality and bytes side by side."""
    from benchmarks.methods import bench_methods

    bench_methods(file, set_ or [], data, _whole_numbers("--seeds", seeds), compare, lockstep=lockstep)


@app.command()
def studies(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE.json]...", help="Studies; those of twenty sites without."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds of the folds.")] = "0",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=JSON", help="Replace a value of the files.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="The data's place, in place of the files' own.")] = None,
) -> None:
    """Cross-validated studies as real processes, beside the same training on all sites' data together."""
    from rich.console import Console

    from benchmarks.studies import bench_studies

    chosen = files or [SPECS / f"{name}.json" for name in ("brain_age", "sex", "autism")]
    bench_studies(chosen, set_ or [], data, _whole_numbers("--seeds", seeds), Console(width=150))


@app.command()
def reduce(
    networks: Annotated[str, typer.Option(help="Which of the paper's networks.")] = "ff,gru,vit",
    ranks: Annotated[str, typer.Option(help="Ranks of the methods.")] = "4,10",
    steps: Annotated[
        int | None, typer.Option(help="Steps measured; without it 42 of ff, 4 of gru, 6 of vit.", min=1)
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of tensor operations.", min=1)] = 1,
    data: Annotated[Path, typer.Option(help="Folder of mnist.npz and cifar10_subset.npz.")] = Path("../shared/data"),
) -> None:
    """Time every reduction beside the backward pass, and compare its error with the best there is: five minutes."""
    from benchmarks.reduce import NETWORKS, bench_reduce

    names = networks.split(",")
    for name in names:
        if name not in NETWORKS:
            raise typer.BadParameter(f"got {name!r}, expected {', '.join(NETWORKS)}", param_hint="--networks")
    bench_reduce(names, _whole_numbers("--ranks", ranks), steps, threads, data)


def _whole_numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"got {text!r}, expected whole numbers such as 2,4,8", param_hint=option) from None
