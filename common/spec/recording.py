"""What a run records besides its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from rankdad.common.documents import Part
from rankdad.common.errors import UserError, one_line
from rankdad.common.numbers import NonNegativeInt

GROUP = "rankdad.rounds"  # entry points of other packages' rounds
FIRST = 64  # first number for other packages' kinds
MOST_ROUNDS = 8
FURTHER: Mapping[str, str] = {point.name: point.value for point in entry_points(group=GROUP)}  # "package.module:Class"


def further_rounds() -> tuple[dict[int, Any], dict[str, UserError]]:
    """Return the rounds of other packages (`Further`) by number, and why others cannot be used, by name."""
    found, unusable = dict[int, Any](), dict[str, UserError]()
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):  # the same order everywhere
        try:
            one = point.load()()
            kind, _ = int(one.kind), (one.kind.name, one.up, one.down, one.due)
        except (Exception, SystemExit) as error:
            problem = f"{point.value}, an entry point of {GROUP}, cannot be used: {one_line(error)}"
            unusable[point.name] = UserError(problem, code="round-unusable", field=point.name)
            continue
        if kind < FIRST or kind in found or getattr(one, "name", None) != point.name:
            problem = f"{point.value}, an entry point of {GROUP}: its name is another, or its number ({kind})"
            why = f"{problem} not from {FIRST} on and its own"
            unusable[point.name] = UserError(why, code="round-number-taken", field=point.name)
        else:
            found[kind] = one
    return found, unusable


def _installed(name: str) -> str:
    if name not in FURTHER:
        raise ValueError(f"no installed package has this round; installed are: {', '.join(sorted(FURTHER)) or 'none'}")
    if (why := further_rounds()[1].get(name)) is not None:
        raise why
    return name


class Recording(Part):
    """What a run records besides its metrics, without effect on the weights."""

    spectra: NonNegativeInt = 0
    """Steps between two records of the leading singular values of each layer's update, for layers with factors; 0 for
    none. They are in `spectra.csv`, on the page and in the report."""
    tensorboard: bool = False
    """Whether the aggregator writes files for TensorBoard to `tensorboard` in the run's directory: pooled and sites'
    metrics and training loss of each epoch, and the traffic. Needs the extra `tensorboard` there."""
    mlflow: bool = False
    """Whether it sends the same to MLflow: to `mlflow` in the run's directory, or to the environment variable
    MLFLOW_TRACKING_URI. Needs the extra `mlflow` there."""

    rounds: Annotated[tuple[Annotated[str, AfterValidator(_installed)], ...], Field(max_length=MOST_ROUNDS)] = ()
    """Rounds of other packages, by the name of their entry point in the group `rankdad.rounds`. Each is held once,
    after preparation, and its result is under `rounds` in the summary. A site takes part if it lists the code under
    `allow_factories`; rankdad does not check what such a round discloses."""
