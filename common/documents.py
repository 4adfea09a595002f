"""Reads JSON documents, applies assignments, and validates them against pydantic models.

Every error names the file, the field, its value and what was expected.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, to_json

from rankdad.common.errors import SpecError, UserError, visible
from rankdad.common.gone import gone

MAX_BYTES = 64 << 20  # of a file
MAX_DEPTH = 100  # of nested objects and lists
MAX_PROBLEMS = 8  # named in an error
MAX_ERRORS = 10_000  # examined: a million would take half a minute
UNKNOWN = "is not known here"
WHOLE = "the whole object"
MAX_DIGITS = 40  # of a whole number
NAMED = ("missing", "extra_forbidden")  # errors located at a key of the document, never at a union's tag
CODES = {  # by pydantic's types of errors; "field-invalid" for all others
    "missing": "field-missing",
    "extra_forbidden": "field-unknown",
    "union_tag_invalid": "name-unknown",
    "union_tag_not_found": "name-missing",
}


class Part(BaseModel):
    """A frozen model that forbids unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Validate a document of JSON values, in which tuples are lists."""
        if not isinstance(obj, Mapping):
            return super().model_validate(obj, **options)
        return cls.model_validate_json(to_json(obj, fallback=repr), **options)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the strings below fields as descriptions: pydantic itself would parse all sources at every start."""
        found, texts = handler(schema), dict[str, str]()
        for part in reversed(cls.__mro__[: cls.__mro__.index(Part)]):
            texts |= dict.fromkeys(inspect.get_annotations(part), "") | _strings_below(part)
        for name, field in handler.resolve_ref_schema(found).get("properties", {}).items():
            if text := texts.get(name):
                field["description"] = text
        return found


def _strings_below(part: type) -> dict[str, str]:
    """Return the docstrings of a class's fields."""
    (tree,) = ast.parse(inspect.getsource(part)).body
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(below.value.value)
        for field, below in pairwise(tree.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }


P = TypeVar("P", bound=BaseModel)


def without_defaults(part: BaseModel) -> dict[str, Any]:
    """Return a model as JSON without default values, so that versions without these fields can read it."""
    brief = _with_tags(part, part.model_dump(mode="json", exclude_defaults=True))
    assert isinstance(brief, dict)
    return brief


def _with_tags(value: object, brief: Any) -> Any:
    """Restore the tags of models: fields with one possible value."""
    if isinstance(value, BaseModel) and isinstance(brief, dict):
        tags = {name: getattr(value, name) for name, field in type(value).model_fields.items() if _is_tag(field)}
        return tags | {name: _with_tags(getattr(value, name), own) for name, own in brief.items()}
    if isinstance(value, Mapping) and isinstance(brief, dict):
        return {name: _with_tags(own, brief[str(name)]) for name, own in value.items()}
    if isinstance(value, tuple | list) and isinstance(brief, list):
        return [_with_tags(*pair) for pair in zip(value, brief, strict=True)]
    return brief


