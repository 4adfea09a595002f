"""Prints the page of the spec from its schema: `python docs/make_spec.py > docs/reference/spec.md`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, TypeAdapter

from rankdad.common.policy import Policy
from rankdad.common.spec import RunSpec
from rankdad.local.config import SiteConfig
from rankdad.simulations.spec import SimulationSpec

HEAD = """# The spec

A run is one JSON object, the same at the aggregator and at every site, and hashed: sites refuse another. This page is
made from its [JSON Schema](https://json-schema.org), which `rankdad schema` prints and this site has as
`spec.schema.json`: an editor that reads it completes and checks a spec. A field without a default is required; an
unknown one is refused by name. [A study](../how-to/study.md) says what to choose,
[the method](../explanation/method.md) what methods do.

A file for `rankdad simulate` is `{"run": SPEC, "simulation": …}`, such as
[digits.json](../../simulations/specs/digits.json), with [its second part](#simulation). [A site's own file](#sitejson)
is neither hashed nor sent.
"""
OTHERS: dict[str, tuple[type[BaseModel], str]] = {
    "SITE.json": (SiteConfig, "What `rankdad site`, `rankdad check` and `rankdad resolve` take."),
    "policy.json": (
        Policy,
        "What `policy` of a site's file names. [The policy](policy.md) says what each field holds back.",
    ),
    "simulation": (SimulationSpec, "The second part of a file for `rankdad simulate`."),
}
EXAMPLES = (  # of `data`, by reader
    '{"reader": "npz", "file": "scans.npz", "shape": [100, 20]}',
    """{"reader": "csv", "file": "freesurfer.csv", "covariates": "participants.csv", "key": "subject",
 "features": ["*"], "exclude": ["iq"], "label": "autism", "values": [0, 1]}""",
    """{"reader": "freesurfer", "covariates": "participants.csv", "key": "file", "features": ["Left-*", "Right-*"],
 "covariate_features": ["age"], "label": "autism", "values": [0, 1]}""",
    """{"reader": "nifti", "file": "scans.csv", "shape": [64, 64, 48], "key": "scan", "group": "subject",
 "label": "diagnosis", "values": ["control", "patient"]}""",
    '{"reader": "images", "size": [64, 64], "mode": "grey", "resize": true, "values": ["benign", "malignant"]}',
    """{"reader": "series", "file": "vitals.csv", "covariates": "stays.csv", "key": "stay", "time": "minute",
 "features": ["heart_rate", "spo2"], "frames": 120, "longer": "last", "missing": "carry", "label": "died",
 "values": ["no", "yes"], "group": "patient"}""",
    """{"reader": "text", "file": "reports.csv", "column": "report", "length": 512, "longer": "first",
 "label": "finding", "values": ["no", "yes"], "group": "patient"}""",
    """{"reader": "function", "function": "ourdata:read", "arguments": {"atlas": "aal"}, "shape": [116, 116]}""",
)
Schema = dict[str, Any]


def page() -> str:
    """Return the page."""
    seen: set[str] = set()
    lines = [HEAD, *fields_of(RunSpec, seen)]
    for name, (model, use) in OTHERS.items():
        lines += ["", f"## {name}", "", use, "", *fields_of(model, seen)]
        seen.add(model.__name__)
    return "\n".join(lines) + "\n"


def fields_of(model: type[BaseModel], seen: set[str]) -> list[str]:
    """Return the lines of an object's fields, and of the objects in them that no other section has."""
    schema = model.model_json_schema()
    lines = table(schema["properties"], schema)
    return lines + list(sections("", schema, schema.get("$defs", {}), seen, "##" if model is RunSpec else "###"))


def sections(path: str, schema: Schema, defs: Schema, seen: set[str], level: str) -> Iterator[str]:
    """Yield the lines of the objects that an object's fields may hold; what several of one field share comes once."""
    for name, field in schema["properties"].items():
        one = f"{path}.{name}" if path else name
        members = [part for part in dict.fromkeys(parts(field)) if part not in seen and "properties" in defs[part]]
        seen.update(members)
        shared = shared_fields([defs[part] for part in members])
        if shared:
            yield from ("", f"{level} `{one}`: fields of several", "")
            titles = {short(defs[part]): defs[part] for part in members}
            yield from ("| field | value | default | of | what it says |", "|---|---|---|---|---|")
            for key, inner in shared.items():
                has = [tag for tag, member in titles.items() if row(key, member) == row(key, inner)]
                of = "all" if len(has) == len(titles) else ", ".join(has)
                left, cells = row(key, inner)
                yield f"| {left} | {of} | {cells} |"
        for part in members:
            own = {key: f for key, f in defs[part]["properties"].items() if not is_shared(key, defs[part], shared)}
            tag = title(defs[part])
            yield from ("", f"{level} `{one}`{', ' * bool(tag)}{tag}", "", text(defs[part]))
            if one == "data":
                yield from ("", "```json", *example(defs[part]).splitlines(), "```")
            if rows := table(own, defs[part]):
                yield from ("", *rows)
        for part in members:
            yield from sections(one, defs[part], defs, seen, "###")


def example(schema: Schema) -> str:
    """Return the example of a reader."""
    reader = schema["properties"]["reader"].get("const", schema["properties"]["reader"].get("default"))
    (found,) = (one for one in EXAMPLES if json.loads(one)["reader"] == reader)
    kind: Any = RunSpec.model_fields["data"].annotation
    TypeAdapter(kind).validate_json(found)
    return found


def title(schema: Schema) -> str:
    """Return what an object is recognised by: its fields of one value."""
    tags = {key: json.dumps(field["const"]) for key, field in schema["properties"].items() if "const" in field}
    return ", ".join(f'`"{key}": {value}`' for key, value in tags.items())


def short(schema: Schema) -> str:
    """Return what an object is called beside others of its field."""
    values = [field["const"] for key, field in schema["properties"].items() if "const" in field and key != "direction"]
    return f"`{values[0]}`" if values else "the other"


def shared_fields(members: list[Schema]) -> Schema:
    """Return the objects that have the fields which several of them describe in the same words, by field."""
    found: Schema = {}
    for member in members:
        for key, field in member["properties"].items():
            alike = [one for one in members if key in one["properties"] and row(key, one) == row(key, member)]
            if "const" not in field and key not in found and len(alike) > 1:
                found[key] = member
    return found


def is_shared(key: str, schema: Schema, shared: Schema) -> bool:
    """Return whether the table of what several objects share has this one's field."""
    return key in shared and row(key, schema) == row(key, shared[key])


def row(key: str, schema: Schema) -> tuple[str, str] | None:
    """Return a field's name, value and default as cells of a table, and its description; None if there is none."""
    field = schema["properties"].get(key)
    return field and (f"`{key}` | {kind(field)} | {default(key, field, schema)}", text(field))


def table(fields: Schema, schema: Schema) -> list[str]:
    """Return a row for each of an object's fields but those of one value."""
    rows = [row(key, schema) for key, field in fields.items() if "const" not in field]
    if not rows:
        return []
    return ["| field | value | default | what it says |", "|---|---|---|---|"] + [
        f"| {' | '.join(one)} |" for one in rows if one
    ]


def parts(field: Schema) -> list[str]:
    """Return the names of the objects that a field may hold."""
    if "$ref" in field:
        return [field["$ref"].rpartition("/")[2]]
    values = [*field.get("patternProperties", {}).values(), *field.get("anyOf", []), *field.get("oneOf", [])]
    values += [field["items"]] if "items" in field else []
    return [name for one in values for name in parts(one)]


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
        plain = [kind(one) for one in field.get("oneOf", []) if not parts(one)]
        return " or ".join([*plain, "object" if len(names) == 1 else "one of several objects"]) + null
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
