"""From what stands in a form to values: lists, names, regions, a whole document."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from common.spec import RESERVED


def whole_numbers(given: Any) -> list[int]:
    """Return numbers that stand in text with commas, blanks or × between them, or in a list.

    Raises:
        ValueError: something else stands there.
    """
    text = ",".join(map(str, given)) if isinstance(given, list) else str(given)
    parts = [part for part in re.split(r"[\s,;x×]+", text) if part]
    if not all(part.isdecimal() for part in parts):
        raise ValueError("expected whole numbers with commas between them")
    return [int(part) for part in parts]


def is_site_name(name: str) -> bool:
    """Tell whether results and folders can use a name."""
    return re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,62}", name) is not None


def site_name(given: Any) -> str:
    """Return a site's name.

    Raises:
        ValueError: results and folders could not use it.
    """
    if str(given) in RESERVED:
        raise ValueError("expected another name: results use this one")
    if not is_site_name(str(given)):
        raise ValueError("expected small letters, digits, dots and hyphens, such as hospital-a")
    return str(given)


def names(given: Any) -> list[str]:
    """Return names that stand in text with commas between them, or in a list.

    Raises:
        ValueError: something else stands there.
    """
    if isinstance(given, list) and all(isinstance(name, str) for name in given):
        return given
    if not isinstance(given, str | int | float) or isinstance(given, bool):
        raise ValueError("expected names with commas between them")
    text = str(given)
    return [part.strip().strip('"') for part in text.split(",") if part.strip()]


def regions(given: Any) -> list[str]:
    """Return the regions that the platform's field for FreeSurfer holds: [{"value": [name, …]}], or the names alone.

    Raises:
        ValueError: it holds something else.
    """
    if isinstance(given, str):
        return names(given)
    found: list[Any] = []
    for one in given if isinstance(given, list) else [given]:
        held = one.get("value") if isinstance(one, Mapping) else one
        found += held if isinstance(held, list) else [held]
    if not found or not all(isinstance(name, str) for name in found):
        raise ValueError("expected names of regions")
    return found


def document(text: Any) -> dict[str, Any]:
    """Return a JSON object that stands in the form as such, or as text.

    Raises:
        ValueError: it is none.
    """
    try:
        found = json.loads(text) if isinstance(text, str) and text.strip() else text or {}
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} in line {error.lineno}, column {error.colno}") from None
    if not isinstance(found, dict):
        raise ValueError("expected a JSON object")
    return found
