"""The commands of `python -m benchmarks`."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.paper.cli import paper
from rankdad.command import is_launched, new_app
from rankdad.common.errors import UserError

app = new_app("Measure: every figure of the documentation.")
app.command()(paper)
FileArgument = Annotated[Path, typer.Argument(metavar="FILE.json", help="A run and its simulation.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=JSON", help="Replace a value of the file.")]
DataOption = Annotated[Path | None, typer.Option(help="The source's data file, in place of the file's own path.")]
SeedsOption = Annotated[str, typer.Option(help="Seeds of the runs.")]
AgainstOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Instead: steps over those of another tree, in turns.")
]
TurnsOption = Annotated[int, typer.Option(help="Of each tree, with --against.", min=3)]
SPECS = Path(__file__).parent.parent / "simulations" / "specs"


@app.callback()
def _before() -> None:
    if is_launched():
        raise UserError(
            "benchmarks measure one machine, and start their own processes: run them without torchrun",
            code="one-process-only",
        )
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads would not survive the fork


@app.command()
def step(
    file: FileArgument = SPECS / "digits.json",
    sites: Annotated[str, typer.Option(help="Numbers of sites.")] = "2,4,8",
    size: Annotated[int, typer.Option("--bytes", help="Payload of the bare barriers.", min=1000)] = 200_000,
    steps: Annotated[int, typer.Option(help="Steps of each bare barrier and repetition.", min=10)] = 300,
    set_: SetOption = None,
    data: DataOption = None,
    against: AgainstOption = None,
    turns: TurnsOption = 5,
) -> None:
    """Take a step's time apart, beside the floor of the same bytes through the barest barriers."""
    from rich.console import Console

    from benchmarks.against import against_step
    from benchmarks.step import bench_step
    from rankdad.simulations.spec import read_simulation

    if against is not None:
        against_step(against, file, set_ or [], turns, Console(width=140))
        return
    counts = _whole_numbers("--sites", sites)
    bench_step(read_simulation(file, set_ or [], data=data), counts, size, steps, Console(width=140))


@app.command()
def volumes(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the volumes are written.")],
    gib: Annotated[float, typer.Option(help="GiB that all volumes take in memory.", min=0)] = 6.0,
    held_gib: Annotated[float, typer.Option(help="GiB of those held in memory, to compare with.", min=0)] = 0.5,
    side: Annotated[int, typer.Option(help="Voxels of a volume along each axis.", min=8)] = 64,
    batch: Annotated[int, typer.Option(help="Volumes of a step.", min=1)] = 4,
    filters: Annotated[
        str, typer.Option(help="Filters of the network's blocks; empty is a linear model.")
    ] = "16,32,64",
    cache_mib: Annotated[int, typer.Option(help="The cache in memory, in MiB.", min=0)] = 256,
    workers: Annotated[int, typer.Option(help="Processes that read ahead.", min=0)] = 1,
    limit_mib: Annotated[int | None, typer.Option(help="Memory of the training that reads, in MiB.", min=256)] = None,
    steps: Annotated[int | None, typer.Option(help="Of each training; an epoch without it.", min=4)] = None,
    pairs: Annotated[int, typer.Option(help="Of trainings.", min=1)] = 1,
) -> None:
    """Train a site on volumes that need not fit into memory: its peak and its speed."""
    from rich.console import Console

    from benchmarks.volumes import bench_volumes
    from rankdad.common.data.loading import Loading

    loading = Loading(cache_mib=cache_mib, workers=workers)
    widths = _whole_numbers("--filters", filters) if filters else []
    options = {"side": side, "batch_size": batch, "filters": widths, "steps": steps}
    bench_volumes(folder, gib, held_gib, options, loading, limit_mib, pairs, Console())


@app.command()
def recovery(
    file: FileArgument = SPECS / "digits.json",
    epochs: Annotated[int, typer.Option(help="Epochs of each run.", min=1)] = 20,
    set_: SetOption = None,
    data: DataOption = None,
) -> None:
    """Measure the cost of ledger, checkpoints and tokens in a step."""
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

    bench_methods(file, set_ or [], data, _whole_numbers("--seeds", seeds), compare, lockstep=lockstep)


@app.command()
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
    bench_staleness(simulation, _whole_numbers("--seeds", seeds), _whole_numbers("--staleness", most))


