"""Runs from a program or a notebook: what `rankdad simulate` does, with data frames, and errors in place of exits."""

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

    Sites and aggregator take turns in this process, and exchange the same bytes as between hospitals: the weights are
    those of `rankdad simulate`, to the last bit. That is the default: it starts at once, works in notebooks and in
    threads, and is as easy to debug and to interrupt as any other function. With `processes` each site is a process
    of its own: faster where models are large and there are cores for all. The command starts them, in a fresh
    interpreter, since this one may hold threads that no fork survives.

    Nothing of this process is changed: threads, random numbers, default dtype and logging are as they were.

    Args:
        spec: a file, a dictionary as JSON has it, or a `RunSpec`: a run, alone or as `{"run": …, "simulation": …}`.
        data: in place of the simulation's source: a DataFrame, whose rows are dealt out to the sites as the simulation
            says, at random without one; a DataFrame, a folder or a file for each site, by its name; or a path, as
            `--data` has it. A run alone takes a folder with a folder for each site, a table, or a .npz file.
        method: in place of the run's: its fields, or the name of a method or preset, such as "dsgd" or "fedavg".
        sites: in place of the run's: how many, or their names.
        output: the run's directory, which must not hold one yet. Without it the directory is a temporary one, which is
            there as long as the `Run` is.
        processes: whether each site is a process of its own.
        pooled: whether one site has all sites' data: what to measure a federation against.
        progress: whether a terminal or a notebook shows how far it is; elsewhere nothing is shown.
        allow_factories: "package.module:function" of model factories and readers that may be called.
        weights: folder of the pretrained weights that the run names.

    Returns:
        The run, with its figures, its model and its predictions.

    Raises:
        UserError: a wrong field, data that cannot be used or that a policy keeps back; names what, where, and what was
            expected. `SpecError`, `DataError` and `PolicyError` are such errors.
        RankdadError: the run could not go on, such as `RunFailedError`, which names the site.

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
            "pooled: one site alone is trained in this process; leave one of processes and pooled out",
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
    """Return the finished run that a directory holds.

    Args:
        directory: that of a simulation or of an aggregator; or of a site, which has its own predictions alone.
        allow_factories: "package.module:function" of model factories and readers that may be called.

    Raises:
        UserError: the directory holds no run, or one that has not ended, or has failed.

    Example:
        >>> rankdad.load("runs/diabetes").sites[["site", "mae", "baseline_mae"]]
    """
    return Run(Path(directory).absolute(), allow_factories=allow_factories)


def _inside(folder: TemporaryFolder | None) -> Path:
    assert folder is not None
    return folder.path / "run"


def _in_processes(file: SimulationFile, directory: Path, factories: Collection[str], onlooker: Onlooker) -> None:
    """Run a simulation's command to its end."""
    allowed = [word for factory in factories for word in ("--allow-factory", factory)]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "simulation.json"
        write_json(path, file.model_dump(mode="json"))
        summary_of([*command(path, directory), *allowed], onlooker.line)
