"""Imports run one way: local, remote and distributed → common, platforms and simulations → those, benchmarks → all.

A region's aggregator is a site to the one above, and reaches it with a site's client.
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
from benchmarks.house import circle, imports
from benchmarks.way import way_of_a_contribution
from rankdad.common.methods import METHODS

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "common": {"common"},
    "page": {"common", "page"},
    "distributed": {"common", "distributed"},
    "local": {"common", "local", "page"},
    "remote": {"common", "page", "remote"},
    "platforms": {"common", "local", "remote", "platforms"},
    "simulations": {"common", "local", "remote", "simulations"},
    "benchmarks": {"common", "distributed", "local", "remote", "simulations", "benchmarks"},
}
STARTING = {"given", "simulate_command"}  # of the library: what benchmarks start runs with, too
LIBRARY = {"library", "runs", "settings", "showing"} | STARTING  # modules of the package itself, above all rooms
ABOVE = {"rankdad.local.config", "rankdad.local.drivers.http", "rankdad.local.starting"}  # a region is a site above
WORKERS = {"common/data/lazy.py"}  # files are read ahead by processes of torch's
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


@pytest.mark.slow
@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_run_one_way(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        imported = imports_of(path) - (ABOVE if package == "remote" else set())
        tops = {name.partition(".")[0] for name in imported}
        assert not tops & (set(ALLOWED) - {"benchmarks"}), f"{path}: packages are imported from rankdad"
        inner = {name.split(".")[1] for name in imported if name.startswith("rankdad.")} | (tops & {"benchmarks"})
        starting = STARTING if package == "benchmarks" else set()
        assert inner <= ALLOWED[package] | {"command"} | starting, path
        assert "pickle" not in tops, path
        if package == "common" and str(path.relative_to(ROOT)) not in WORKERS:
            assert not tops & FORBIDDEN_IN_COMMON, path


def test_lowrank_needs_torch_alone_and_nothing_of_ours() -> None:
    for path in (ROOT / "common" / "lowrank").rglob("*.py"):
        foreign = {name for name in imports_of(path) if not name.startswith("rankdad.common.lowrank")}
        tops = {name.partition(".")[0] for name in foreign}
        assert tops - sys.stdlib_module_names <= {"torch", "numpy"}, path


@pytest.mark.slow
def test_the_http_library_is_imported_in_one_place() -> None:
    """So that its continuation, httpx2, is a change of that file."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = {name for name in listed.split() if imports_of(ROOT / name) & {"httpx", "httpx2", "httpcore", "httpcore2"}}
    assert named == {"local/drivers/http_library.py", "tests/coinstac/nodes.py"}  # a driver without the product


def test_the_driver_of_the_platform_imports_nothing_of_the_product() -> None:
    files = [*(ROOT / "tests" / "coinstac").glob("*.py"), ROOT / "tests" / "ports.py"]
    assert len(files) > 10
    for path in files:
        foreign = {name for name in imports_of(path) if name.partition(".")[0] not in sys.stdlib_module_names}
        others = {name for name in foreign if not name.startswith(("tests.coinstac.", "websockets"))}
        assert others <= {"httpx", "pytest", "tests.ports"}, path


def test_results_are_computed_without_what_shows_them() -> None:
    shows = ("rankdad.remote.report", "rankdad.remote.view", "jinja2", "markupsafe", "matplotlib", "rich")
    for path in (ROOT / "remote" / "results").glob("*.py"):
        assert not [name for name in imports_of(path) if name.startswith(shows)], path


@pytest.mark.slow
def test_imports_go_in_no_circle() -> None:
    assert set(circle({"a": {"b", "c"}, "b": {"c"}, "c": {"b"}, "d": {"a"}})) == {"b", "c"}
    assert circle({"a": {"b"}, "b": set()}) == []
    found = imports(ROOT)
    assert {"rankdad.runs", "simulations.lockstep"} <= found["rankdad.library"]
    assert circle(found) == []


def test_nobody_outside_of_rounds_asks_what_kind_a_round_is_to_pool_or_check_it() -> None:
    for room in ("local", "remote", "platforms"):
        for path in (ROOT / room).rglob("*.py"):
            chain = re.search(r"elif (isinstance\(\w*\.?body,|\w+\.kind is Kind\.)", path.read_text(encoding="utf-8"))
            assert chain is None, path


def test_nobody_asks_which_method_it_is() -> None:
    names = "|".join(options.__name__ for options in METHODS.values())
    for room in sorted(set(ALLOWED) - {"benchmarks"}):
        for path in (ROOT / room).rglob("*.py"):
            asks = re.search(rf"isinstance\([^)]*\b({names})\b", path.read_text(encoding="utf-8"))
            assert asks is None or path.is_relative_to(ROOT / "distributed"), path


def test_the_library_stands_above_the_rooms_and_the_package_itself_imports_nothing_heavy() -> None:
    for path in (ROOT / "rankdad").glob("*.py"):
        inner = {name.split(".")[1] for name in imports_of(path) if name.startswith("rankdad.")}
        assert inner <= {*ALLOWED, "command"} - {"benchmarks"} | LIBRARY, path
        assert path.stem in LIBRARY or not inner & LIBRARY or path.stem == "__init__", path
    assert {path.stem for path in (ROOT / "rankdad").glob("*.py")} >= LIBRARY


def test_the_public_names_can_be_imported() -> None:
    for name in rankdad.__all__:
        assert getattr(rankdad, name) is not None


@pytest.mark.parametrize("module", ["rankdad", "rankdad.local.agent.agent"])  # an idle agent has a tenth of the memory
def test_what_needs_no_torch_does_not_import_it(module: str) -> None:
    code = f"import sys, {module}; assert 'torch' not in sys.modules"
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
    for page in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("[!_g]*/*.md"),
        *(ROOT / "docs").glob("*.md"),
    ):
        found = re.findall(rf"`((?:{names}|docs|tests|docker)/[\w./-]*)", page.read_text(encoding="utf-8"))
        gone += [f"{page}: {name}" for name in found if not (ROOT / name).exists()]
    assert not gone


@pytest.mark.slow
@pytest.mark.xdist_group("one")
def test_tests_of_a_group_stay_with_one_worker(request: pytest.FixtureRequest) -> None:
    """What takes an engine or a browser would else run in several workers at once."""
    if request.config.getoption("dist", "no") == "loadgroup":
        assert request.node.nodeid.endswith("@one")


def test_a_contribution_goes_through_few_files() -> None:
    way = way_of_a_contribution(ROOT)
    assert way[0] == "local/site.py"
    assert {"local/passes.py", "common/lowrank/capture.py", "remote/aggregator.py"} <= set(way)
    assert len(way) <= 30, way
