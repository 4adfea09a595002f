"""Damage to what a run goes on from: it ends with the undisturbed weights, or with a sentence that names the record."""

from __future__ import annotations

import hashlib
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from rankdad.__main__ import app
from rankdad.common.data import SiteData, read_site
from rankdad.common.errors import ProtocolError, RankdadError, UserError
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.checkpoints import Checkpoints
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.remote.export import export
from rankdad.remote.records import DamageError
from rankdad.remote.run_reader import FILE, reading
from tests.conftest import run_spec, write_site
from tests.simulations.recovering import EVERY, Run, tables_of

pytestmark = pytest.mark.slow

BESIDE = ("-wal", "-shm")  # of a file that is read
SMALL: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [2]},
    "method": {"name": "rank-dad", "rank": 1},
    "training": {"epochs": 1, "batch_size": 4},
    "federation": {"sites": ["alpha", "beta"], "compare_every": 0},
}
CUT = 2 * EVERY + 1  # step before which all processes die: of two checkpoints the second is 1 step old
NAMED = re.compile(rf"{FILE}: .*(is damaged|is missing|are missing|is not a run's file)|has lost round \d+")


class Interrupted(Exception):  # noqa: N818
    """All processes have died at once."""


@dataclass
class CutShort:
    """A run of which all processes have died at once, after two checkpoints and before its end.

    Args:
        spec: the run.
        data: of its sites.
        folder: that they have left behind.
        digest: of the final weights, had they not.
    """

    spec: RunSpec
    data: dict[str, SiteData]
    folder: Path
    digest: str

    def copy(self, folder: Path) -> CutShort:
        """Return the same in another folder."""
        shutil.rmtree(folder, ignore_errors=True)
        return CutShort(self.spec, self.data, Path(shutil.copytree(self.folder, folder)), self.digest)

    def go_on(self) -> str:
        """Return the digest at the run's end."""
        run = Run(self.spec, self.data, self.folder)
        try:
            return run.go(lambda message: None)
        finally:
            run.aggregator.abandon()

    def checkpoints(self, of: str) -> list[Path]:
        """Return the two checkpoints of a site or of `run/checkpoints`, the newest last."""
        return sorted((self.folder / of).glob("*.safetensors"))

    def loading(self, of: str, owner: str) -> Callable[[], tuple[int, str] | None]:
        """Return what returns the round and the weights of the checkpoint that is gone on from."""
        replica = Replica(self.spec)
        plan = make_plan(self.spec, replica.model)
        state = RunState(self.spec, plan, replica)

        def load() -> tuple[int, str] | None:
            found = Checkpoints(self.folder / of, plan, owner).load(state)
            return None if found is None else (state.round, replica.digest())

        return load


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> CutShort:
    """What all tests begin with a copy of."""
    folder, spec = tmp_path_factory.mktemp("dead"), run_spec(**SMALL)
    data = {
        site: read_site(spec, write_site(folder / "data" / site, count, place), place)
        for place, (site, count) in enumerate(zip(spec.federation.sites, (50, 40), strict=True))
    }
    digest = Run(spec, data, folder / "undisturbed").go(lambda message: None)
    return CutShort(spec, data, _die(spec, data, folder / "cut-short"), digest)


@pytest.fixture
def cut_short(dead: CutShort, tmp_path: Path) -> CutShort:
    return dead.copy(tmp_path / "cut-short")


def _die(spec: RunSpec, data: dict[str, SiteData], folder: Path) -> Path:
    """Let all processes of a run die before a step."""
    run = Run(spec, data, folder)

    def crash(message: int) -> None:
        if run.aggregator.state.steps == CUT and run.aggregator.barrier.holds("alpha"):
            raise Interrupted

    with pytest.raises(Interrupted):
        run.go(crash)
    run.aggregator.abandon()
    return folder


def change(folder: Path, statement: str, *values: object) -> None:
    """Change what a run's file holds, but for its digests."""
    with closing(sqlite3.connect(folder / "run" / FILE)) as file, file:
        file.execute(statement, values)


