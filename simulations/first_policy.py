"""The policy lines that a first spec's own simulation needs for its linear model to be solved exactly."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory

from rankdad.common.errors import UserError
from rankdad.local.admission import fewest_of_linear
from rankdad.simulations.dealing import dealt_data
from rankdad.simulations.resolving import with_columns
from rankdad.simulations.spec import SimulationFile


def policy_lines(file: SimulationFile) -> dict[str, int | None]:
    """Return the lines in which a simulation's sites have to allow more than its policy does, so that sums may leave.

    Args:
        file: run and simulation; data that cannot be read need no lines, since nothing will run.
    """
    if file.run.solver == "steps":
        return {}
    try:
        with TemporaryDirectory() as folder:
            data = dealt_data(with_columns(file), Path(folder))
            told, apart = zip(*(fewest_of_linear(file.run, site) for site in data.values()), strict=True)
    except UserError:
        return {}
    policy, columns = file.simulation.policy, math.prod(file.run.data.shape) + 1
    lines: dict[str, int | None] = {}
    if min(*told, *apart) < policy.min_rows:
        lines["min_rows"] = max(1, int(min(*told, *apart)))
    if policy.rows_per_rank is not None and columns > min(told) // policy.rows_per_rank:
        lines["rows_per_rank"] = int(min(told)) // columns or None
    return lines
