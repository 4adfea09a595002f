"""JSON documents that people write: read, changed by assignments, and checked against a pydantic model.

Every error names the file, the field, its value and what was expected.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from common.errors import SpecError, UserError


class Part(BaseModel):
    """A frozen part of a specification that forbids unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


P = TypeVar("P", bound=BaseModel)


def validate(model: type[P], document: object, *, file: str | Path | None = None, under: str = "") -> P:
    """Check a JSON document against a model.

    Args:
        model: what it should be.
        document: as JSON was read.
        file: named in errors.
        under: key in the file under which the document stands.

    Raises:
        SpecError: naming the first wrong field, its value and what was expected.
    """
    try:
        return model.model_validate_json(json.dumps(document))
    except ValidationError as error:
        (path, problem), *others = _problems(error, document)
        field = ".".join(part for part in (under, path) if part) or "the whole file"
        more = f" ({len(others)} more fields are wrong)" if others else ""
        raise SpecError(field, problem + more, file=file) from None


def problems(model: type[BaseModel], document: object) -> list[tuple[str, str]]:
    """Return every wrong field of a JSON document, by its path, with its value and what was expected."""
    try:
        model.model_validate_json(json.dumps(document))
    except ValidationError as error:
        return _problems(error, document)
    return []


def _problems(error: ValidationError, document: object) -> list[tuple[str, str]]:
    return [(_field(one["loc"], document), _problem(dict(one))) for one in error.errors()]


def load_json(path: str | Path) -> Any:
    """Read a JSON file.

    Raises:
        UserError: the file is missing, unreadable or not JSON; the line and column are named.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not text in UTF-8") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None


def replace(document: Any, assignments: list[str]) -> Any:
    """Return the document with values replaced by assignments such as `run.method.rank=8`.

    Raises:
        SpecError: an assignment has no `=`, is not JSON, or its path leads through something that is no object.
    """
    document = json.loads(json.dumps(document))
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise SpecError("--set", f"got {assignment!r}, expected KEY=JSON such as run.method.rank=8")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            raise SpecError(
                "--set", f"{path}: {text!r} is not JSON; a string needs its quotes: '{path}=\"{text}\"'"
            ) from None
        *parents, last = path.split(".")
        target = document
        for key in parents:
            if not isinstance(target, dict) or not isinstance(target.setdefault(key, {}), dict):
                raise SpecError("--set", f"{path}: {key} is not an object")
            target = target[key]
        if not isinstance(target, dict):
            raise SpecError("--set", f"{path}: the file is not an object")
        target[last] = value
    return document


def _field(location: tuple[int | str, ...], document: object) -> str:
    """Name a field by its path in the document: pydantic also lists the tags of unions, which are no keys there."""
    path, here = "", document
    for position, key in enumerate(location):
        missing = position == len(location) - 1
        if isinstance(here, Mapping) and isinstance(key, str) and (key in here or missing):
            path, here = f"{path}.{key}" if path else key, here.get(key)
        elif isinstance(here, list) and isinstance(key, int):
            path, here = f"{path}[{key}]", here[key] if key < len(here) else None
    return path


def _known_names(part: type[BaseModel]) -> set[str]:
    """Return the names of all fields of a model's descendants."""
    return set(part.model_fields).union(*(_known_names(child) for child in part.__subclasses__()))


def _problem(error: dict[str, Any]) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(error["loc"][-1]), sorted(_known_names(Part)), n=1)
        return "is not known here: " + (f"did you mean {near[0]}?" if near else "remove it or correct its name")
    if kind == "union_tag_invalid":
        return f"got the name {context['tag']!r}, expected one of {context['expected_tags']}"
    if kind == "union_tag_not_found":
        return "has no name that tells its kind"
    if kind == "value_error":
        return str(context["error"])
    shown = json.dumps(error["input"])
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return f"got {shown}, expected: {error['msg'][0].lower()}{error['msg'][1:]}"
