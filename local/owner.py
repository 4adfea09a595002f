"""Commands of the owners of runs: `rankdad ask`, `submit`, `runs`, `logs`, `cancel` and `fetch`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankdad.common.errors import PARTLY, UserError, visible
from rankdad.common.files import cannot_write

if TYPE_CHECKING:
    from rankdad.common.protocol.service import Asked, Described
    from rankdad.local.drivers.service import ServiceClient

SERVICE = "RANKDAD_SERVICE"  # in the environment: what --to would say
PATIENCE = 30.0  # seconds for which a person waits for a service that does not answer
LOG_PERIOD = 2.0  # seconds
ANSWER_PERIOD = 0.5  # seconds
SUMS = "SHA256SUMS"

To = Annotated[
    str,
    typer.Option(
        metavar="URL|OWNER.json", envvar=SERVICE, help="Address of the service, or the OWNER.json of your kit."
    ),
]
Token = Annotated[Path | None, typer.Option("--token-file", help="File with the token; by default RANKDAD_TOKEN.")]
Ca = Annotated[Path | None, typer.Option("--ca", help="CA certificate of the service, PEM.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run, as `rankdad runs` lists it.")]
SpecFile = Annotated[Path, typer.Argument(metavar="RUN.json", help="Spec of the run, alone or under the key 'run'.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=JSON", help="Replace a value of the file.")]


def submit(file: SpecFile, to: To, set_: Set = None, token_file: Token = None, ca: Ca = None) -> None:
    """Submit a run to a service; it starts when all its sites have joined and the queue allows it."""
    import secrets

    from rankdad.common.spec import RunSpec

    spec = RunSpec.read(file, set_ or [])
    with _service(to, token_file, ca) as client:
        run = client.submit(secrets.token_hex(8), spec.document())
    typer.echo(f"{run.run}: {_state(run)}")


def ask(
    file: SpecFile,
    to: To,
    set_: Set = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the sites' answers.", min=0.0, max=3600.0)] = 60.0,
    token_file: Token = None,
    ca: Ca = None,
) -> None:
    """Ask the sites whether their policies would allow a run; exit status 3 unless all would."""
    import secrets
    import time

    from rankdad.common.spec import RunSpec

    spec, end = RunSpec.read(file, set_ or []), time.monotonic() + wait
    with _service(to, token_file, ca) as client:
        asked = client.ask(secrets.token_hex(8), spec.document())
        while len(asked.stances) < len(asked.sites) and (left := end - time.monotonic()) > 0:
            time.sleep(min(ANSWER_PERIOD, left))
            asked = client.asked(asked.id)
    _show_answers(asked)
    if any(site not in asked.stances or asked.stances[site].refusals for site in asked.sites):
        raise typer.Exit(PARTLY)


def _show_answers(asked: Asked) -> None:
    """Print the sites' answers, with a row for each policy line that would refuse."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for name in ("site", "answer", "policy", "the run needs", "for"):
        table.add_column(name, overflow="fold")
    for site in asked.sites:
        stance = asked.stances.get(site)
        if stance is None:
            rows = [("has not answered: is its agent running?", "", "", "")]
        elif not stance.refusals:
            rows = [(f"would take part{', after approval by its staff' * stance.by_hand}", "", "", "")]
        else:
            rows = [(f"would refuse ({one.code})", one.line, one.needed, one.field) for one in stance.refusals]
        for row in rows:
            table.add_row(*(Text(visible(cell)) for cell in (site, *row)))
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)
    typer.echo("answers are from policies and settings; data are checked when the run is submitted", err=True)


def runs(to: To, token_file: Token = None, ca: Ca = None) -> None:
    """List the runs of a service, newest first."""
    from datetime import datetime

    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    with _service(to, token_file, ca) as client:
        found = client.runs().runs
    if not found:
        typer.echo("no run yet: rankdad submit RUN.json")
        return
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("run", "owner", "submitted", "steps", "state"):
        table.add_column(name, overflow="fold", justify="right" if name == "steps" else "left")
    for run in found:
        when = f"{datetime.fromtimestamp(run.submitted):%Y-%m-%d %H:%M}"
        steps = f"{run.step} of {run.steps}" if run.steps else ""
        table.add_row(*(Text(visible(cell)) for cell in (run.run, run.owner, when, steps, _state(run))))
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)


