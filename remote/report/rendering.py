"""Jinja2 templates: HTML escapes every value, and a value that is missing is an error."""

from __future__ import annotations

from pathlib import Path


def render(folder: Path, name: str, **values: object) -> str:
    """Return the text that a template makes of some values.

    Markdown has no rule for escaping: what goes into a `.md` template must come from this project.

    Args:
        folder: of the templates.
        name: of the template's file; its ending says what it makes.
        values: what the template calls by name.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=select_autoescape(disabled_extensions=["md"], default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name).render(values)
