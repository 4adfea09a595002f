"""`python -m benchmarks target`: train method after method, and print what each takes to reach the targets."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.methods import words
from benchmarks.target.curves import Target, timed_as_processes, train
from benchmarks.target.flower import LABEL, train_with_flower
from benchmarks.target.settings import METHODS, partition
from benchmarks.target.tables import NOTES, Trained, markdown, to_quality, to_targets, write
from rankdad.common.data.table_files import read_table
from rankdad.common.documents import replace, validate
from rankdad.common.errors import SpecError, UserError
from rankdad.common.policy import EVERYTHING
from rankdad.common.spec.data import CsvData
from rankdad.common.spec.patterns import is_pattern
from rankdad.simulations.resolving import with_columns
from rankdad.simulations.site_folders import partitioned_data
from rankdad.simulations.sources import Folders
from rankdad.simulations.spec import SimulationFile, read_simulation


@dataclass(frozen=True)
class Options:
    """How to train, and where the results go.

    Args:
        every: part of an epoch after which the model is tested.
        stop: whether a training ends once it has reached all targets.
        processes: whether seconds are those of a process for each site.
        flower: interpreter that has Flower, whose FedAvg is trained too; None does without.
        output: folder of tables and picture.
    """

    every: float
    stop: bool
    processes: bool
    flower: Path | None
    output: Path


def bench_target(
    file: Path,
    assignments: list[str],
    data: Path | None,
    sites: Sequence[str],
    seeds: Sequence[int],
    methods: Sequence[str] | None,
    targets: Sequence[Target],
    options: Options,
) -> list[Trained]:
    """Train all methods on all kinds of sites with all seeds, print tables (Markdown), and write them and a picture.

    Args:
        file: a run and its simulation.
        assignments: as `--set` takes them.
        data: the source's data, in place of the file's own path.
        sites: how samples are dealt out, of `benchmarks.target.settings.SITES`.
        seeds: of the runs: of weights, sites and batches.
        methods: `run.method` of each, as JSON; those of `benchmarks.target.settings` without.
        targets: that the model is to reach.
        options: how to train.

    Returns:
        What was trained.

    Raises:
        UserError: the file, its data or an option cannot be used.
    """
    done: list[Trained] = []
    for kind in sites:
        for seed in seeds:
            with tempfile.TemporaryDirectory() as folder:
                given = [*assignments, f"run.seed={seed}", 'run.evaluation={"name":"holdout"}']
                own = with_columns(arranged(read_simulation(file, given, data=data), kind, Path(folder)))
                site_data = partitioned_data(own, Path(folder) / "sites")
                wanted = [target for target in targets if target[0] in own.run.task.metrics]
                if not wanted:
                    raise UserError(
                        f"--target: none is of {', '.join(own.run.task.metrics)}, as the task has them",
                        code="metric-unknown",
                        field="--target",
                    )
                for method in methods or METHODS:
                    with_method = _with_method(own, method)
                    curve = train(with_method.run, site_data, options.every, wanted if options.stop else ())
                    if options.processes:
                        curve = timed_as_processes(with_method, curve)
                    done.append(Trained(kind, words(method), seed, tuple(curve)))
                    write(done, wanted, options.output)
                if options.flower:
                    done.append(Trained(kind, LABEL, seed, train_with_flower(options.flower, own.run, site_data)))
                    write(done, wanted, options.output)
                for table in (to_targets(done, wanted), *(to_quality(done, metric) for metric in dict(wanted))):
                    print(f"\n{markdown(table)}", flush=True)
    print(f"\n{NOTES}")
    return done


def _with_method(file: SimulationFile, method: str) -> SimulationFile:
    return validate(SimulationFile, replace(file.model_dump(mode="json"), [f"run.method={method}"]))


def arranged(file: SimulationFile, kind: str, folder: Path) -> SimulationFile:
    """Return a simulation whose samples are dealt out in some way, at sites that let out everything.

    Folders of tables are put together into one table first, unless each site keeps its own.

    Args:
        file: the simulation.
        kind: of `benchmarks.target.settings.SITES`.
        folder: for that table.
    """
    document: dict[str, Any] = file.model_dump(mode="json")
    run, simulation = document["run"], document["simulation"]
    simulation["policy"] = EVERYTHING.model_dump(mode="json")
    if kind != "own":
        training = file.run.training
        simulation["partition"] = partition(kind, len(file.run.federation.sites), training.batch_size)
        if isinstance(file.simulation.source, Folders):
            path = _one_table(file, folder)
            simulation["source"] = {"name": "table", "path": str(path)}
            run["data"]["covariates"] = None
    return validate(SimulationFile, document)


def _one_table(file: SimulationFile, folder: Path) -> Path:
    """Write the tables of all of a source's folders as one, and return its path."""
    source, data = file.simulation.source, file.run.data
    assert isinstance(source, Folders)
    if not isinstance(data, CsvData) or not isinstance(data.file, str) or is_pattern(data.file):
        raise SpecError(
            "run.data.file",
            "of folders only one table each can be dealt out anew, expected its name",
            code="file-needed",
        )
    tables = []
    inside = Path(source.path).glob("*") if isinstance(source.path, str) else map(Path, source.path.values())
    places = sorted(entry for entry in inside if entry.is_dir())
    if not places:
        raise SpecError(
            "simulation.source.path", f"{source.path} has no folder; --data names another place", code="site-missing"
        )
    for place in places:
        table = read_table(place / data.file, data).frame
        if isinstance(data.covariates, str):
            table = table.merge(read_table(place / data.covariates, data).frame, on=data.key, validate="1:1")
        tables.append(table)
    path = folder / "together.csv"
    pd.concat(tables).to_csv(path, index=False)
    return path