def flip(path: Path, at: int, bit: int = 0) -> bytes:
    """Flip a bit, and return what the file held before."""
    before = path.read_bytes()
    data = bytearray(before)
    data[at] ^= 1 << bit
    path.write_bytes(data)
    return before


def contents(folder: Path) -> dict[Path, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".json"]
    return {path: path.read_bytes() for path in files if not path.name.endswith(BESIDE)}


def test_an_undamaged_run_goes_on(cut_short: CutShort, caplog: pytest.LogCaptureFixture) -> None:
    assert all(len(cut_short.checkpoints(of)) == 2 for of in ("alpha", "beta", "run/checkpoints"))
    assert cut_short.go_on() == cut_short.digest
    assert not caplog.messages


SWEEPS = [  # every so many bytes, so many bits
    pytest.param(211, 1, id="some"),
    pytest.param(23, 1, id="more", marks=pytest.mark.timeout(1800)),
    pytest.param(7, 8, id="all", marks=[pytest.mark.exhaustive, pytest.mark.timeout(14400)]),
]
FILE_SWEEPS = [  # most of a small file is pages that are not full
    pytest.param(6007, 1, id="some"),
    pytest.param(97, 1, id="more", marks=pytest.mark.timeout(1800)),
    *SWEEPS[2:],
]


def flips(size: int, stride: int, bits: int) -> list[tuple[int, int]]:
    """Bits to flip of so many bytes."""
    return [(at, (at + bit) % 8) for at in range(0, size, stride) for bit in range(bits)]


@pytest.mark.parametrize(("stride", "bits"), FILE_SWEEPS)
def test_a_flipped_bit_of_the_runs_file_ends_in_the_same_weights_and_tables_or_in_a_sentence(
    cut_short: CutShort, tmp_path: Path, caplog: pytest.LogCaptureFixture, stride: int, bits: int
) -> None:
    undisturbed = cut_short.copy(tmp_path / "undisturbed")
    assert undisturbed.go_on() == cut_short.digest
    tables, outcomes = tables_of(undisturbed.folder / "run"), {"completed": 0, "stopped": 0}
    run = cut_short.copy(tmp_path / "flipped")
    path = run.folder / "run" / FILE
    for at, bit in flips(path.stat().st_size, stride, bits):
        run = cut_short.copy(tmp_path / "flipped")
        whole = flip(path, at, bit)
        damaged = path.read_bytes()
        try:
            digest, said = run.go_on(), ""
        except RankdadError as error:
            digest, said = "", str(error)
        outcomes["completed" if digest else "stopped"] += 1
        assert digest in ("", run.digest), (at, bit)
        assert digest or NAMED.search(said), (at, bit, said)
        assert not digest or tables_of(run.folder / "run") == tables, (at, bit)
        assert digest or path.stat().st_size >= len(damaged) == len(whole), "nothing is cut off"
    assert all(outcomes.values()), outcomes


@pytest.mark.parametrize(("stride", "bits"), SWEEPS)
@pytest.mark.parametrize(("of", "owner"), [("run/checkpoints", "aggregator"), ("alpha", "alpha")])
def test_a_flipped_bit_of_a_checkpoint_lets_the_older_one_stand(
    cut_short: CutShort, tmp_path: Path, caplog: pytest.LogCaptureFixture, of: str, owner: str, stride: int, bits: int
) -> None:
    """Whatever is damaged in it, it is as if it were not there; so the run ends alike for all of them."""
    newer = cut_short.checkpoints(of)[-1]
    load = cut_short.loading(of, owner)
    expected, whole = load(), newer.read_bytes()
    newer.rename(tmp_path / "away")
    without = load()
    assert without is not None
    assert without != expected
    for at, bit in flips(len(whole), stride, bits):
        newer.write_bytes(whole)
        flip(newer, at, bit)
        caplog.clear()
        assert load() == without
        assert f"{newer}: the checkpoint is damaged" in caplog.text
    damaged = newer.read_bytes()
    assert cut_short.go_on() == cut_short.digest
    assert newer.with_suffix(".damaged").read_bytes() == damaged, "it is kept, and not counted any more"
    caplog.clear()
    assert load() not in (None, without)
    assert len(cut_short.checkpoints(of)) == 2
    assert not caplog.messages, "both are whole"