def _is_tag(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1


def validate(model: type[P], document: object, *, file: str | Path | None = None, under: str = "") -> P:
    """Validate a JSON document against a model.

    Args:
        model: to validate against.
        document: JSON values.
        file: for errors.
        under: key of the document in the file.

    Raises:
        SpecError: names the wrong fields, unknown ones first, their values and what was expected.
    """
    try:
        return model.model_validate_json(json.dumps(document))
    except ValidationError as error:
        errors = sorted(_errors(error, file), key=lambda one: one["type"] != "extra_forbidden")  # typos cause others
        (field, problem), *others = [
            (".".join(part for part in (under, path) if part) or ("the whole file" if file else WHOLE), problem)
            for path, problem in _problems(errors[:MAX_PROBLEMS], document, model)
        ]
        listed = "".join(f"; {path}: {problem}" for path, problem in others)
        more = f"; and {len(errors) - MAX_PROBLEMS} more" if len(errors) > MAX_PROBLEMS else ""
        code = CODES.get(errors[0]["type"], "field-invalid")
        raise SpecError(field, problem + listed + more, code=code, file=file) from None


def problems(model: type[BaseModel], document: object, most: int | None = None) -> list[tuple[str, str]]:
    """Return the paths of a document's wrong fields, with value and what was expected; at most `most`."""
    try:
        model.model_validate_json(json.dumps(document))
    except ValidationError as error:
        return _problems(_errors(error)[:most], document, model)
    return []


def _errors(error: ValidationError, file: str | Path | None = None) -> list[Any]:
    """Return pydantic's errors.

    Raises:
        SpecError: there are too many to examine.
    """
    if error.error_count() > MAX_ERRORS:
        raise SpecError(
            "the whole file",
            f"has {error.error_count():,} mistakes: is it the right one?",
            file=file,
            code="too-many-mistakes",
        )
    return list(error.errors())


def _problems(errors: Sequence[Any], document: object, model: type[BaseModel]) -> list[tuple[str, str]]:
    places: dict[str, list[str]] = {}
    for name, path in _places(model):
        places.setdefault(name, []).append(path or WHOLE)
    paths = [_field(one["loc"], document, one["loc"] if one["type"] in NAMED else places) for one in errors]
    found: dict[str, str] = {}  # a union has an error for each of its members; those inside a member are most precise
    for one, path in zip(errors, paths, strict=True):
        if one["type"].endswith("_type") and any(other.startswith((f"{path}.", f"{path}[")) for other in paths if path):
            continue
        problem = _problem(one, path, places)
        got, expected, wanted = problem.partition(", expected")
        if found.setdefault(path, problem) != problem and found[path].startswith(got + expected) and expected:
            found[path] += f" or{wanted.removeprefix(':')}"
    return list(found.items())


def load_json(path: str | Path) -> Any:
    """Read a JSON file.

    Raises:
        UserError: the file is missing or unreadable, or `parse_json` refuses it.
    """
    try:
        with Path(path).open("rb") as file:
            return parse_json(file.read(MAX_BYTES + 1))
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder, expected a JSON file", code="cannot-read") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}", code="cannot-read") from None
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}", code="not-json"
        ) from None
    except ValueError as error:
        raise UserError(f"{path}: {error}", code="not-json") from None


def parse_json(text: bytes | str) -> Any:
    """Parse a JSON text of any origin.

    Raises:
        json.JSONDecodeError: it is not JSON; names line and column.
        ValueError: it is not text, too large, nested too deeply, has a duplicate key, or holds an unusable number or
            character.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"is larger than {MAX_BYTES:,} bytes")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ValueError("is not text in UTF-8") from None
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_int=_whole_number)
        _check_depth_and_texts(document)
    except RecursionError:
        raise ValueError(f"is nested deeper than {MAX_DEPTH} levels") from None
    return document


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {shown(twice)} occurs twice in one object: remove one")
    return made


def _whole_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"holds a whole number of {len(digits):,} digits, expected at most {MAX_DIGITS}")
    return int(digits)


def _check_depth_and_texts(document: Any) -> None:
    level, depth = [document], 0
    while level:
        depth += any(isinstance(value, dict | list) for value in level)
        if depth > MAX_DEPTH:
            raise RecursionError
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += [*value, *value.values()]
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, str) and ("\0" in value or not _is_text(value)):
                raise ValueError(f"{shown(value)} holds a character that is not valid in text")
        level = inner


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # an unpaired surrogate, from an escape
        return False
    return True


def replace(document: Any, assignments: Sequence[str]) -> Any:
    """Return the document with values replaced by assignments such as `run.method.rank=8`.

    Raises:
        SpecError: an assignment has no `=`, is not JSON, or its path leads through a value that is no object.
    """
    document = json.loads(json.dumps(document))
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise SpecError(
                "--set", f"got {assignment!r}, expected KEY=JSON such as run.method.rank=8", code="not-an-assignment"
            )
        *parents, last = path.split(".")
        if len(parents) >= MAX_DEPTH:
            raise SpecError("--set", f"{path[:40]}… is nested deeper than {MAX_DEPTH} levels", code="too-deep")
        try:
            value = parse_json(text)
        except json.JSONDecodeError:
            raise SpecError(
                "--set",
                f"{path}: {text!r} is not JSON; a string needs its quotes: '{path}=\"{text}\"'",
                code="not-json",
            ) from None
        except ValueError as error:
            raise SpecError("--set", f"{path}: {error}", code="not-json") from None
        target = document
        for key in parents:
            if not isinstance(target, dict) or not isinstance(target.setdefault(key, {}), dict):
                raise SpecError("--set", f"{path}: {key} is not an object", code="not-an-object")
            target = target[key]
        if not isinstance(target, dict):
            raise SpecError("--set", f"{path}: the file is not an object", code="not-an-object")
        target[last] = value
    return document


def _field(location: tuple[int | str, ...], document: object, known: Container[str]) -> str:
    """Return a field's path in the document, without the tags of unions that pydantic includes.

    Args:
        location: pydantic's.
        document: to locate it in.
        known: names that are valid although the document lacks them.
    """
    path, here = "", document
    for position, key in enumerate(location):
        missing = position == len(location) - 1 and key in known
        if isinstance(here, Mapping) and isinstance(key, str) and (key in here or missing):
            name = visible(key, 60)
            path, here = f"{path}.{name}" if path else name, here.get(key)
        elif isinstance(here, list) and isinstance(key, int):
            path, here = f"{path}[{key}]", here[key] if key < len(here) else None
    return path


def _known_names(part: type[BaseModel]) -> set[str]:
    """Return the names of all fields of a model's subclasses."""
    return set(part.model_fields).union(*(_known_names(child) for child in part.__subclasses__()))


