"""Converts the arguments of `rankdad.simulate` (files, dictionaries, specs, data frames) to a simulation."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel
from pydantic_core import to_json

from rankdad.common.data.dialect import BLANK
from rankdad.common.data.tables import Table
from rankdad.common.documents import load_json, validate
from rankdad.common.errors import DataError, SpecError, UserError
from rankdad.common.files import cannot_write
from rankdad.common.spec import RunSpec
from rankdad.common.spec.method import named_method
from rankdad.common.spec.table_schema import canonical
from rankdad.common.spec.written import Written
from rankdad.simulations.resolving import with_columns
from rankdad.simulations.spec import SimulationFile, changed, numbered

Place = str | os.PathLike[str]
Spec = Place | Mapping[str, Any] | RunSpec | SimulationFile
Data = pd.DataFrame | Mapping[str, pd.DataFrame | Place] | Place
Names = int | Sequence[str]

FRAMES = "data"  # name of data frames' tables in a run's directory
MAX_SITES = 1000
EXPECTED = "expected a DataFrame, a path, or a DataFrame or path for each site by its name"


def given_simulation(
    spec: Spec,
    folder: Path,
    *,
    data: Data | None = None,
    method: str | Mapping[str, Any] | None = None,
    sites: Names | None = None,
    weights: Place | None = None,
) -> SimulationFile:
    """Return the simulation for the given arguments; data frames are written as tables.

    Args:
        spec: a run, alone or with its simulation.
        folder: for the tables.
        data: replaces the simulation's source.
        method: replaces the run's.
        sites: number or names; replaces the run's.
        weights: folder of pretrained weights; replaces the simulation's.

    Raises:
        UserError: a field is wrong, or the data do not fit; names it.
    """
    document, file = _document(spec)
    alone = "run" not in document
    if alone:
        document = {"run": document}
    if data is None and "simulation" not in document:
        raise SpecError(
            "simulation", f"is missing, and no data are given: {EXPECTED}", file=file, code="simulation-missing"
        )
    run = document["run"]
    if method is not None and isinstance(run, dict):
        run["method"] = named_method(method, run.get("method"))
    frames: dict[str, pd.DataFrame] = {}
    found, every = list[str](), False
    place: Path | None = None
    if data is not None:
        source, frames, found = _source(data, folder)
        every = isinstance(data, Mapping)
        if isinstance(data, str | os.PathLike) and "simulation" in document:
            place = Path(data)  # replaces the path of the file's source, as `--data` does
        else:
            _take(document, source)
    _choose(document, sites, found, every)
    number = sites if isinstance(sites, int) else None
    document = changed(document, sites=number, data=place, weights=None if weights is None else Path(weights))
    if alone:
        validate(RunSpec, document["run"], file=file)  # so that errors name fields as in the caller's spec
    read = validate(SimulationFile, document, file=file)
    for called, frame in frames.items():
        write_frame(frame, read.run, called, folder / f"{called}.csv")
    return with_columns(read)


def _document(spec: Spec) -> tuple[dict[str, Any], Path | None]:
    """Return a copy of a spec as JSON values, and the file that it comes from."""
    file = Path(spec) if isinstance(spec, str | os.PathLike) else None
    if file is not None:
        document = load_json(file)
    elif isinstance(spec, BaseModel):
        document = spec.model_dump(mode="json")
    elif isinstance(spec, Mapping):
        document = json.loads(to_json(spec, fallback=_plain))
    else:
        raise UserError(
            f"spec: got {_kind(spec)}, expected a file's path, a dictionary or a RunSpec",
            code="type-unexpected",
            field="spec",
        )
    if not isinstance(document, dict):
        raise SpecError("the whole file", "expected an object", file=file, code="not-an-object")
    return document, file


def _plain(value: Any) -> Any:
    """Convert a value of NumPy or another library to JSON values."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def _source(data: Data, folder: Path) -> tuple[dict[str, Any], dict[str, pd.DataFrame], list[str]]:
    """Return the simulation's source for data, frames to write by table name, and the sites that the data name."""
    if isinstance(data, pd.DataFrame):
        return {"name": "table", "path": str(folder / f"{FRAMES}.csv")}, {FRAMES: data}, []
    if isinstance(data, Mapping):
        if not data:
            raise UserError(f"data: got no site, {EXPECTED}", code="no-site", field="data")
        places, frames = dict[str, str](), dict[str, pd.DataFrame]()
        for site, own in data.items():
            if isinstance(own, pd.DataFrame):
                frames[f"{FRAMES}/{site}"] = own
                places[str(site)] = str(folder / FRAMES / f"{site}.csv")
            elif isinstance(own, str | os.PathLike):
                places[str(site)] = str(Path(own).absolute())
            else:
                raise UserError(
                    f"data: got {_kind(own)} for the site {site}, expected a DataFrame or a path",
                    code="type-unexpected",
                    field="data",
                )
        return {"name": "folders", "path": places}, frames, list(places)
    if not isinstance(data, str | os.PathLike):
        raise UserError(f"data: got {_kind(data)}, {EXPECTED}", code="type-unexpected", field="data")
    path = Path(data)
    if not path.exists():
        raise DataError(path, "does not exist", code="file-missing")
    if path.is_dir():
        inside = sorted(one.name.lower() for one in path.iterdir() if one.is_dir())
        return {"name": "folders", "path": str(path)}, {}, inside
    return {"name": "npz" if path.suffix.lower() == ".npz" else "table", "path": str(path)}, {}, []


