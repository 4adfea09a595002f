"""How gradients travel: the options of one of the methods that are installed, told apart by their name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Union

from rankdad.common.errors import SpecError
from rankdad.common.methods import METHODS, MethodOptions

if TYPE_CHECKING:
    MethodSpec = MethodOptions
else:
    MethodSpec = Union[tuple(METHODS.values())]  # noqa: UP007


def named_method(method: str | Mapping[str, Any], own: object = None) -> dict[str, Any]:
    """Return a method as a spec has it, by its name or that of a preset.

    Args:
        method: its fields; or a name, or that of a preset that stands for one, such as fedavg for dsgd.
        own: the method of the spec so far, whose rank is kept, and whose other fields are too if it has the same name.

    Raises:
        SpecError: there is none of this name.
    """
    if not isinstance(method, str):
        return dict(method)
    before = own if isinstance(own, Mapping) else {}
    presets = {preset: name for name, options in METHODS.items() for preset in options.stands_for}
    name = presets.get(method, method)
    if name not in METHODS:
        raise SpecError(
            "run.method", f"got {method!r}, expected one of {', '.join([*METHODS, *presets])}", code="method-unknown"
        )
    if name == method and before.get("name") == name:
        return dict(before)
    options = METHODS[name]
    asked = options.model_fields.get("rank")
    rank = {"rank": before.get("rank", 2)} if asked is not None and asked.is_required() else {}
    return {"name": name, **rank} | ({"preset": method} if method in presets else {})
