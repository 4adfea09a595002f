"""Jinja2 templates: HTML escapes every value, and a value that is missing is an error, which names the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rankdad.common.errors import UserError, one_line

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


@contextmanager
def damage_named(directory: Path) -> Iterator[None]:
    """Name a run's directory whose files can be read, and hold what no run writes.

    Raises:
        UserError: they do.
    """
    from jinja2 import UndefinedError

    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, UndefinedError) as error:
        problem = f"hold what no run has written ({one_line(error)}): are they damaged?"
        raise UserError(f"{directory}: its summary.json or its tables {problem}", code="run-damaged") from error


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
