"""Commands of `python -m benchmarks` that measure how good a trained model is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.options import (
    ARCHIVE_SPECS,
    SPECS,
    DataOption,
    FileArgument,
    SeedsOption,
    SetOption,
    listed,
    whole_numbers,
)
from rankdad.common.errors import UserError


def methods(
    file: FileArgument = SPECS / "digits.json",
    seeds: SeedsOption = "0",
    compare: Annotated[
        list[str] | None, typer.Option("--method", metavar="JSON", help="A method; dsgd and the file's own without it.")
    ] = None,
    lockstep: Annotated[bool, typer.Option("--lockstep", help="All sites in one process.")] = False,
    set_: SetOption = None,
    data: DataOption = None,
) -> None:
    """Train with several methods, and print quality and bytes side by side."""
    from benchmarks.methods import bench_methods

    bench_methods(file, set_ or [], data, whole_numbers("--seeds", seeds), compare, lockstep=lockstep)


def settings(
    tables: Annotated[str, typer.Option(help="Which, of bytes, language and loop.")] = "bytes,language,loop",
    ranks: Annotated[str, typer.Option(help="Numbers of ranks of the first table, separated by commas.")] = "2,4,8",
    seeds: Annotated[int, typer.Option(help="Of the other two tables.", min=1)] = 3,
    steps: Annotated[int, typer.Option(help="Of the language model, at least 60.", min=60)] = 400,
    dropout: Annotated[float, typer.Option(help="Of the language model; GPT-2's own is 0.1.", min=0, max=1)] = 0.1,
    places: Annotated[int, typer.Option("--language-ranks", help="Ranks of the language model.", min=2)] = 2,
) -> None:
    """Compare LowRank's options by bytes, loss and time with powerSGD_hook and exact gradients."""
    from rich.console import Console

    from benchmarks.settings import TABLES, bench_settings

    names = listed("--tables", tables, TABLES)
    bench_settings(names, whole_numbers("--ranks", ranks), seeds, steps, dropout, Console(width=120), places)


def staleness(
    file: FileArgument = SPECS / "digits.json",
    seeds: SeedsOption = "0",
    most: Annotated[str, typer.Option("--staleness", help="Values of federation.staleness.")] = "0,2",
    set_: SetOption = None,
    data: DataOption = None,
) -> None:
    """Train with a site that is always one round late: waited for, left out, or joining the next step."""
    from benchmarks.staleness import bench_staleness
    from rankdad.simulations.spec import read_simulation

    simulation = read_simulation(file, set_ or [], data=data)
    bench_staleness(simulation, whole_numbers("--seeds", seeds), whole_numbers("--staleness", most))


def target(
    file: FileArgument = ARCHIVE_SPECS / "mnist-local.json",
    sites: Annotated[str, typer.Option(help="How samples are dealt out: even, unequal, dirichlet, own.")] = "even",
    seeds: SeedsOption = "0",
    compare: Annotated[
        list[str] | None, typer.Option("--method", metavar="JSON", help="A method; without it a list of all kinds.")
    ] = None,
    targets: Annotated[
        list[str] | None, typer.Option("--target", metavar="METRIC=VALUE", help="Of auc, mae or pearson_r.")
    ] = None,
    every: Annotated[
        float, typer.Option(help="Part of an epoch between two tests, if there are as many exchanges.", min=0.001)
    ] = 0.1,
    stop: Annotated[bool, typer.Option("--stop", help="End a training that has reached all targets.")] = False,
    processes: Annotated[
        bool, typer.Option("--processes", help="Train again with a process for each site, for the seconds.")
    ] = False,
    flower: Annotated[bool, typer.Option("--flower", help="Train by Flower's FedAvg too.")] = False,
    flower_python: Annotated[
        Path, typer.Option(metavar="FILE", help="Interpreter that has flwr[simulation]; this one without it.")
    ] = Path(sys.executable),
    output: Annotated[Path, typer.Option(help="Folder of curves.csv, targets.csv and a picture.")] = Path(
        "runs/target"
    ),
    set_: SetOption = None,
    data: DataOption = None,
) -> None:
    """Train with several methods, and print bytes and seconds until the model is as good as is asked for."""
    from benchmarks.target.bench import Options, bench_target
    from benchmarks.target.settings import SITES, TARGETS

    kinds = listed("--sites", sites, SITES)
    options = Options(every, stop, processes, flower_python if flower else None, output)
    goals = [_target(text) for text in targets or TARGETS]
    bench_target(file, set_ or [], data, kinds, whole_numbers("--seeds", seeds), compare, goals, options)


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
    bench_studies(chosen, set_ or [], data, whole_numbers("--seeds", seeds), Console(width=150))


