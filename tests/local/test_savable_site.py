"""A site that is saved and made again at every round trains as one that lives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankdad.common.errors import RankdadError, UserError
from rankdad.common.policy import EVERYTHING
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.local.savable_site import SavableSite
from rankdad.remote.aggregator import Aggregator
from tests.conftest import run_spec
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
        self.site = SavableSite(self.spec, plan, self.data, self.name, run, self.policy, saved=self.saved)
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


SPECS = {name: {"method": method, "training": {"epochs": 2}} for name, method in zip(NAMES, METHODS, strict=True)} | {
    "folds": {"evaluation": {"name": "k-fold", "folds": 3, "references": ["local"]}, "method": METHODS[0]},
    "factored": {"training": FACTORED | {"epochs": 2}, "method": METHODS[0]},
}


@pytest.mark.parametrize("changes", SPECS.values(), ids=SPECS)
def test_what_is_saved_at_every_round_is_all_that_a_site_needs(
    tmp_path: Path, site_data: Data, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = run_spec(**changes)
    living = digest_of(spec, site_data(spec), tmp_path / "living")
    monkeypatch.setattr(recovering, "Site", Saved)
    assert digest_of(spec, site_data(spec), tmp_path / "saved") == living


def test_what_has_come_late_is_saved_too(tmp_path: Path, site_data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = late_spec(2)
    living = digest_of(spec, site_data(spec), tmp_path / "living", Straggling)
    monkeypatch.setattr(recovering, "Site", Saved)
    assert digest_of(spec, site_data(spec), tmp_path / "saved", Straggling) == living


def test_what_was_saved_is_nobody_elses(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(method=METHODS[0])
    data = site_data(spec)

    def made(saved: bytes | None, name: str = "alpha", own: str = "alpha", spec: RunSpec = spec) -> SavableSite:
        replica = Replica(spec)
        plan = make_plan(spec, replica.model)
        return SavableSite(spec, plan, data[own], name, RunState(spec, plan, replica), EVERYTHING, saved=saved)

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
    for broken in (b"", saved[:-1], saved[: len(saved) // 2], b"\x90", b"\x92\xc4\x01a\x90"):
        with pytest.raises(RankdadError) as caught_too:
            made(broken)
        assert caught_too.value.code == "checkpoint-unreadable"
