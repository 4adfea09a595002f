"""Resolves patterns in a simulation's features to columns of its data."""

from __future__ import annotations

from rankdad.common.data.columns import resolved
from rankdad.common.spec.data import TableData, resolve_features
from rankdad.simulations.sources import Folders, OneTable
from rankdad.simulations.spec import TABLES, SimulationFile


def with_columns(file: SimulationFile) -> SimulationFile:
    """Resolve features to columns of the table, or of the first site's folder.

    Raises:
        DataError: there is no readable table.
        SpecError: a pattern matches no column.
    """
    data, source = file.run.data, file.simulation.source
    if not isinstance(data, TableData) or not data.patterns:
        return file
    if isinstance(source, Folders):
        sites = file.run.federation.sites
        columns = resolved(data, source.find(sites)[sites[0]])
    elif isinstance(source, TABLES):
        table = (source.load(data) if isinstance(source, OneTable) else source.load()).table
        columns = resolve_features(data, list(table.frame.columns))
    else:
        return file
    return file.model_copy(update={"run": file.run.model_copy(update={"data": columns})})