def test_a_checkpoint_that_is_damaged_meanwhile_is_not_counted_any_more(cut_short: CutShort) -> None:
    """What the older one needs of the ledger is then kept."""
    replica = Replica(cut_short.spec)
    plan = make_plan(cut_short.spec, replica.model)
    state, folder = RunState(cut_short.spec, plan, replica), cut_short.folder / "run" / "checkpoints"
    checkpoints = Checkpoints(folder, plan, "aggregator")
    checkpoints.load(state)
    first = state.round
    state.note(round=state.round + 1)
    checkpoints.save(state, {})
    assert checkpoints.oldest() == first
    flip(cut_short.checkpoints("run/checkpoints")[-1], 100)
    assert checkpoints.snapshot() is not None
    assert checkpoints.oldest() is None
    state.note(round=state.round + 1)
    checkpoints.save(state, {})
    assert checkpoints.oldest() == first
    assert len(list(folder.glob("*.damaged"))) == 1


def test_a_flipped_bit_of_the_older_checkpoint_changes_nothing(cut_short: CutShort) -> None:
    for of in ("run/checkpoints", "alpha"):
        flip(cut_short.checkpoints(of)[0], 700)
    assert cut_short.go_on() == cut_short.digest


def test_a_site_without_a_whole_checkpoint_begins_anew_and_ends_alike(cut_short: CutShort) -> None:
    """Not from the aggregator's, as one that has lost its disk does: that would cost its residuals."""
    for path in cut_short.checkpoints("alpha"):
        flip(path, 100)
    assert cut_short.go_on() == cut_short.digest


def test_a_checkpoint_of_an_earlier_version_is_refused(cut_short: CutShort) -> None:
    newest = cut_short.checkpoints("alpha")[-1]
    newest.rename(newest.with_name(f"{newest.name[:12]}.safetensors"))
    with pytest.raises(UserError, match="is a checkpoint of an earlier rankdad"):
        cut_short.go_on()


@pytest.mark.parametrize("of", ["alpha", "run/checkpoints"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda document: "[" * 100_000, "is no checkpoint of rankdad: RecursionError"),
        (lambda document: "[]", "is no checkpoint of rankdad"),
        (lambda document: "{" + document, "is no checkpoint of rankdad"),
        (lambda document: document.replace('"format"', '"form"'), "is a checkpoint of format None"),
        (lambda document: document.replace('"format": ', '"format": 1'), "finish the run with its own version"),
        (
            lambda document: document.replace('"progress"', '"process"'),
            "is no checkpoint of this run: KeyError: 'progress'",
        ),
    ],
)
def test_a_whole_checkpoint_that_holds_something_else_is_refused_in_a_sentence(
    cut_short: CutShort, of: str, change: Callable[[str], str], said: str
) -> None:
    """One of an earlier version once ended in a KeyError, and one that was nested deeply in a RecursionError."""
    newest = cut_short.checkpoints(of)[-1]
    with safe_open(newest, framework="pt") as file:
        metadata = {"": change(file.metadata()[""])}
    save_file(load_file(newest), newest, metadata)
    digest = hashlib.sha256(newest.read_bytes()).hexdigest()[:16]
    newest.rename(newest.with_name(f"{newest.name[:12]}-{digest}.safetensors"))
    with pytest.raises(UserError, match=rf"\.safetensors: .*{said}"):
        cut_short.go_on()


def test_a_damaged_update_is_made_again(cut_short: CutShort) -> None:
    with reading(cut_short.folder / "run") as file:
        last, whole = file.end - 1, file.update(file.end - 1)
    change(cut_short.folder, "UPDATE updates SET body = CAST('damaged' AS BLOB) WHERE round = ?", last)
    assert cut_short.go_on() == cut_short.digest
    with reading(cut_short.folder / "run") as file:
        assert file.update(last) == whole


