"""Damage to what a run goes on from: it ends with the undisturbed weights, or with a sentence that names the record."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from rankdad.common.data import SiteData, read_site
from rankdad.common.errors import ProtocolError, RankdadError, UserError
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.checkpoints import Checkpoints
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.remote.export import export
from rankdad.remote.records import BEGINNING_BYTES, HEAD_BYTES, DamageError
from tests.conftest import run_spec, write_site
from tests.simulations.recovering import EVERY, Run

SMALL: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [2]},
    "method": {"name": "rank-dad", "rank": 1},
    "training": {"epochs": 1, "batch_size": 4},
    "federation": {"sites": ["alpha", "beta"], "compare_every": 0},
}
CUT = 2 * EVERY + 1  # step before which all processes die: of two checkpoints the second is 1 step old
NAMED = re.compile(r"(contributions|updates)-\d{12}: (record \d+ .*at byte \d+|.*its beginning \(byte 0 to \d+\))")


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

    def ledger(self, kind: str) -> Path:
        """Return the newest file of a kind."""
        return max((self.folder / "run" / "ledger").glob(f"{kind}-*"))

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


def places(path: Path) -> list[int]:
    """Where a journal's records begin, and where the last one ends."""
    data, found = path.read_bytes(), [BEGINNING_BYTES]
    while found[-1] < len(data):
        found.append(found[-1] + HEAD_BYTES + int.from_bytes(data[found[-1] : found[-1] + 8], "little"))
    return found


def flip(path: Path, at: int, bit: int = 0) -> bytes:
    """Flip a bit, and return what the file held before."""
    before = path.read_bytes()
    data = bytearray(before)
    data[at] ^= 1 << bit
    path.write_bytes(data)
    return before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.suffix != ".json" and path.is_file()}


def test_an_undamaged_run_goes_on(cut_short: CutShort, caplog: pytest.LogCaptureFixture) -> None:
    assert all(len(cut_short.checkpoints(of)) == 2 for of in ("alpha", "beta", "run/checkpoints"))
    assert cut_short.go_on() == cut_short.digest
    assert not caplog.messages


SWEEPS = [  # every so many bytes, so many bits
    pytest.param(211, 1, id="some"),
    pytest.param(23, 1, id="more", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    pytest.param(7, 8, id="all", marks=[pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(14400)]),
]


def flips(size: int, stride: int, bits: int) -> list[tuple[int, int]]:
    """Bits to flip of so many bytes."""
    return [(at, (at + bit) % 8) for at in range(0, size, stride) for bit in range(bits)]


@pytest.mark.parametrize(("stride", "bits"), SWEEPS)
def test_a_flipped_bit_of_the_ledger_ends_in_the_same_weights_or_in_a_sentence(
    cut_short: CutShort, tmp_path: Path, caplog: pytest.LogCaptureFixture, stride: int, bits: int
) -> None:
    outcomes = {"completed": 0, "stopped": 0}
    for original in sorted((cut_short.folder / "run" / "ledger").iterdir()):
        for at, bit in flips(original.stat().st_size, stride, bits):
            run = cut_short.copy(tmp_path / "flipped")
            path = run.folder / original.relative_to(cut_short.folder)
            flip(path, at, bit)
            damaged = contents(run.folder)
            caplog.clear()
            try:
                digest, said = run.go_on(), caplog.text
            except RankdadError as error:
                digest, said = "", str(error)
            outcomes["completed" if digest else "stopped"] += 1
            where = (path.name, at, bit, said)
            assert digest in ("", run.digest), where
            assert NAMED.search(said), where
            assert path.name in said, where
            after = contents(run.folder)
            ledger = [one for one in damaged if one.parent.name == "ledger"]
            assert all(len(after[one]) >= len(damaged[one]) for one in ledger if one in after), where
            assert digest or all(after[one] == damaged[one] for one in ledger), where
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
        (lambda document: document.replace('"format": ', '"format": 1'), "finish the run with the one that began it"),
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


def test_a_damaged_update_is_made_again(cut_short: CutShort, caplog: pytest.LogCaptureFixture) -> None:
    path = cut_short.ledger("updates")
    number = len(places(path)) - 2
    whole = flip(path, places(path)[number] + HEAD_BYTES + 9)
    assert cut_short.go_on() == cut_short.digest
    assert f"updates-000000000000: record {number} (round {number}) at byte" in caplog.text
    assert path.read_bytes()[: len(whole)] == whole


def test_a_damaged_contribution_to_the_open_round_is_sent_again(
    cut_short: CutShort, caplog: pytest.LogCaptureFixture
) -> None:
    path = cut_short.ledger("contributions")
    flip(path, path.stat().st_size - 9)
    assert cut_short.go_on() == cut_short.digest
    assert "is damaged" in caplog.text


def test_a_damaged_contribution_to_a_complete_round_is_named(cut_short: CutShort) -> None:
    path = cut_short.ledger("contributions")
    flip(path, places(path)[0] + HEAD_BYTES + 9)
    with pytest.raises(DamageError, match=rf"{path}: record 0 \(round \d+\) at byte {BEGINNING_BYTES} is damaged"):
        cut_short.go_on()


def test_a_lost_file_of_contributions_is_named(cut_short: CutShort) -> None:
    for path in (cut_short.folder / "run" / "ledger").glob("contributions-*"):
        path.unlink()
    with pytest.raises(DamageError, match=r"contributions-0+: record 0 \(round \d+\) at byte \d+ is missing"):
        cut_short.go_on()


@pytest.mark.parametrize("lost", [1, 5])
def test_updates_that_are_fewer_than_contributions_or_than_the_checkpoint_says_are_missed(
    cut_short: CutShort, lost: int
) -> None:
    """Rounds were mixed up: contributions to a round were taken for those to the one before."""
    path = cut_short.ledger("updates")
    number = len(places(path)) - 1 - lost
    path.write_bytes(path.read_bytes()[: places(path)[number]])
    with pytest.raises(DamageError, match=rf"{path}: record {number} \(round {number}\) at byte \d+ is missing"):
        cut_short.go_on()


def test_a_site_that_needs_a_damaged_update_is_told_which(cut_short: CutShort) -> None:
    """The aggregator needs it no more, and goes on."""
    for path in cut_short.checkpoints("alpha"):
        flip(path, 100)
    updates = cut_short.ledger("updates")
    flip(updates, places(updates)[2] + HEAD_BYTES + 9)
    said = r"r: the aggregator's ledger has lost round 2: updates-0+: record 2 \(round 2\) at byte \d+ is damaged"
    with pytest.raises(ProtocolError, match=said):
        cut_short.go_on()


def test_a_damaged_ledger_is_exported_as_far_as_it_is_whole(
    cut_short: CutShort, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    updates = cut_short.ledger("updates")
    number = len(places(updates)) - 3
    place = places(updates)[number]
    flip(updates, place + HEAD_BYTES + 9)
    before = contents(cut_short.folder)
    state = export(cut_short.folder / "run", None, tmp_path / "exported")
    assert (state.round, state.steps) == (number, CUT - 2)
    named = f"updates-000000000000: record {number} (round {number}) at byte {place} is damaged"
    assert named in caplog.text
    assert f"the model is that of step {CUT - 2}, before it" in caplog.text
    with pytest.raises(UserError, match=f"got {CUT}, expected 1 to {CUT - 2}: .*{re.escape(named)}"):
        export(cut_short.folder / "run", CUT, tmp_path / "beyond")
    assert export(cut_short.folder / "run", 2, tmp_path / "earlier").steps == 2
    assert contents(cut_short.folder) == before
