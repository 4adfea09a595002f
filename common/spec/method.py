"""How gradients travel: the options of one of the methods that are installed, told apart by their name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Union

from rankdad.common.errors import SpecError
from rankdad.common.methods import METHODS, MethodOptions
from rankdad.common.methods.local_steps import LocalSteps
from rankdad.common.methods.rank_dad import PRESETS
from rankdad.common.methods.top_k import TopK

if TYPE_CHECKING:
    MethodSpec = MethodOptions
else:
    MethodSpec = Union[tuple(METHODS.values())]  # noqa: UP007


def named_method(method: str | Mapping[str, Any], own: object = None) -> dict[str, Any]:
    """Return a method as a spec has it, by its name or that of a preset.

    Args:
        method: its fields; or a name: fedavg and its like are dsgd's, converged and authors rank-dad's.
        own: the method of the spec so far, whose rank is kept, and whose other fields are too if it has the same name.

    Raises:
        SpecError: there is none of this name.
    """
    if not isinstance(method, str):
        return dict(method)
    before = own if isinstance(own, Mapping) else {}
    presets = dict.fromkeys(LocalSteps.presets, "dsgd") | dict.fromkeys(PRESETS, "rank-dad")
    presets = dict.fromkeys(TopK.presets, "top-k") | presets
    name = presets.get(method, method)
    if name not in METHODS:
        raise SpecError(
            "run.method", f"got {method!r}, expected one of {', '.join([*METHODS, *presets])}", code="method-unknown"
        )
    if name == method and before.get("name") == name:
        return dict(before)
    rank = {"rank": before.get("rank", 2)} if "rank" in METHODS[name].model_fields and method != "authors" else {}
    return {"name": name, **rank} | ({"preset": method} if method in presets else {})
