"""Patterns among a simulation's features, replaced by the columns that its data have."""

from __future__ import annotations

from common.data import TableData
from local.data.columns import resolved
from simulations.sources import Folders
from simulations.spec import SimulationFile


def with_columns(file: SimulationFile) -> SimulationFile:
    """Return a simulation whose features are columns: those of the first site, which all others must have too.

    Raises:
        DataError: the first site has no readable table.
        SpecError: a pattern stands for no column.
    """
    data, source = file.run.data, file.simulation.source
    if not isinstance(data, TableData) or not data.patterns or not isinstance(source, Folders):
        return file
    sites = file.run.federation.sites
    found = resolved(data, source.find(sites)[sites[0]])
    return file.model_copy(update={"run": file.run.model_copy(update={"data": found})})
