"""Jinja2 templates: HTML escapes every value, and a value that is missing is an error."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def render(folder: Path, name: str, **values: object) -> str:
    """Return the text that a template makes of some values.

    Markdown has no rule for escaping: what goes into a `.md` template must come from this project.

    Args:
        folder: of the templates.
        name: of the template's file; its ending says what it makes.
        values: what the template calls by name.
    """
    return _environment(folder).get_template(name).render(values)


@cache  # of a few folders: what a template is compiled to is kept with it
def _environment(folder: Path) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=select_autoescape(disabled_extensions=["md"], default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
