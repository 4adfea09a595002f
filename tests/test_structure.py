"""Imports run one way: local → common, remote → common, platforms and simulations → those, benchmarks → simulations.

What docstrings and pages call a module or a file is one.
"""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rankdad

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "common": {"common"},
    "local": {"common", "local"},
    "remote": {"common", "remote"},
    "platforms": {"common", "local", "remote", "platforms"},
    "simulations": {"common", "local", "remote", "simulations"},
    "benchmarks": {"common", "local", "remote", "simulations", "benchmarks"},
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
    return names


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_run_one_way(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        imported = imports_of(path)
        tops = {name.partition(".")[0] for name in imported}
        assert not tops & (set(ALLOWED) - {"benchmarks"}), f"{path}: packages are imported from rankdad"
        inner = {name.split(".")[1] for name in imported if name.startswith("rankdad.")} | (tops & {"benchmarks"})
        assert inner <= ALLOWED[package] | {"command"}, path
        assert "pickle" not in tops, path
        if package == "common":
            assert not tops & FORBIDDEN_IN_COMMON, path


def test_the_public_names_can_be_imported_and_take_no_torch() -> None:
    for name in rankdad.__all__:
        assert getattr(rankdad, name) is not None
    code = f"import sys, {rankdad.__name__}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_modules_named_in_docstrings_and_files_named_in_pages_exist() -> None:
    names, gone = "|".join(ALLOWED), []
    for path in (path for package in ALLOWED for path in (ROOT / package).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(rf"(?<!\w\.)`((?:{names})(?:\.\w+)+)", text):
            try:
                pkgutil.resolve_name(name if name.startswith("benchmarks") else f"rankdad.{name}")
            except (ImportError, AttributeError):
                gone.append(f"{path}: {name}")
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        found = re.findall(rf"`((?:{names}|docs|tests|docker)/[\w./-]*)", page.read_text(encoding="utf-8"))
        gone += [f"{page}: {name}" for name in found if not (ROOT / name).exists()]
    assert not gone