def _take(document: dict[str, Any], source: dict[str, Any]) -> None:
    """Replace a simulation's source; its partition stays if it can."""
    simulation = document.setdefault("simulation", {})
    if not isinstance(simulation, dict):
        return  # `validate` refuses it
    partition = simulation.pop("partition", None)
    simulation["source"] = source
    if source["name"] == "folders":
        simulation["partition"] = {"name": "folder"}
    elif isinstance(partition, dict) and partition.get("name") != "folder":
        simulation["partition"] = partition


def _choose(document: dict[str, Any], sites: Names | None, found: list[str], every: bool) -> None:
    """Set a run's sites: those given, or those of the data if the run names none or others.

    Args:
        document: of the simulation.
        sites: number or names.
        found: sites named by the data.
        every: whether these are all sites.
    """
    run = document["run"]
    if isinstance(sites, bool) or (isinstance(sites, int) and not 1 <= sites <= MAX_SITES):
        raise SpecError(
            "sites", f"got {sites}, expected a number from 1 to {MAX_SITES}, or names", code="number-out-of-range"
        )
    if isinstance(sites, str | Mapping) or not isinstance(sites, int | Sequence | None):
        raise SpecError("sites", f"got {sites!r}, expected a number or a list of names", code="type-unexpected")
    if not isinstance(run, dict) or not isinstance(run.setdefault("federation", {}), dict):
        return
    federation, named = run["federation"], run["federation"].get("sites")
    if isinstance(sites, int):
        federation.setdefault("sites", numbered(sites))
    elif sites is not None:
        federation["sites"] = list(sites)
    elif found and (named is None or (every and isinstance(named, list) and sorted(map(str, named)) != sorted(found))):
        federation["sites"] = found
    if not federation:
        del run["federation"]  # so that the error says that it is missing


def write_frame(frame: pd.DataFrame, run: RunSpec, called: str, path: Path) -> NDArray[np.bool_]:
    """Write a frame as a table for the run's schema; return which rows are not empty, bool [rows].

    A named index becomes a column.

    Args:
        frame: a row for each sample.
        run: with the schema of the table.
        called: name of the frame in errors.
        path: of the file.

    Raises:
        DataError: columns have no names or duplicate names, or there are no rows.
        UserError: the schema needs more than one table, or the file cannot be written.
    """
    data = run.data
    if not isinstance(data, Written) or data.reader != "csv" or getattr(data, "covariates", None) is not None:
        table = "two tables" if isinstance(data, Written) and data.reader == "csv" else f"files for {data.reader}"
        raise UserError(
            f"{called}: a DataFrame is one table, but the run needs {table}: pass a folder's path",
            code="type-unexpected",
            field="data",
        )
    levels = [place for place, name in enumerate(frame.index.names) if name is not None]
    if levels:
        frame = frame.reset_index(level=levels, allow_duplicates=True)
    names: Sequence[object] = frame.columns.tolist()
    for name in names:
        if not isinstance(name, str):
            text = "expected text: frame.columns = frame.columns.astype(str)"
            raise DataError(
                called, f"has a column {name!r} ({type(name).__name__}), {text}", code="column-name-unusable"
            )
    if not len(frame) or not len(frame.columns):
        raise DataError(called, "is empty, expected a row for each sample", code="no-rows")
    Table(called, frame)  # refuses duplicate names
    if data.columns and set(names) != set(data.columns):
        problem = f"has the columns {', '.join(map(str, names))}, which differ from data.columns"
        raise DataError(called, problem, code="columns-mismatch", field="data.columns")
    mark, blank = data.decimal or ".", "NA" if data.delimiter == BLANK else ""
    cells = frame.astype(object).map(lambda value: _cell(value, mark))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        cells.replace("", blank).to_csv(path, index=False, sep=data.delimiter or ",")
    except OSError as error:
        raise cannot_write(path, error) from None
    held: NDArray[np.bool_] = (cells.map(str.strip) != "").any(axis=1).to_numpy()
    return held


def _cell(value: Any, mark: str) -> str:
    """Format a frame's cell: 59 for 59.0, empty for a missing value."""
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and value != value):
        return ""
    return canonical(value).replace(".", mark) if isinstance(value, float | np.floating | Decimal) else str(value)


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
