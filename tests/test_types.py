"""Type checkers find the package: they follow paths, and no finder that runs at import."""

from __future__ import annotations

import ast
from pathlib import Path

import rankdad

ROOT = Path(__file__).parent.parent


def test_every_public_name_is_imported_for_type_checkers_from_a_file_that_exists() -> None:
    package = ROOT / "rankdad"
    found = dict[str, Path]()
    for node in ast.walk(ast.parse((package / "__init__.py").read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rankdad."):
            place = package.joinpath(*str(node.module).split(".")[1:])
            found |= {alias.asname or alias.name: place for alias in node.names}
    assert set(rankdad.__all__) - {"__version__"} <= found.keys()
    for place in found.values():
        assert place.with_suffix(".py").is_file() or (place / "__init__.py").is_file(), place
    assert (package / "py.typed").is_file()
