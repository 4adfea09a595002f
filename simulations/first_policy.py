"""The policy lines that a first spec's own simulation needs for its linear model to be solved exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from rankdad.common.errors import PolicyError, UserError
from rankdad.common.policy import Policy
from rankdad.local.admission import linear_sets
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
            known = [linear_sets(file.run, site) for site in data.values()]
    except UserError:
        return {}
    policy, columns = file.simulation.policy, math.prod(file.run.data.shape) + 1
    lines: dict[str, int | None] = {}
    people = [people for one in known for people, _ in one.told.values()]
    if people and min(people) < policy.min_rows:
        lines["min_rows"] = max(1, min(people))
    apart = min((one.apart for one in known if one.told), default=policy.min_level.count)
    if apart < policy.min_level.count:
        lines["min_level"] = max(1, apart)
    for one in known:
        for rows_per_rank in range(policy.rows_per_rank or 0, 0, -1):
            if one.told and not _lets_out(policy.model_copy(update=lines), columns, one.told):
                lines["rows_per_rank"] = rows_per_rank - 1 or None
    return lines


def _lets_out(policy: Policy, columns: int, told: Mapping[str, tuple[int, int]]) -> bool:
    try:
        policy.check_products(columns, told)
    except PolicyError:
        return False
    return True
