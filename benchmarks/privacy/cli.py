"""Commands of `python -m benchmarks` that attack sites, and measure what their rules cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.options import (
    listed,
    whole_numbers,
)
from rankdad.common.errors import UserError


def adversary(
    runs: Annotated[int, typer.Option(help="That are carried out; refused ones are not counted.", min=1)] = 1000,
    seconds: Annotated[float, typer.Option(help="At most; the sequence that is under way is finished.")] = 2400,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.", min=0)] = 0,
    strict: Annotated[bool, typer.Option("--strict", help="Move what few patients of a part have, too.")] = False,
    off: Annotated[bool, typer.Option("--off", help="Attack a site without rules: single patients are found.")] = False,
) -> None:
    """Ask one site for random runs, and look for sets below a part in its disclosures: forty minutes.

    Two minutes, as a first look: --seconds 120.
    """
    from rich.console import Console

    from benchmarks.privacy.adversary import OFF, RULES, STRICT, bench_adversary, held

    if strict and off:
        raise typer.BadParameter("goes with rules, not with --off", param_hint="--strict")
    policy = OFF if off else STRICT if strict else RULES
    if not held(policy, bench_adversary(policy, runs, seconds, seed, Console(width=110))):
        raise UserError(
            "single patients were not found without rules" if off else "rules were got round: see the tables above",
            code="promise-missed",
        )


def attacks(
    patients: Annotated[str, typer.Option(help="Patients of each of the two hospitals.")] = "30,120,200",
) -> None:
    """Attack hospitals with their rules and without, and count the cells of single patients found: two minutes."""
    from rich.console import Console

    from benchmarks.privacy.bench import bench_attacks

    found = bench_attacks(whole_numbers("--patients", patients), Console(width=120))
    if not all(one.holds for one in found):
        raise UserError("an attack finds cells under the rules, or none without: see the table", code="promise-missed")


def inversion(
    models: Annotated[str, typer.Option(help="Which of logistic, mlp.")] = "logistic,mlp",
    batches: Annotated[str, typer.Option(help="Patients of a step.")] = "8",
    steps: Annotated[str, typer.Option(help="How many steps' gradients are known.")] = "10,60",
    draws: Annotated[int, typer.Option(help="Steps of each row of the ratios.", min=1)] = 1000,
    starts: Annotated[int, typer.Option(help="Of the search for one step's patients.", min=1)] = 20,
) -> None:
    """Solve gradients for patients: by ratios, and of one step and of many by least squares: a quarter of an hour."""
    from rich.console import Console

    from benchmarks.privacy.inversion import MODELS, bench_inversion, cases
    from benchmarks.privacy.one_step import bench_one_step
    from benchmarks.privacy.units import bench_units

    names = listed("--models", models, MODELS)
    chosen = cases(names, whole_numbers("--batches", batches), whole_numbers("--steps", steps))
    console = Console(width=120)
    bench_units(draws, console)
    bench_one_step(starts, console)
    bench_inversion(chosen, console)


def memberships(
    models: Annotated[str, typer.Option(help="Which networks, by their numbers in the order of the table.")] = "1,2,3",
    epochs: Annotated[int, typer.Option(help="Of each training.", min=2)] = 160,
) -> None:
    """Recover the members of batches at slowly moving weights: a quarter of an hour."""
    from rich.console import Console

    from benchmarks.privacy.differences import bench_differences
    from benchmarks.privacy.memberships import MODELS, RATES, bench_memberships

    names = list(MODELS)
    chosen = [names[number - 1] for number in whole_numbers("--models", models) if number <= len(names)]
    bench_memberships(chosen, RATES, epochs, Console(width=120))
    bench_differences(Console(width=120))


def shares(
    heart: Annotated[Path, typer.Option(help="Folder of UCI heart disease's four processed files.")],
    seeds: Annotated[str, typer.Option(help="Of the runs.")] = "0,1,2,3,4",
) -> None:
    """Train digits, heart and diabetes with a share of a step for each patient at most, and without: ten minutes."""
    from rich.console import Console

    from benchmarks.privacy.shares import bench_shares

    list(bench_shares(whole_numbers("--seeds", seeds), heart, Console(width=120)))


def curves(
    draws: Annotated[int, typer.Option(help="Of each row.")] = 20,
) -> None:
    """Hold AUC, average precision and counts of smooth scores against those of exact ones: a minute."""
    from rich.console import Console

    from benchmarks.privacy.curves import bench_curves

    bench_curves(draws, Console(width=120))


def parts(
    data: Annotated[str, typer.Option(help="Which of digits, heart, diabetes.")] = "heart,diabetes,digits",
    seeds: Annotated[str, typer.Option(help="Of the runs, their folds and their hospitals' secrets.")] = "0,1,2,3,4",
    heart: Annotated[Path, typer.Option(help="Folder of the four files processed.*.data.")] = Path(
        "../shared/data/heart"
    ),
    output: Annotated[Path, typer.Option(help="Folder of the runs that are done: the rest are added.")] = Path(
        "runs/parts"
    ),
) -> None:
    """Cross-validate with free folds, with parts, and with merged levels; print the cost: half an hour."""
    from rich.console import Console

    from benchmarks.parts import METRICS, bench_parts

    bench_parts(listed("--data", data, METRICS), whole_numbers("--seeds", seeds), heart, output, Console(width=120))


def ordinary(
    patients: Annotated[str, typer.Option(help="Patients of each of the three hospitals.")] = "40,100,200,240,300",
) -> None:
    """Run an ordinary study, and a changed one a week later, under the default policy: six minutes."""
    import torch
    from rich.console import Console

    from benchmarks.ordinary import bench_ordinary

    torch.set_num_threads(1)
    bench_ordinary(whole_numbers("--patients", patients), Console(width=150))


COMMANDS = (adversary, attacks, inversion, memberships, shares, curves, parts, ordinary)
