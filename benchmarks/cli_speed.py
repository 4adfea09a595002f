"""Commands of `python -m benchmarks` that measure time and memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.options import (
    SPECS,
    AgainstOption,
    DataOption,
    FileArgument,
    SetOption,
    TurnsOption,
    listed,
    whole_numbers,
)
from rankdad.common.errors import UserError


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
    counts = whole_numbers("--sites", sites)
    bench_step(read_simulation(file, set_ or [], data=data), counts, size, steps, Console(width=140))


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

    bench_reduce(listed("--networks", networks, NETWORKS), whole_numbers("--ranks", ranks), steps, threads, data)


def low_rank(
    ranks: Annotated[int, typer.Option(help="Of the process group.", min=2)] = 2,
    rank: Annotated[int, typer.Option(help="Of the methods.", min=1)] = 4,
    network: Annotated[str, typer.Option(help="784-1024-1024-10, 6×256 or GPT-2 (two layers).")] = "784-1024-1024-10",
    batch: Annotated[int | None, typer.Option(help="Samples of a rank's step; 64, or 16 texts.", min=1)] = None,
    steps: Annotated[int, typer.Option(help="Measured of each method; of a turn, with --against.", min=5)] = 60,
    against: AgainstOption = None,
    turns: TurnsOption = 20,
) -> None:
    """Time a step of LowRank and of the hook for DistributedDataParallel beside PyTorch's powerSGD_hook."""
    from rich.console import Console

    from benchmarks.against import against_low_rank
    from benchmarks.low_rank import bench_low_rank
    from benchmarks.turns import NETWORKS

    if against is not None:
        against_low_rank(against, turns, steps, Console(width=140))
        return
    listed("--network", network, NETWORKS)
    bench_low_rank(network, ranks, rank, batch, steps, Console(width=120))


def mesh(steps: Annotated[int, typer.Option(help="Measured of each layout and way.", min=5)] = 20) -> None:
    """Divide a model over four ranks in seven ways, and compare LowRank's gradients and bytes with torch's own."""
    from rich.console import Console

    from benchmarks.mesh import bench_mesh

    if (worst := bench_mesh(steps, Console(width=150))) > 1e-5:
        raise UserError(f"with rank None a gradient is {worst:.1e} from one device's", code="promise-missed")


def devices(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    networks: Annotated[str, typer.Option(help="Some of the five networks, such as 'GPT-2 small'.")] = "",
    rank: Annotated[int, typer.Option(help="Of LowRank.", min=1)] = 8,
    steps: Annotated[int, typer.Option(help="Measured of each network.", min=1)] = 20,
) -> None:
    """Time the parts of a LowRank step in bfloat16 on a device, for networks from an MLP to GPT-2 small."""
    import torch
    from rich.console import Console

    from benchmarks.devices import NETWORKS, bench_devices

    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise UserError(f"--device: got {device}, expected cpu, or cuda where there is one", code="device-missing")
    chosen = listed("--networks", networks, NETWORKS) if networks else tuple(NETWORKS)
    bench_devices(device, tuple(chosen), rank, steps, Console(width=120))


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


def start(
    file: FileArgument = SPECS / "digits.json",
    runs: Annotated[int, typer.Option(help="How often.", min=1)] = 5,
) -> None:
    """Time from the command to the first step, beside the import of torch and fastapi."""
    from benchmarks.start import bench_start

    bench_start(file, runs)


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
    from rankdad.common.loading import Loading

    loading = Loading(cache_mib=cache_mib, workers=workers)
    widths = whole_numbers("--filters", filters) if filters else []
    options = {"side": side, "batch_size": batch, "filters": widths, "steps": steps}
    bench_volumes(folder, gib, held_gib, options, loading, limit_mib, pairs, Console())


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


COMMANDS: tuple[Callable[..., None], ...] = (
    step,
    reduce,
    low_rank,
    mesh,
    devices,
    recovery,
    start,
    volumes,
    tables,
    check,
    service,
    engines,
)
