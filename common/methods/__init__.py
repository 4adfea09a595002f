"""Methods: how the sites' gradients become the gradient that all apply. One file each, listed by `_found`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import get_args

from rankdad.common.errors import UserError, one_line
from rankdad.common.methods.base import Contribution, Method, MethodState
from rankdad.common.methods.dad import Dad
from rankdad.common.methods.dsgd import Dsgd
from rankdad.common.methods.edad import Edad
from rankdad.common.methods.local_steps import LocalSteps
from rankdad.common.methods.options import MethodOptions
from rankdad.common.methods.powersgd import PowerSgd
from rankdad.common.methods.rank_dad import RankDad
from rankdad.common.methods.top_k import TopK

__all__ = ["METHODS", "Contribution", "LocalSteps", "Method", "MethodOptions", "MethodState"]
GROUP = "rankdad.methods"  # entry points of other packages' methods


def name_of(options: type[MethodOptions]) -> str:
    """Return a method's name in a spec."""
    names: tuple[str, ...] = get_args(options.model_fields["name"].annotation)
    return names[0]


def _found() -> Mapping[str, type[MethodOptions]]:
    """Return the options of all installed methods by name: ours, then those of other packages.

    Raises:
        UserError: one cannot be used, or its name is not unique.
    """
    found = {name_of(own): own for own in (Dsgd, Dad, Edad, RankDad, PowerSgd, TopK)}
    for point in entry_points(group=GROUP):
        try:
            options = point.load()
            name = name_of(options)
        except Exception as error:
            problem = f"{point.value}, an entry point of {GROUP}, cannot be used: {one_line(error)}"
            raise UserError(problem, code="method-unusable", field=point.name) from None
        if name in found:
            problem = f"{point.value}, an entry point of {GROUP}, has the name of another method, {name}"
            raise UserError(problem, code="method-name-taken", field=point.name)
        found[name] = options
    return found


METHODS = _found()