def logs(
    run: Run,
    to: To,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the run has ended.")] = False,
    token_file: Token = None,
    ca: Ca = None,
) -> None:
    """Print the log of a run."""
    import codecs
    import time

    from rankdad.common.protocol.service import OPEN

    with _service(to, token_file, ca) as client:
        after, decoder, line = 0, codecs.getincrementaldecoder("utf-8")("replace"), ""
        while True:
            over = not follow or client.run(run).state not in OPEN
            while piece := client.log(run, after):  # may end within a line or a UTF-8 sequence
                after += len(piece)
                *lines, line = (line + decoder.decode(piece)).split("\n")
                for whole in lines:
                    typer.echo(visible(whole, 4000))
            if over:
                break
            time.sleep(LOG_PERIOD)
        if line := line + decoder.decode(b"", final=True):
            typer.echo(visible(line, 4000))
        described = client.run(run)
    typer.echo(f"{run}: {_state(described)}", err=True)


def cancel(run: Run, to: To, token_file: Token = None, ca: Ca = None) -> None:
    """Cancel one of your runs, waiting or training."""
    with _service(to, token_file, ca) as client:
        typer.echo(f"{run}: {_state(client.cancel(run))}")


def fetch(
    run: Run,
    to: To,
    output: Annotated[Path, typer.Option(help="New folder for the results.")],
    token_file: Token = None,
    ca: Ca = None,
) -> None:
    """Download and verify the results of one of your ended runs: summary, tables, model."""
    import tempfile

    from rankdad.common.files import make_folder

    if output.exists():
        raise UserError(f"--output: {output} already exists: choose another", code="already-there", field="--output")
    make_folder(output.resolve().parent)
    try:
        with tempfile.TemporaryDirectory(dir=output.resolve().parent, prefix=f".{output.name}-") as place:
            archive, unpacked = Path(place) / "archive", Path(place) / "results"
            with _service(to, token_file, ca) as client, client.results(run) as pieces, archive.open("wb") as file:
                for piece in pieces:
                    file.write(piece)
            count = unpack(archive, unpacked)
            unpacked.rename(output)
    except OSError as error:
        raise cannot_write(output, error, "--output") from None
    typer.echo(f"{run}: {count} files, verified against the service's checksums, are in {output}")


def unpack(archive: Path, folder: Path) -> int:
    """Unpack a run's results, verify every file, and return the number of files.

    Raises:
        UserError: the archive is incomplete, or holds a file that no run has.
    """
    import hashlib
    import tarfile

    folder.mkdir()
    found: dict[str, str] = {}
    expected = dict[str, str]()
    try:
        with tarfile.open(archive, "r:") as tar:
            for member in tar:
                source = tar.extractfile(member) if member.isreg() and not member.issparse() else None
                path = folder / member.name
                inside = member.name.isprintable() and path.resolve().is_relative_to(folder.resolve())
                if source is None or not inside or path.exists():
                    raise UserError(
                        f"the results hold {visible(member.name, 100)!r}, which is no file of a run",
                        code="path-leads-outside",
                    )
                if member.name == SUMS:
                    lines = source.read(64 << 20).decode().splitlines()
                    expected = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                digest = hashlib.sha256()
                with path.open("wb") as file:
                    while piece := source.read(1 << 20):
                        digest.update(piece)
                        file.write(piece)
                found[member.name] = digest.hexdigest()
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError, MemoryError):
        raise UserError("the results are incomplete: fetch them again", code="results-incomplete") from None
    wrong = [name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)]
    if wrong or not found:
        raise UserError(
            f"the results are incomplete ({', '.join(sorted(wrong)[:5])}): fetch them again",
            code="results-incomplete",
        )
    return len(found)


@contextlib.contextmanager
def _service(to: str, token_file: Path | None, ca: Path | None) -> Iterator[ServiceClient]:
    """Connect to a service by its address or an OWNER.json."""
    from rankdad.common.documents import validate
    from rankdad.local.config import Member
    from rankdad.local.drivers.service import ServiceClient

    own = {"token_file": token_file, "ca": ca}
    given = {name: str(path.resolve()) for name, path in own.items() if path is not None}
    if to.startswith(("http://", "https://")):
        config = validate(Member, {"name": "owner", "aggregator": to, **given}, file="--to").checked("--to")
    elif Path(to).is_file():
        config = Member.read(Path(to)).model_copy(update=given)
    else:
        raise UserError(
            f"--to: {to!r} is neither a file nor an address that begins with http:// or https://",
            code="address-malformed",
            field="--to",
        )
    with ServiceClient(config, patience=min(PATIENCE, config.patience)) as client:
        yield client


def _state(run: Described) -> str:
    """Return a run's state and its reason."""
    return visible(f"{run.state.value}: {run.reason}" if run.reason else run.state.value)