@app.command()
def target(
    file: FileArgument = SPECS / "mnist-local.json",
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

    kinds = _names("--sites", sites, SITES)
    options = Options(every, stop, processes, flower_python if flower else None, output)
    goals = [_target(text) for text in targets or TARGETS]
    bench_target(file, set_ or [], data, kinds, _whole_numbers("--seeds", seeds), compare, goals, options)


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

    bench_reduce(_names("--networks", networks, NETWORKS), _whole_numbers("--ranks", ranks), steps, threads, data)


@app.command()
def low_rank(
    ranks: Annotated[int, typer.Option(help="Of the process group.", min=2)] = 2,
    rank: Annotated[int, typer.Option(help="Of the methods.", min=1)] = 4,
    batch: Annotated[int, typer.Option(help="Samples of a rank's step.", min=1)] = 64,
    steps: Annotated[int, typer.Option(help="Measured of each method; of a turn, with --against.", min=5)] = 60,
    against: AgainstOption = None,
    turns: TurnsOption = 20,
) -> None:
    """Time a step of LowRank and of the hook for DistributedDataParallel beside PyTorch's powerSGD_hook."""
    from rich.console import Console

    from benchmarks.against import against_low_rank
    from benchmarks.low_rank import bench_low_rank

    if against is not None:
        against_low_rank(against, turns, steps, Console(width=140))
        return
    bench_low_rank(ranks, rank, batch, steps, Console(width=120))


@app.command()
def settings(
    tables: Annotated[str, typer.Option(help="Which, of bytes, language and loop.")] = "bytes,language,loop",
    ranks: Annotated[str, typer.Option(help="Numbers of ranks of the first table, separated by commas.")] = "2,4,8",
    seeds: Annotated[int, typer.Option(help="Of the other two tables.", min=1)] = 3,
    steps: Annotated[int, typer.Option(help="Of the language model, at least 60.", min=60)] = 400,
) -> None:
    """Compare LowRank's options by bytes, loss and time with powerSGD_hook and exact gradients."""
    from rich.console import Console

    from benchmarks.settings import TABLES, bench_settings

    names = _names("--tables", tables, TABLES)
    bench_settings(names, _whole_numbers("--ranks", ranks), seeds, steps, Console(width=120))


@app.command()
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


@app.command()
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
    if not holds(bench_fed_heart(data, _whole_numbers("--seeds", seeds), further, Console(width=140))):
        raise UserError("the mean accuracy of the centres is too low: see the tables above", code="promise-missed")


@app.command()
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


@app.command()
def shares(
    heart: Annotated[Path, typer.Option(help="Folder of UCI heart disease's four processed files.")],
    seeds: Annotated[str, typer.Option(help="Of the runs.")] = "0,1,2,3,4",
) -> None:
    """Train digits, heart and diabetes with a share of a step for each patient at most, and without: ten minutes."""
    from rich.console import Console

    from benchmarks.privacy.shares import bench_shares

    list(bench_shares(_whole_numbers("--seeds", seeds), heart, Console(width=120)))


@app.command()
def attacks(
    patients: Annotated[str, typer.Option(help="Patients of each of the two hospitals.")] = "30,120,200",
) -> None:
    """Attack hospitals with their rules and without, and count the cells of single patients found: two minutes."""
    from rich.console import Console

    from benchmarks.privacy.bench import bench_attacks

    found = bench_attacks(_whole_numbers("--patients", patients), Console(width=120))
    if not all(one.holds for one in found):
        raise UserError("an attack finds cells under the rules, or none without: see the table", code="promise-missed")


@app.command()
def curves(
    draws: Annotated[int, typer.Option(help="Of each row.")] = 20,
) -> None:
    """Hold the AUC of smooth scores against scikit-learn's of exact ones: a minute."""
    from rich.console import Console

    from benchmarks.privacy.curves import bench_curves

    bench_curves(draws, Console(width=120))


@app.command()
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

    names = _names("--models", models, MODELS)
    chosen = cases(names, _whole_numbers("--batches", batches), _whole_numbers("--steps", steps))
    console = Console(width=120)
    bench_units(draws, console)
    bench_one_step(starts, console)
    bench_inversion(chosen, console)


@app.command()
def memberships(
    models: Annotated[str, typer.Option(help="Which networks, by their numbers in the order of the table.")] = "1,2,3",
    epochs: Annotated[int, typer.Option(help="Of each training.", min=2)] = 160,
) -> None:
    """Recover the members of batches at slowly moving weights: a quarter of an hour."""
    from rich.console import Console

    from benchmarks.privacy.differences import bench_differences
    from benchmarks.privacy.memberships import MODELS, RATES, bench_memberships

    names = list(MODELS)
    chosen = [names[number - 1] for number in _whole_numbers("--models", models) if number <= len(names)]
    bench_memberships(chosen, RATES, epochs, Console(width=120))
    bench_differences(Console(width=120))


@app.command()
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

    bench_parts(_names("--data", data, METRICS), _whole_numbers("--seeds", seeds), heart, output, Console(width=120))


@app.command()
def ordinary(
    patients: Annotated[str, typer.Option(help="Patients of each of the three hospitals.")] = "40,100,200,240,300",
) -> None:
    """Run an ordinary study, and a changed one a week later, under the default policy: six minutes."""
    import torch
    from rich.console import Console

    from benchmarks.ordinary import bench_ordinary

    torch.set_num_threads(1)
    bench_ordinary(_whole_numbers("--patients", patients), Console(width=150))


@app.command()
def check(
    rows: Annotated[int, typer.Option(help="Of the site's table.", min=100)] = 10_000,
    columns: Annotated[int, typer.Option(help="That it has.", min=10)] = 20,
    runs: Annotated[int, typer.Option(help="Earlier ones in the site's log.", min=0)] = 50,
    times: Annotated[int, typer.Option(help="How often it is measured.", min=1)] = 3,
) -> None:
    """Time `rankdad check SITE.json` beside a log of many earlier runs: three minutes."""
    from rich.console import Console

    from benchmarks.check import MOST_SECONDS, bench_check

    if min(bench_check(rows, columns, runs, times, Console()).check) > MOST_SECONDS:
        raise UserError(f"it takes more than {MOST_SECONDS:g} s, also of the processor", code="promise-missed")


@app.command()
def text(
    output: Annotated[Path, typer.Argument(help="Folder of the results: the same command goes on.")] = Path("text"),
    seeds: SeedsOption = "0,1,2",
    rows: Annotated[int, typer.Option(help="Of each site.", min=40)] = 800,
    epochs: Annotated[int, typer.Option(help="Of each training.", min=1)] = 6,
) -> None:
    """Train on Debian's descriptions of packages by several methods, at sites alike and unlike."""
    from rich.console import Console

    from benchmarks.text import bench_text

    bench_text(output, _whole_numbers("--seeds", seeds), rows, epochs, Console(width=140))


@app.command()
def tables(
    rows: Annotated[int, typer.Option(help="Of each table.", min=100)] = 20_000,
    columns: Annotated[int, typer.Option(help="That each has.", min=10)] = 100,
    pairs: Annotated[int, typer.Option(help="Of readings.", min=1)] = 9,
) -> None:
    """Time how tables become samples, beside `pandas.read_csv`: half a minute."""
    from rich.console import Console

    from benchmarks.tables import bench_tables, holds

    if not holds(bench_tables(rows, columns, pairs, Console())):
        raise UserError("a table takes too long: see above", code="promise-missed")


@app.command()
def service(
    runs: Annotated[int, typer.Option(help="In the service's queue.", min=1)] = 1000,
    sites: Annotated[int, typer.Option(help="Of each.", min=1)] = 50,
    clients: Annotated[int, typer.Option(help="That take steps without training, in one process.", min=1)] = 64,
    seconds: Annotated[float, typer.Option(help="For which they do.", min=1)] = 30.0,
) -> None:
    """Time a service's answers with many runs in its queue, and while rounds run: two minutes."""
    from rich.console import Console

    from benchmarks.service import MOST_HEALTHZ, MOST_OFFERS, bench_service

    found = bench_service(runs, sites, clients, seconds, Console())
    if found.offers > MOST_OFFERS or found.healthz > MOST_HEALTHZ:
        raise UserError("an answer takes too long: see above", code="promise-missed")


@app.command()
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


@app.command()
def ts(
    files: Annotated[list[Path], typer.Argument(metavar="FILE.ts", help="Series to train on, and maybe to test.")],
    output: Annotated[Path, typer.Option(help="The npz file.")],
) -> None:
    """Convert series of the UEA and UCR archives to a npz file, which runs and the simulator read."""
    from benchmarks.ts import convert

    arrays = convert(files, output)
    print(f"{output}: {', '.join(f'{name} {list(own.shape)}' for name, own in arrays.items())}")


@app.command()
def house(
    root: Annotated[Path, typer.Argument(metavar="FOLDER", help="A checkout; this one without it.")] = Path(),
) -> None:
    """Print how much code there is, room by room, how it reads, and whether imports go in circles."""
    from rich.console import Console

    from benchmarks.house import ROOT, bench_house

    bench_house(ROOT if root == Path() else root.resolve(), Console(width=160))


def _target(text: str) -> tuple[str, float]:
    metric, _, value = text.partition("=")
    try:
        if metric in ("auc", "mae", "pearson_r"):
            return metric, float(value)
    except ValueError:
        pass
    raise typer.BadParameter(f"got {text!r}, expected such as auc=0.995, mae=4 or pearson_r=0.7", param_hint="--target")


def _names(option: str, text: str, known: Collection[str]) -> list[str]:
    names = text.split(",")
    if wrong := [name for name in names if name not in known]:
        raise typer.BadParameter(f"got {wrong[0]!r}, expected {', '.join(known)}", param_hint=option)
    return names


def _whole_numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"got {text!r}, expected whole numbers such as 2,4,8", param_hint=option) from None


@app.command()
def engines(
    engine: Annotated[str, typer.Option(help="nvflare or flower, whose environment this is.")] = "nvflare",
    size: Annotated[int, typer.Option("--bytes", help="Bytes each way, for each client.", min=1000)] = 66_800,
    rounds: Annotated[int, typer.Option(help="Of each job.", min=5)] = 40,
    turns: Annotated[int, typer.Option(help="How often each job runs.", min=1)] = 3,
) -> None:
    """Measure rounds on an engine beside its own FedAvg with the same bytes; in the environment of `make engines`."""
    from rich.console import Console

    from benchmarks.engines import bench_engines
    from benchmarks.flower_rounds import bench_flower

    benches = {"nvflare": bench_engines, "flower": bench_flower}
    if engine not in benches:
        raise typer.BadParameter("expected nvflare or flower", param_hint="--engine")
    benches[engine](size, rounds, turns, Console(width=140))
