"""Code of the user's own, named "package.module:function", imported only where the caller allows it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rankdad.common.errors import PolicyError, SpecError, one_line

FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]


def resolve(name: str, allowed: Collection[str], field: str) -> Callable[..., Any]:
    """Import a function that a spec names.

    Args:
        name: "package.module:function".
        allowed: names that the caller permits to be imported and called.
        field: of the spec, named in errors.

    Raises:
        PolicyError: the caller does not allow it; nothing is imported then.
        SpecError: it cannot be imported, or is no function.
    """
    if name not in allowed:
        raise PolicyError(
            field,
            f"{name} is not allowed here: read its code, then pass --allow-factory {name}, or list it under "
            "allow_factories in a site's file",
            code="factory-not-allowed",
        )
    module_name, _, function_name = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # a console script, unlike `python -m`, does not look there
        sys.path.insert(0, here)
    try:
        function: object = getattr(importlib.import_module(module_name), function_name)
    except (Exception, SystemExit) as error:
        ours = "rankdad" in (_top(module_name), _top(getattr(error, "name", None) or ""))
        advice = "; rankdad is this program's own package: give yours another name" if ours else ""
        raise SpecError(
            field, f"{name} cannot be imported: {one_line(error)}{advice}", code="factory-cannot-be-imported"
        ) from error
    if not callable(function):
        raise SpecError(
            field, f"{name} is {type(function).__name__}, expected a function", code="factory-not-a-function"
        )
    return function


def _top(module: str) -> str:
    return module.partition(".")[0]