def test_a_damaged_contribution_to_the_open_round_is_sent_again(cut_short: CutShort) -> None:
    with reading(cut_short.folder / "run") as file:
        due = file.end
    change(cut_short.folder, "UPDATE contributions SET body = CAST('damaged' AS BLOB) WHERE place >> 20 = ?", due)
    assert cut_short.go_on() == cut_short.digest


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE contributions SET site = 1 - site WHERE place >> 20 = {0}", "contribution 0 of round {0} is damaged"),
        ("DELETE FROM contributions WHERE place >> 20 = {0}", "a contribution of round {0} is missing"),
        ("DELETE FROM contributions", "a contribution of round {0} is missing"),
        ("DELETE FROM updates WHERE round >= {0}", "the update of round {0} is missing"),
        ("UPDATE updates SET sent = 9 WHERE round = {0}", "the update of round {0} is damaged"),
        ("UPDATE facts SET value = '0' WHERE name = 'contributions from'", "contributions from is damaged"),
        ("UPDATE cells SET round = 0 WHERE number = 2", "row 2 of steps of round 0 is damaged"),
    ],
)
def test_what_a_run_cannot_go_on_without_is_named(cut_short: CutShort, statement: str, said: str) -> None:
    """Rounds were mixed up: contributions to a round were taken for those to the one before."""
    load = cut_short.loading("run/checkpoints", "aggregator")
    newest = load()
    assert newest is not None
    change(cut_short.folder, statement.format(newest[0]))
    with pytest.raises(DamageError, match=f"run/{FILE}: {said.format(newest[0])}"):
        cut_short.go_on()


def test_all_of_a_run_is_checked_and_its_tables_written_by_command(cut_short: CutShort) -> None:
    directory = cut_short.folder / "run"
    done = CliRunner().invoke(app, ["check-run", str(directory)])
    assert (done.exit_code, "2 checkpoints" in done.output) == (0, True), done.output
    (directory / "steps.csv").unlink()
    done = CliRunner().invoke(app, ["tables", str(directory), "--output", str(cut_short.folder / "tables")])
    assert done.exit_code == 0, done.output
    assert len(pd.read_csv(cut_short.folder / "tables" / "steps.csv")) == CUT
    flip(cut_short.checkpoints("run/checkpoints")[0], 100)
    change(cut_short.folder, "UPDATE updates SET body = CAST('damaged' AS BLOB) WHERE round IN (2, 3)")
    with pytest.raises(UserError) as refused:
        app(["check-run", str(directory)], standalone_mode=False)
    assert (refused.value.code, str(refused.value)) == ("run-damaged", f"{directory}: 3 faults")


def test_a_site_that_needs_a_damaged_update_is_told_which(cut_short: CutShort) -> None:
    """The aggregator needs it no more, and goes on."""
    for path in cut_short.checkpoints("alpha"):
        flip(path, 100)
    change(cut_short.folder, "UPDATE updates SET body = CAST('damaged' AS BLOB) WHERE round = 2")
    said = f"r: the aggregator's ledger has lost round 2: {FILE}: the update of round 2 is damaged"
    with pytest.raises(ProtocolError, match=said):
        cut_short.go_on()


def test_a_damaged_file_is_exported_as_far_as_it_is_whole(
    cut_short: CutShort, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with reading(cut_short.folder / "run") as file:
        number = file.end - 2
    change(cut_short.folder, "UPDATE updates SET body = CAST('damaged' AS BLOB) WHERE round = ?", number)
    before = contents(cut_short.folder)
    state = export(cut_short.folder / "run", None, tmp_path / "exported")
    assert (state.round, state.steps) == (number, CUT - 2)
    named = f"{FILE}: the update of round {number} is damaged"
    assert named in caplog.text
    assert f"the model is that of step {CUT - 2}, before it" in caplog.text
    with pytest.raises(UserError, match=f"got {CUT}, expected 1 to {CUT - 2}: .*{re.escape(named)}"):
        export(cut_short.folder / "run", CUT, tmp_path / "beyond")
    assert export(cut_short.folder / "run", 2, tmp_path / "earlier").steps == 2
    assert contents(cut_short.folder) == before
