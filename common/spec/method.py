"""The method of a run: the options of one of the installed methods, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Union

from rankdad.common.errors import SpecError
from rankdad.common.methods import METHODS, UNUSABLE, MethodOptions

if TYPE_CHECKING:
    MethodSpec = MethodOptions
else:
    MethodSpec = Union[tuple(METHODS.values())]  # noqa: UP007


def refuse_unusable(method: object) -> object:
    """Return a method's fields, before they are validated.

    Raises:
        UserError: an installed package has this method, and it cannot be used.
    """
    if isinstance(method, Mapping) and (error := UNUSABLE.get(str(method.get("name")))) is not None:
        raise error
    return method


def named_method(method: str | Mapping[str, Any], own: object = None) -> dict[str, Any]:
    """Return a method's fields, given its name or a preset's.

    Args:
        method: its fields; or its name, or a preset's that implies a method, such as fedavg for dsgd.
        own: the spec's method, whose rank is kept, and all other fields if it has the same name.

    Raises:
        SpecError: there is no method of this name.
        UserError: it cannot be used.
    """
    if not isinstance(method, str):
        return dict(method)
    before = own if isinstance(own, Mapping) else {}
    presets = {preset: name for name, options in METHODS.items() for preset in options.stands_for}
    name = presets.get(method, method)
    refuse_unusable({"name": name})
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
