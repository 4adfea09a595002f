"""Methods: how the sites' gradients become the gradient that all apply. One file each, listed by `_found`."""

from __future__ import annotations

import logging
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

__all__ = ["METHODS", "UNUSABLE", "Contribution", "LocalSteps", "Method", "MethodOptions", "MethodState"]
GROUP = "rankdad.methods"  # entry points of other packages' methods
_log = logging.getLogger(__name__)


def name_of(options: type[MethodOptions]) -> str:
    """Return a method's name in a spec."""
    names: tuple[str, ...] = get_args(options.model_fields["name"].annotation)
    return names[0]


def _found() -> tuple[dict[str, type[MethodOptions]], dict[str, UserError]]:
    """Return the options of all methods by name, ours first, and why methods of other packages cannot be used."""
    ours = {name_of(own): own for own in (Dsgd, Dad, Edad, RankDad, PowerSgd, TopK)}
    theirs, unusable = dict[str, type[MethodOptions]](), dict[str, UserError]()
    for point in entry_points(group=GROUP):
        try:
            options = point.load()
            name = name_of(options)
        except (Exception, SystemExit) as error:
            problem = f"{point.value}, an entry point of {GROUP}, cannot be used: {one_line(error)}"
            unusable[point.name] = UserError(problem, code="method-unusable", field=point.name)
            continue
        if name in ours or name in theirs:
            theirs.pop(name, None)  # which of the two it means depends on the machine
            problem = f"{point.value}, an entry point of {GROUP}, has the name of another method, {name}"
            unusable[name] = UserError(problem, code="method-name-taken", field=point.name)
        else:
            theirs[name] = options
    for why in unusable.values():
        _log.warning("%s", why)
    return ours | theirs, {name: why for name, why in unusable.items() if name not in ours}


METHODS, UNUSABLE = _found()
