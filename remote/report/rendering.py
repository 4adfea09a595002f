"""Jinja2 templates with HTML escaping; missing values raise an error that names the run."""

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
    """Render a template. Values of a `.md` template are not escaped and must come from this project.

    Args:
        folder: the folder of templates.
        name: file name of the template; `.md` disables escaping.
        values: variables of the template.
    """
    return _environment(folder).get_template(name).render(values)


@contextmanager
def damage_named(directory: Path) -> Iterator[None]:
    """Convert errors from invalid contents of a run's files into an error that names the directory.

    Raises:
        UserError: the contents are invalid.
    """
    from jinja2 import UndefinedError

    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, UndefinedError) as error:
        problem = f"have invalid contents ({one_line(error)}): are they damaged?"
        raise UserError(f"{directory}: its summary.json or its tables {problem}", code="run-damaged") from error


@cache  # keeps compiled templates
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