def paired(
    count: Annotated[int, typer.Option(help="Null data sets of each kind.", min=10)] = 5000,
    draws: Annotated[int, typer.Option(help="Of the bootstrap.", min=100)] = 2000,
    sets: Annotated[int | None, typer.Option(help="How many of the eight data sets; all without it.", min=1)] = None,
    runs: Annotated[int, typer.Option(help="Null runs of each kind that are cross-validated.", min=10)] = 1000,
    shared: Annotated[Path, typer.Option(help="Folder of heart/ and abide_freesurfer/, if there.")] = Path(
        "../shared/data"
    ),
    output: Annotated[Path, typer.Option(help="Folder of the runs that are done: the rest are added.")] = Path(
        "runs/paired"
    ),
) -> None:
    """Hold intervals of differences against the bootstrap, and count how often a verdict errs: forty minutes."""
    from rich.console import Console

    from benchmarks.paired.bench import bench_paired

    if not bench_paired(count, draws, sets, runs, shared, output, Console(width=110)).holds:
        raise UserError(
            "an interval is too wide or too narrow, or verdicts err too often: see the tables above",
            code="promise-missed",
        )


def fed_heart(
    seeds: Annotated[str, typer.Option(help="Of the runs on FLamby's own split.")] = "0,1,2,3,4",
    splits: Annotated[int, typer.Option(help="Further splits, of the exact solver alone.", min=0)] = 20,
    data: Annotated[Path, typer.Option(help="Folder of the four files processed.*.data.")] = Path(
        "../shared/data/heart"
    ),
) -> None:
    """Run FLamby's Fed-Heart-Disease, and print each centre's accuracy beside its published table: two minutes."""
    from rich.console import Console

    from benchmarks.fed_heart import SPLIT, bench_fed_heart, holds

    further = range(SPLIT + 1, SPLIT + 1 + splits)
    if not holds(bench_fed_heart(data, whole_numbers("--seeds", seeds), further, Console(width=140))):
        raise UserError("the mean accuracy of the centres is too low: see the tables above", code="promise-missed")


def _target(text: str) -> tuple[str, float]:
    metric, _, value = text.partition("=")
    try:
        if metric in ("auc", "mae", "pearson_r"):
            return metric, float(value)
    except ValueError:
        pass
    raise typer.BadParameter(f"got {text!r}, expected such as auc=0.995, mae=4 or pearson_r=0.7", param_hint="--target")


def text(
    output: Annotated[Path, typer.Argument(help="Folder of the results: the same command goes on.")] = Path("text"),
    seeds: SeedsOption = "0,1,2",
    sites: Annotated[str, typer.Option(help="Kinds of sites.")] = "alike,unlike",
    rows: Annotated[int, typer.Option(help="Of each site.", min=40)] = 1000,
    epochs: Annotated[int, typer.Option(help="Of each training.", min=1)] = 12,
) -> None:
    """Train on Debian's descriptions of packages by several methods, at sites alike and unlike."""
    from rich.console import Console

    from benchmarks.text import KINDS, bench_text

    kinds = listed("--sites", sites, KINDS)
    bench_text(output, whole_numbers("--seeds", seeds), kinds, rows, epochs, Console(width=140))


COMMANDS: tuple[Callable[..., None], ...] = (methods, settings, staleness, target, studies, text, paired, fed_heart)
