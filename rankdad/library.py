"""The functions `simulate` and `load`, for programs and notebooks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rankdad.common.errors import UserError
from rankdad.common.files import write_json
from rankdad.given import Data, Names, Place, Spec, given_simulation
from rankdad.remote.run_directory import new_directory
from rankdad.runs import Run
from rankdad.settings import TemporaryFolder, settings_kept
from rankdad.showing import Onlooker
from rankdad.simulate_command import command, summary_of
from rankdad.simulations.lockstep import simulate as in_lockstep
from rankdad.simulations.spec import SimulationFile


def simulate(
    spec: Spec,
    *,
    data: Data | None = None,
    method: str | Mapping[str, Any] | None = None,
    sites: Names | None = None,
    output: Place | None = None,
    processes: bool = False,
    pooled: bool = False,
    progress: bool = True,
    allow_factories: Collection[str] = (),
    weights: Place | None = None,
) -> Run:
    """Train one model across simulated sites, and return the finished run.

    Sites and aggregator take turns in this process, and exchange the same bytes as between hospitals: the weights equal
    those of `rankdad simulate`, bit for bit. This starts at once, works in notebooks and threads, and is easy to debug
    and to interrupt. With `processes`, each site is a process of its own, which is faster for large models on enough
    cores. They are started in a fresh interpreter, because this one may have threads, which do not survive a fork.

    Threads, random numbers, default dtype and logging of this process do not change.

    Args:
        spec: a file, a dictionary of JSON values, or a `RunSpec`: a run, alone or as `{"run": …, "simulation": …}`.
        data: replaces the simulation's source. A DataFrame: its rows are divided between the sites as the simulation
            says, by default at random. A dictionary: a DataFrame, a folder or a file for each site. A path: as for
            `--data`; a run without a simulation needs a folder with a folder for each site, a table, or a .npz file.
        method: replaces the run's: its fields, or the name of a method or preset, such as "dsgd" or "fedavg".
        sites: number or names; replaces the run's.
        output: the run's directory, which must not hold a run yet. By default it is a temporary one, which exists as
            long as the `Run` does.
        processes: whether each site is a process of its own.
        pooled: whether one site has the data of all, for comparison.
        progress: whether to show the progress on a terminal or in a notebook.
        allow_factories: "package.module:function" of the model factories and readers that may be called.
        weights: folder with the pretrained weights that the run names.

    Returns:
        The run, with its metrics, its model and its predictions.

    Raises:
        UserError: a field is wrong, or the data cannot be used or are refused by a policy; names what and where.
            `SpecError`, `DataError` and `PolicyError` are subclasses.
        RankdadError: the run failed; `RunFailedError` names the site.

    Example:
        >>> from sklearn.datasets import load_breast_cancer
        >>> table = load_breast_cancer(as_frame=True).frame
        >>> run = rankdad.simulate(
        ...     {
        ...         "name": "tumours",
        ...         "task": {"name": "classification", "classes": 2},
        ...         "data": {"reader": "csv", "file": "cells.csv", "features": ["mean *"],
        ...                  "label": "target", "values": ["0", "1"]},
        ...         "preparation": {"standardise": "federated"},
        ...         "training": {"epochs": 10, "batch_size": 32},
        ...     },
        ...     data=table,
        ...     sites=3,
        ... )
        >>> run.predict(table.head())["predicted"]
    """
    kept = TemporaryFolder() if output is None else None
    directory = Path(output).absolute() if output is not None else _inside(kept)
    if processes and pooled:
        raise UserError(
            "pooled: trains one site in this process; leave one of processes and pooled out",
            code="options-exclude",
            field="pooled",
        )
    new_directory(directory)
    with settings_kept(), Onlooker(progress) as onlooker:
        file = given_simulation(spec, directory, data=data, method=method, sites=sites, weights=weights)
        if processes:
            _in_processes(file, directory, allow_factories, onlooker)
        else:
            in_lockstep(file, directory, tuple(allow_factories), pooled=pooled, on_round=onlooker.round)
    return Run(directory, allow_factories=allow_factories, folder=kept)


def load(directory: Place, *, allow_factories: Collection[str] = ()) -> Run:
    """Open a run that has ended.

    Args:
        directory: of a simulation, an aggregator, or a site, which has only its own predictions.
        allow_factories: "package.module:function" of the model factories and readers that may be called.

    Raises:
        UserError: the directory holds no run, or its run has not ended or has failed.

    Example:
        >>> rankdad.load("runs/diabetes").sites[["site", "mae", "baseline_mae"]]
    """
    return Run(Path(directory).absolute(), allow_factories=allow_factories)


def _inside(folder: TemporaryFolder | None) -> Path:
    assert folder is not None
    return folder.path / "run"


def _in_processes(file: SimulationFile, directory: Path, factories: Collection[str], onlooker: Onlooker) -> None:
    """Run the command of a simulation."""
    allowed = [word for factory in factories for word in ("--allow-factory", factory)]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "simulation.json"
        write_json(path, file.model_dump(mode="json"))
        summary_of([*command(path, directory), *allowed], onlooker.line)
