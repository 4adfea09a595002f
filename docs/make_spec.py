"""Prints docs/spec.md from the schema of a run: `python docs/make_spec.py > docs/spec.md`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from rankdad.common.policy import Policy
from rankdad.common.spec import RunSpec
from rankdad.local.config import SiteConfig
from rankdad.simulations.spec import SimulationSpec

HEAD = """# The spec

A run is one JSON object, the same at the aggregator and at every site, and hashed: sites refuse another. This page is
made from its schema, which `rankdad schema` prints. A field without a default has to be there; one that is not known is
refused by name. [studies.md](studies.md) says what to choose, [mathematics.md](mathematics.md) what methods do.

A file for `rankdad simulate` is `{"run": SPEC, "simulation": …}`, such as
[digits.json](../simulations/specs/digits.json), with [its second part](#simulation). [A site's own file](#sitejson) is
neither hashed nor sent.
"""
OTHERS: dict[str, tuple[type[BaseModel], str]] = {
    "SITE.json": (SiteConfig, "What `rankdad site`, `rankdad check` and `rankdad resolve` take."),
    "policy.json": (
        Policy,
        "What `policy` of a site's file names. [operation.md](operation.md) says what each line lets out.",
    ),
    "simulation": (SimulationSpec, "The second part of a file for `rankdad simulate`."),
}
Schema = dict[str, Any]


def page() -> str:
    """Return the page."""
    lines = [HEAD, *fields_of(RunSpec)]
    for name, (model, use) in OTHERS.items():
        lines += ["", f"## {name}", "", use, "", *fields_of(model)]
    return "\n".join(lines) + "\n"


def fields_of(model: type[BaseModel]) -> list[str]:
    """Return the lines of an object's fields, and of the objects in them."""
    schema = model.model_json_schema()
    defs, seen, lines = schema.get("$defs", {}), set[str](), table(schema)
    for name, field in schema["properties"].items():
        for part in parts(field):
            lines += section(name, part, defs, seen, "##" if model is RunSpec else "###")
    return lines


def parts(field: Schema) -> list[str]:
    """Return the names of the objects that a field may hold."""
    if "$ref" in field:
        return [field["$ref"].rpartition("/")[2]]
    values = [*field.get("patternProperties", {}).values(), *field.get("anyOf", []), *field.get("oneOf", [])]
    values += [field["items"]] if "items" in field else []
    return [name for one in values for name in parts(one)]


def section(path: str, part: str, defs: Schema, seen: set[str], level: str) -> Iterator[str]:
    """Yield the lines of one object, and of the objects in it."""
    if part in seen or "properties" not in defs[part]:
        return
    seen.add(part)
    schema = defs[part]
    tags = [
        f'`"{key}": {json.dumps(field["const"])}`' for key, field in schema["properties"].items() if "const" in field
    ]
    yield from ("", f"{level} `{path}`{', ' * bool(tags)}{', '.join(tags)}", "", text(schema), "", *table(schema))
    for name, field in schema["properties"].items():
        for inner in parts(field):
            yield from section(f"{path}.{name}", inner, defs, seen, "###")


def table(schema: Schema) -> list[str]:
    """Return a row for each field."""
    fields = {name: field for name, field in schema["properties"].items() if "const" not in field}
    if not fields:
        return []
    rows = [
        f"| `{name}` | {kind(field)} | {default(name, field, schema)} | {text(field)} |"
        for name, field in fields.items()
    ]
    return ["| field | value | default | what it says |", "|---|---|---|---|", *rows]


def kind(field: Schema) -> str:
    """Return what a field may hold, in words."""
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return ", ".join(f"`{json.dumps(value)}`" for value in field["enum"])
    if field.get("type") == "array":
        pair = " and ".join(dict.fromkeys(kind(one) for one in field.get("prefixItems", [])))
        return f"list of {kind(field['items'])}" if field.get("items") else f"pair of {pair}" if pair else "list"
    if names := parts(field):
        null = " or null" if {"type": "null"} in field.get("anyOf", []) else ""
        return ("object" if len(names) == 1 else "one of several objects") + null
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(kind(one) for one in field["anyOf"]))
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [f"{sign} {field[key]:,}" for key, sign in bounds.items() if key in field and abs(field[key]) < 1e6]
    return " ".join([str(field.get("type", "anything")), ", ".join(limits)]).strip()


def default(name: str, field: Schema, schema: Schema) -> str:
    """Return a field's default."""
    if "default" not in field:
        return "**required**" if name in schema.get("required", []) else ""
    value = json.dumps(field["default"])
    return f"`{value}`" if len(value) < 40 else "see there"


def text(schema: Schema) -> str:
    """Return a description as one cell of a table."""
    return " ".join(str(schema.get("description", "")).split()).replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