def _places(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name of every field of a document, and the path of the object that has it."""
    for name, field in model.model_fields.items():
        yield name, path
        for part in _models(field.annotation):
            yield from _places(part, f"{path}.{name}" if path else name)


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) not in (dict, Mapping, tuple):
        for inner in get_args(annotation):
            yield from _models(inner)


def _problem(error: dict[str, Any], path: str, places: Mapping[str, list[str]]) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if earlier := gone(*(path, error["input"]) if kind != "union_tag_invalid" else _tag(error, path)):
        return earlier
    if kind == "missing":
        return "is missing"
    if kind == "tuple_type" and isinstance(error["input"], int | float | str):
        return f"got {shown(error['input'])}, expected a list: [{shown(error['input'])}]"
    if kind == "extra_forbidden":
        name = str(error["loc"][-1])
        elsewhere = dict.fromkeys(places.get(name, ()))
        if path.rpartition(".")[0] in elsewhere:
            return f"{UNKNOWN}: {shown(error['loc'][-2])} has no such field: remove it, or choose another name"
        if 0 < len(elsewhere) <= 3:
            return f"{UNKNOWN}: it belongs in {' or '.join(elsewhere)}"
        here = [other for other, where in places.items() if (path.rpartition(".")[0] or WHOLE) in where]
        known = (here, sorted(_known_names(Part) - {name}))  # names of this object first
        near = [one for names in known for one in difflib.get_close_matches(name, names, n=1, cutoff=0.7)]
        return f"{UNKNOWN}: " + (f"did you mean {near[0]}?" if near else "remove it or correct its name")
    if kind == "union_tag_invalid":
        return f"got the name {visible(context['tag'], 60)!r}, expected one of {context['expected_tags']}"
    if kind == "union_tag_not_found":
        return "has no name that selects its kind"
    if kind == "value_error":
        return visible(str(context["error"]))
    text = f"{error['msg'][0].lower()}{error['msg'][1:]}"
    return f"got {shown(error['input'])}, expected: {text}".replace("expected: input should be", "expected")


def _tag(error: dict[str, Any], path: str) -> tuple[str, str]:
    """Return an object's tag field, and its value."""
    tag: str = error["ctx"]["tag"]
    names = [name for name, value in error["input"].items() if value == tag]
    return ".".join([path, *names[:1]]), tag


def shown(value: object) -> str:
    """Format a value as JSON, truncated."""
    return visible(json.dumps(value), 60)


def words(document: object, path: str = "") -> Iterator[str]:
    """Yield all texts of a document, and the paths of its fields."""
    if isinstance(document, Mapping):
        for name, value in document.items():
            yield from (name, f"{path}{name}", *words(value, f"{path}{name}."))
    elif isinstance(document, list):
        for value in document:
            yield from words(value)
    elif isinstance(document, str):
        yield document
