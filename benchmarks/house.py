"""How much code there is to carry on, room by room, how it reads, and whether imports run one way.

Of a checkout from before the same is printed: `python -m benchmarks house FOLDER`.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from statistics import mean, median

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
PRODUCT = ("common", "distributed", "page", "local", "remote", "platforms", "simulations", "rankdad")
ROOMS = (*PRODUCT, "benchmarks", "tests")
MOST = 400  # lines of a file


@dataclass(frozen=True)
class Room:
    """What a room comes to.

    Args:
        lines: of all its files.
        longest: files of more than 400 lines, by name.
        functions: lines of each function.
        documented: share of its functions and classes that have a docstring.
        widths: characters of each line that is not empty.
    """

    lines: int
    longest: Mapping[str, int]
    functions: tuple[int, ...]
    documented: float
    widths: tuple[int, ...]


def files_of(root: Path, room: str) -> list[Path]:
    """Return a room's files; links to other rooms are not followed."""
    files = (root / room).rglob("*.py")
    return sorted(file for file in files if not any((root / p).is_symlink() for p in file.relative_to(root).parents))


def room_of(root: Path, room: str, without: str = "/privacy/") -> Room:
    """Return a folder's totals, without subfolders that have separate limits."""
    texts = {
        file: file.read_text(encoding="utf-8")
        for file in files_of(root, room)
        if without not in str(file.relative_to(root))
    }
    nodes = [node for text in texts.values() for node in ast.walk(ast.parse(text))]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    public = [node for node in [*functions, *(n for n in nodes if isinstance(n, ast.ClassDef))] if node.name[0] != "_"]
    counts = {str(file.relative_to(root)): text.count("\n") for file, text in texts.items()}
    return Room(
        sum(counts.values()),
        {name: count for name, count in counts.items() if count > MOST},
        tuple((node.end_lineno or node.lineno) - node.lineno + 1 for node in functions),
        sum(ast.get_docstring(node) is not None for node in public) / max(1, len(public)),
        tuple(len(line) for text in texts.values() for line in text.splitlines() if line.strip()),
    )


def imports(root: Path) -> dict[str, set[str]]:
    """Return which modules of the product each imports, in functions, too; for type checkers alone is none."""
    files = {_name(root, file): file for room in PRODUCT for file in files_of(root, room)}
    found = {}
    for name, file in files.items():
        wanted = _imported(ast.parse(file.read_text(encoding="utf-8")))
        found[name] = {own for own in (_among(files, *one) for one in wanted) if own not in ("", name)}
    return found


def _among(files: Container[str], module: str, name: str) -> str:
    """Return the imported module: a package's submodule, or the module that defines the name; "" for none."""
    meant = (f"{module}.{name}", module, f"rankdad.{module}.{name}", f"rankdad.{module}")
    return next((one for one in meant if one in files), "")


def _name(root: Path, file: Path) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield imports of our modules."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.ImportFrom) and (child.module or "").startswith("rankdad."):
            yield from ((str(child.module).removeprefix("rankdad."), alias.name) for alias in child.names)
        yield from _imported(child)


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return modules that import one another in a circle, the first one twice; none where imports go in no circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def bench_house(root: Path, console: Console) -> None:
    """Print a checkout's totals."""
    shown = Table(
        "room",
        "lines",
        "files past 400",
        "function: median, mean",
        "public names with a docstring",
        "line: median, mean",
    )
    for room in ROOMS:
        own = room_of(root, room)
        if not own.lines:
            continue
        lengths, widths = (f"{median(each):g}, {mean(each):.1f}" for each in (own.functions or (0,), own.widths))
        past = ", ".join(f"{Path(name).name} {lines}" for name, lines in own.longest.items())
        shown.add_row(room, f"{own.lines:,}", past or "none", lengths, f"{own.documented:.0%}", widths)
    console.print(shown)
    graph = imports(root)
    console.print(
        f"lines are without those of privacy; {len(graph)} modules have {sum(map(len, graph.values())):,} imports"
    )
    console.print(f"circle of imports: {' → '.join(circle(graph)) or 'none'}")
    if root == ROOT:
        from benchmarks.way import way_of_a_contribution

        way = way_of_a_contribution(root)
        console.print(f"a contribution goes through {len(way)} files: {', '.join(way)}")
