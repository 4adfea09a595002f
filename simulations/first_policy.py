"""The policy lines that a first spec's own simulation needs for its linear model to be solved exactly."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory

from rankdad.common.errors import PolicyError, UserError
from rankdad.common.models import build_network
from rankdad.common.policy import Policy
from rankdad.common.policy_checks import check_products
from rankdad.common.protocol.plan import make_plan
from rankdad.common.spec.solver import NOT_EXACT
from rankdad.local.admission import admitted, usual
from rankdad.local.sums import linear_sets
from rankdad.simulations.checking import check_policy
from rankdad.simulations.resolving import with_columns
from rankdad.simulations.site_folders import partitioned_data
from rankdad.simulations.spec import SimulationFile


def policy_lines(file: SimulationFile) -> tuple[dict[str, int | None], tuple[str, ...]]:
    """Return the lines in which a simulation's sites have to allow more than its policy does, so that sums may leave.

    Args:
        file: run and simulation; data that cannot be read need no lines, since nothing will run.

    Returns:
        The lines, and the sites that need them.
    """
    lines: dict[str, int | None] = {}
    sites: dict[str, None] = {}
    while (more := _lines(file, file.simulation.policy.mended(lines)))[0]:  # of smaller parts others are needed
        lines |= more[0]
        sites |= dict.fromkeys(more[1])
    return lines, tuple(sites)


def at_hospitals(file: SimulationFile) -> str:
    """Return what hospitals do with a simulation's run by the default policy."""
    policy, run = Policy(), file.run
    file = file.model_copy(update={"simulation": file.simulation.model_copy(update={"policy": policy})})
    try:
        with TemporaryDirectory() as folder:
            data = partitioned_data(with_columns(file), Path(folder))
            plan = make_plan(run, build_network(run))
            check_policy(policy, run, plan, list(data.values()))
            found = [admitted(policy, run, plan, site) for site in data.values()]
    except UserError:
        return "refuse this run"
    steps = any(NOT_EXACT in site.warnings for site in found)
    return "train the model by gradients, without coefficients" if steps else "take part in this run unchanged"


def _lines(file: SimulationFile, policy: Policy) -> tuple[dict[str, int | None], list[str]]:
    """Return the lines that a policy still lacks, and at which sites."""
    lines, sites = dict[str, int | None](), list[str]()
    if file.run.solver == "steps":
        return lines, sites
    file = file.model_copy(update={"simulation": file.simulation.model_copy(update={"policy": policy})})
    try:
        with TemporaryDirectory() as folder:
            data = partitioned_data(with_columns(file), Path(folder))
            known = {name: linear_sets(file.run, usual(policy, file.run, site)) for name, site in data.items()}
    except UserError:
        return lines, sites
    few = min(
        (disclosed.people for one in known.values() for disclosed in one.disclosed.values()), default=policy.min_rows
    )
    few = min([few, *[int(one.differ) for one in known.values() if one.disclosed and one.differ < math.inf]])
    apart = min((one.apart for one in known.values()), default=math.inf)
    if few < policy.min_rows:
        lines["min_rows"] = max(1, few)
    if apart < policy.min_level.count:
        lines["min_level"] = max(1, int(apart))
    columns = math.prod(file.run.data.shape) + 1
    for name, one in known.items():
        fewest = min((disclosed.people for disclosed in one.disclosed.values()), default=policy.min_rows)
        needs = min(fewest, one.differ) < policy.min_rows or one.apart < policy.min_level.count
        try:
            if one.disclosed:
                check_products(policy.mended(lines), columns, one.disclosed)
        except PolicyError as error:
            lines |= {line: value for line, value in error.change.items() if line == "rows_per_rank"}  # type: ignore[misc]
            needs = True
        sites += [name] * needs
    return lines, sites
