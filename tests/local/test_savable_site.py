"""A site that is saved and made again at every round trains as one that lives."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from rankdad.common.data import SiteData
from rankdad.common.documents import validate
from rankdad.common.errors import ProtocolError, RunFailedError, UserError
from rankdad.common.policy import EVERYTHING, Policy
from rankdad.common.protocol.codec import pack, pack_failure, unpack
from rankdad.common.protocol.messages import failure_message
from rankdad.common.protocol.plan import make_plan
from rankdad.common.rounds.step import Step
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.common.spec.preparation import Preparation
from rankdad.local.drivers.followed import Followed
from rankdad.local.privacy.log import DisclosureLog
from rankdad.local.savable_site import SavableSite
from rankdad.remote.aggregator import Aggregator
from rankdad.simulations import lockstep
from tests.conftest import SITES, run_spec, sampled
from tests.local.privacy.test_disclosed import SECRET, asked, read
from tests.simulations import recovering
from tests.simulations.recovering import FACTORED, METHODS, NAMES, Data, Run
from tests.simulations.test_staleness import Straggling, late_spec


class Saved(recovering.Site):
    """A site of whom nothing but a value is left after every answer."""

    saved: bytes | None = None

    def start(self, aggregator: Aggregator) -> None:
        replica = Replica(self.spec)
        plan = make_plan(self.spec, replica.model)
        run = RunState(self.spec, plan, replica)
        followed = Followed(self.folder)
        given = self.spec, plan, self.data, self.name, run, self.policy, followed
        self.site = SavableSite(*given, saved=self.saved)
        if self.saved is None:
            self.site.take()

    def hear(self, answer: bytes | None) -> None:
        super().hear(answer)
        assert isinstance(self.site, SavableSite)
        self.saved = self.site.save()
        if answer is not None and self.result is None:  # after a question, it would be asked once more
            self.start(None)  # type: ignore[arg-type]


def digest_of(spec: RunSpec, data: Any, folder: Path, kind: type[Run] = Run) -> str:
    return kind(spec, data, folder).go(lambda message: None)


def forged(content: Any) -> bytes:
    packed: bytes = msgpack.packb(content)
    return hashlib.sha256(packed).digest() + packed


SPECS = {name: {"method": method} for name, method in zip(NAMES, METHODS, strict=True)} | {
    "folds": {"evaluation": {"name": "k-fold", "folds": 2, "references": ["local"]}, "method": METHODS[0]},
    "factored": {"training": FACTORED, "method": METHODS[0]},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("changes", sampled(SPECS.values(), len(SPECS)), ids=SPECS)
def test_what_is_saved_at_every_round_is_all_that_a_site_needs(
    tmp_path: Path, site_data: Data, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = run_spec(**changes | {"training": {"epochs": 1} | changes.get("training", {})})
    living = digest_of(spec, site_data(spec), tmp_path / "living")
    monkeypatch.setattr(recovering, "Site", Saved)
    assert digest_of(spec, site_data(spec), tmp_path / "saved") == living


@pytest.mark.exhaustive
def test_what_has_come_late_is_saved_too(tmp_path: Path, site_data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = late_spec(2)
    living = digest_of(spec, site_data(spec), tmp_path / "living", Straggling)
    monkeypatch.setattr(recovering, "Site", Saved)
    assert digest_of(spec, site_data(spec), tmp_path / "saved", Straggling) == living


@pytest.mark.slow
def test_what_was_saved_is_nobody_elses(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(method=METHODS[0], training={"epochs": 1})
    data = site_data(spec)

    def made(saved: bytes | None, name: str = "alpha", own: str = "alpha", spec: RunSpec = spec) -> SavableSite:
        replica = Replica(spec)
        plan = make_plan(spec, replica.model)
        run, followed = RunState(spec, plan, replica), Followed(tmp_path / "run" / name)
        return SavableSite(spec, plan, data[own], name, run, EVERYTHING, followed, saved=saved)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovering, "Site", Saved)
        run = Run(spec, data, tmp_path / "run")
        run.go(lambda message: None)
        saved = run.sites["alpha"].saved  # type: ignore[attr-defined]
    made(saved)
    other = run_spec(method=METHODS[1])
    for given, code in (
        ({"name": "beta"}, "checkpoint-of-another-run"),
        ({"own": "beta"}, "data-changed"),
        ({"spec": other}, "checkpoint-of-another-run"),
    ):
        with pytest.raises(UserError) as caught:
            made(saved, **given)
        assert caught.value.code == code
    for broken in (
        b"",
        saved[:-1],
        saved[32:],
        b"\x90",
        forged([]),
        forged([{}, b"", 7]),
        forged([{}, 2**62, []]),
    ):
        with pytest.raises(UserError) as caught:
            made(broken)
        assert caught.value.code == "checkpoint-unreadable"


def carried(
    spec: RunSpec, alpha: Callable[[], SiteData], others: dict[str, SiteData], folder: Path, *, remade: bool
) -> str:
    """Carry a run by hand, one of whose sites is made again, its data read again, after each answer; its digest."""
    plan, saved = make_plan(spec, Replica(spec).model), dict.fromkeys(spec.federation.sites)

    def made(name: str, value: bytes | None) -> SavableSite:
        data, run = others[name] if name in others else alpha(), RunState(spec, plan, Replica(spec))
        followed = files.enter_context(closing(Followed(folder / name)))
        return SavableSite(spec, plan, data, name, run, Policy(), followed, saved=value)

    with ExitStack() as files:
        aggregator = files.enter_context(closing(Aggregator(spec, Replica(spec), folder, lambda: 0.0)))
        sites = {name: made(name, None) for name in saved}
        answers: dict[str, bytes] = {}
        while any(not site.ended for site in sites.values()):
            heard: dict[str, bytes] = {}
            for name in sites:
                said = sites[name].advance(answers.get(name))
                while isinstance(said, int):
                    said = sites[name].advance()
                if remade and name not in others and not sites[name].ended:
                    sites[name] = made(name, sites[name].save())
                if said is not None:
                    heard |= aggregator.take(name, said)
            answers = heard
        (digest,) = {*sites["alpha"].result.weights_sha256.values()}
    return digest


@pytest.mark.exhaustive
def test_a_log_counts_a_run_that_is_saved_once(tmp_path: Path) -> None:
    spec = asked(3).model_copy(update={"preparation": validate(Preparation, {"standardise": "federated"})})
    found = []
    for remade in (False, True):
        log = DisclosureLog(tmp_path / f"log-{remade}", "alpha", SECRET)

        def alpha(log: DisclosureLog = log) -> SiteData:
            data = read(spec, log, "run")
            assert data.parts is not None
            assert data.parts.kept()
            return data

        digest = carried(spec, alpha, {name: read(spec) for name in SITES[1:]}, tmp_path / f"{remade}", remade=remade)
        told = log.disclosed(None, [f"p{row}" for row in range(120)])
        found.append((digest, told, log.beginning("another", spec.sha256())))
    assert max(found[0][1].values()) > 0
    assert found[0] == found[1]


def test_an_answer_that_is_none_changes_nothing(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(method=METHODS[0])
    run = Run(spec, site_data(spec), tmp_path)
    with closing(run.aggregator):
        plan, site = run.aggregator.plan, run.sites["alpha"].site
        site.take()
        first = site.say()
        broken = pack_failure(failure_message("beta", 0, ValueError("other"), final=True))
        for answer in (None, b"", b"\x81\xa1k\x01", first):
            with pytest.raises(ProtocolError):
                site.take(answer)  # type: ignore[arg-type]
        assert (site.advance(), site.say(), site.ended) == (first, first, False)
        with pytest.raises(RunFailedError):
            site.take(broken)
        assert site.ended
        with pytest.raises(ProtocolError) as caught:
            site.take(None)
        assert caught.value.code == "answer-unexpected"
        assert plan.sites == SITES


@pytest.mark.slow
def test_an_older_value_goes_on_with_the_same_updates_alone(tmp_path: Path, site_data: Data) -> None:
    """At another update's weights the batch would be sent twice: 80 such told all eight of a batch their rows."""
    spec = run_spec(method=METHODS[0])
    plan, data = make_plan(spec, Replica(spec).model), site_data(spec)["alpha"]
    bodies = list[bytes]()

    def note(aggregator: Aggregator) -> None:
        assert aggregator.barrier.stored is not None
        bodies.append(aggregator.barrier.stored)

    lockstep.run(spec, site_data(spec), tmp_path / "run", on_round=note)

    def made(saved: bytes | None) -> SavableSite:
        run = RunState(spec, plan, Replica(spec))
        return SavableSite(spec, plan, data, "alpha", run, EVERYTHING, Followed(tmp_path / "alpha"), saved=saved)

    site = made(None)
    site.take()
    values = list[bytes]()
    for body in bodies[:4]:
        while isinstance(site.say(), int):
            site.take()
        values.append(site.save())
        site.take(body)
    step = unpack(bodies[3], plan, up=False)
    assert isinstance(step.body, Step)
    for other, code in ((replace(step, body=replace(step.body, loss=0.5)), "update-differs"), (step, None)):
        again = made(values[3])
        if code is None:
            again.take(pack(other, plan, up=False))
            continue
        with pytest.raises(ProtocolError) as caught:
            again.take(pack(other, plan, up=False))
        assert caught.value.code == code
