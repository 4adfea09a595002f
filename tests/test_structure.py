"""Imports run one way: local → common, remote → common, simulations → all."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = {"common", "local", "remote", "simulations", "platforms"}
ALLOWED = {
    "common": {"common"},
    "local": {"common", "local"},
    "remote": {"common", "remote"},
    "simulations": {"common", "local", "remote", "simulations"},
    "platforms": {"common", "local", "remote", "platforms"},
}
FORBIDDEN_IN_COMMON = {"socket", "time", "asyncio", "threading", "subprocess", "multiprocessing", "pickle"}


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("folder", sorted(ALLOWED))
def test_imports_run_one_way(folder: str) -> None:
    files = list((ROOT / folder).rglob("*.py"))
    assert files
    for path in files:
        imported = imports_of(path)
        assert imported & FOLDERS <= ALLOWED[folder], path
        assert "pickle" not in imported, path
        if folder == "common":
            assert not imported & FORBIDDEN_IN_COMMON, path
