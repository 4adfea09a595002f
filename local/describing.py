"""`rankdad describe`: profiles of a table or of many sites' tables, as text, JSON or a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from rankdad.common.data.compared import compared
from rankdad.common.data.files import left_out, places_of_sites, tables_in
from rankdad.common.data.profile import MAX_LEVELS, Column, Profile, profile_of
from rankdad.common.data.table_files import TABLES, read_guessing
from rankdad.common.documents import validate
from rankdad.common.errors import DataError, UserError, visible
from rankdad.common.preparation.labels import counts_of, one_sided
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import Classification
from rankdad.common.spec.written import Tabular, Written

FEW = 8  # levels that are shown of a column


@dataclass(frozen=True)
class Description:
    """What was found.

    Args:
        tables: profiles, by site and file.
        problems: what keeps a table from being read, or a site from taking part; one sentence each.
        notes: what a site would be told that can take part.
    """

    tables: Mapping[str, Profile]
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return {"tables": {name: asdict(own) for name, own in self.tables.items()}, "problems": list(self.problems),
                "notes": list(self.notes)}  # fmt: skip


def describe(data: Path, spec: RunSpec | None = None, columns: tuple[str, ...] = ()) -> Description:
    """Describe a table, a folder of tables, or a folder with a folder of tables for each site.

    Args:
        data: the file or folder.
        spec: a run whose schema the tables should fit; each site is then read as it would be for training.
        columns: names of the tables' columns, where their first rows name none.

    Raises:
        DataError: there is no table.
        UserError: a name cannot be a column's.
    """
    written = validate(Written, {"columns": columns})
    if spec is not None and isinstance(spec.data, Written):
        written = spec.data
    alike: dict[str, dict[str, Profile]] = {}  # what is compared: by file's name, or of one folder by the columns
    listed = list(_tables(data))
    problems = [str(error) for error in left_out(data)] if data.is_dir() else []
    folders = Counter(path.parent for _, path in listed)
    for name, path in listed:
        try:
            table, guess = read_guessing(path, written)
            profile = profile_of(table)
            group = path.name if max(folders.values()) > 1 else ""
            if path.parent == data or path == data:
                group = "\n".join(sorted(profile.by_name))
            alike.setdefault(group, {})[name] = profile
            problems += [guess] if guess else []
        except UserError as error:
            problems.append(str(error))
    labels = None if spec is None else spec.data.targets if isinstance(spec.data, Tabular) else ()
    tables = {name: own for group in alike.values() for name, own in compared(group, labels).items()}
    notes = list[str]()
    if spec is not None:
        problems, notes = _refusals(data, spec)
    return Description(tables, tuple(problems), tuple(notes))


def _tables(data: Path) -> Iterator[tuple[str, Path]]:
    """Yield every table with a name that tells it from the others."""
    if data.is_file():
        yield data.name, data
        return
    own = tables_in(data)
    for path in own:
        yield path.name, path
    inner = [(folder, tables_in(folder)) for folder in sorted(data.iterdir()) if folder.is_dir()]
    if not own and not any(files for _, files in inner):
        raise DataError(data, f"holds no table ({', '.join(TABLES)}), nor a folder with one", code="no-table")
    for folder, files in inner:
        for path in files:
            yield f"{folder.name}/{path.name}", path


def _refusals(data: Path, spec: RunSpec) -> tuple[list[str], list[str]]:
    """Return the refusal of every site, if any, and its warnings."""
    from rankdad.common.data import read_site

    sites = places_of_sites(data, spec.federation.sites) if data.is_dir() else {}
    named = {site: sites[site] for site in spec.federation.sites if site in sites}
    problems = [
        f"{data}: has no folder for the site {site}" for site in spec.federation.sites if named and site not in named
    ]
    notes = list[str]()
    for index, (site, folder) in enumerate((named or {"": data}).items()):
        try:
            read = read_site(spec, folder, index)
            notes += [f"{site}: {note}" if site else note for note in read.notes]
            if isinstance(spec.task, Classification):
                notes += one_sided(counts_of(spec.task, read.samples.labels).tolist(), site or data.name)
        except UserError as error:
            problems.append(f"{site}: {error}" if site else str(error))
    return problems, notes


def show(found: Description, console: Console) -> None:
    """Print profiles as tables."""
    for name, profile in found.tables.items():
        grid = Grid(
            "column", "holds", "missing", "values", "remarks", title=f"{escape(visible(name))}: {profile.rows} rows"
        )
        for column in profile.columns:
            grid.add_row(*(escape(visible(cell, 400)) for cell in cells(column, profile.rows)))
        console.print(grid)
        for remark in profile.remarks:
            console.print(f"{visible(name)}: {visible(remark.text)}", highlight=False, markup=False)
    for note in found.notes:
        console.print(f"note: {visible(note, 4000)}", highlight=False, markup=False)
    for problem in found.problems:
        console.print(f"problem: {visible(problem, 4000)}", highlight=False, markup=False)


def cells(column: Column, rows: int) -> tuple[str, str, str, str, str]:
    """Return what is shown of a column: its name, kind, gaps, values and remarks."""
    missing = f"{column.missing} ({column.missing / rows:.0%})" if column.missing else "–"
    remarks = "; ".join(remark.text for remark in column.remarks)
    return column.name, column.kind, missing, _values(column), remarks


def _values(column: Column) -> str:
    known = column.numbers
    if column.dates:
        return f"{column.dates[0]} to {column.dates[1]}"
    if known and column.distinct > FEW:
        return f"{known['least']:g} to {known['largest']:g}, median {known['median']:g}, {column.zeros} zeros"
    if column.levels and column.distinct <= MAX_LEVELS and column.kind != "text":
        some = ", ".join(f"{level}: {count}" for level, count in list(column.levels.items())[:FEW])
        return some + ", …" * (len(column.levels) > FEW)
    return f"{column.distinct} different" if column.distinct else "–"


def page(found: Description) -> str:
    """Return profiles as a page of HTML."""
    rows = {
        name: [[visible(cell, 400) for cell in cells(column, own.rows)] for column in own.columns]
        for name, own in found.tables.items()
    }
    return render("describe.html", found=found, rows=rows)


def render(name: str, **values: object) -> str:
    """Return a page of this package."""
    environment = Environment(loader=PackageLoader("rankdad.local"), autoescape=True, trim_blocks=True)
    return environment.get_template(name).render(values)
