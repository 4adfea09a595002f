"""A site: its own checks of what the aggregator offers, what it goes on with, and what it never writes over."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankdad.common import memory
from rankdad.common.errors import RankdadError, SpecError, UserError
from rankdad.common.protocol import versions
from rankdad.local import taking_part as site_module
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.running import run_site
from rankdad.local.shutdown_signals import ShutdownError, ShutdownSignals
from rankdad.local.starting import results_folder, run_id
from rankdad.remote.persistence import LedgerOptions
from tests.conftest import sampled, write_policy, write_site
from tests.remote.serving import Served, serving
from tests.remote.serving import served as served

ALONE: dict[str, Any] = {"method": {"name": "rank-dad", "rank": 2}, "federation": {"sites": ["alpha"]}}


def test_a_runs_number_is_taken_as_it_is() -> None:
    assert run_id({"id": "0123456789abcdef"}) == "0123456789abcdef"


@pytest.mark.parametrize(
    "found", [None, "", "..", "../../../etc", "0123456789abcde/", "0123456789ABCDEF", "a" * 400, 7]
)
def test_a_number_that_could_lead_out_of_the_folder_is_refused(found: object) -> None:
    with pytest.raises(UserError, match="expected 16 hexadecimal digits"):
        run_id({"id": found})


@pytest.mark.slow
@pytest.mark.parametrize("number", ["0" * 16, None])
def test_a_run_that_was_allowed_is_not_begun_anew(tmp_path: Path, served: Served, number: str | None) -> None:
    config = SiteConfig(
        name="alpha", aggregator=f"http://127.0.0.1:{served.port}", data=str(tmp_path / "none"), output=str(tmp_path)
    )
    with pytest.raises(SpecError, match="has restarted a run that was allowed here once"):
        run_site(config, number=number or served.aggregator.run_id)  # which keeps no ledger


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("version", "version: version-differs"),
        ("memory", "the network has "),
        ("device", "device: "),
        ("policy", "training.batch_size: the run makes steps of 8 samples here, but this site's policy allows none"),
        ("policy's file", "field-invalid"),
        ("data", "file-missing"),
        ("spec", "run-differs"),
        ("output", "output: cannot-write"),
        ("anything", "an unexpected error (KeyError); see the site's log"),
    ],
)
def test_a_site_that_cannot_take_part_says_so_and_the_run_waits_for_it(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, told: str
) -> None:
    folder = tmp_path / "hospital"
    write_site(folder / "data", 30, 0)
    policy = Path(write_policy(folder))
    names: dict[str, int] = {}
    places = {"data": folder / "data", "output": folder / "out", "policy": policy}
    device = "cpu"
    if what == "version":
        monkeypatch.setattr(versions, "__version__", "0.9.0")
    elif what == "memory":
        monkeypatch.setattr(memory, "available", lambda: 1)
    elif what == "device":
        device = "cuda:4000"
    elif what == "policy":
        write_policy(folder, min_rows=50)
    elif what == "policy's file":
        policy.write_text('{"min_rows": 0}')
    elif what == "data":
        (folder / "data" / "data.npz").unlink()
    elif what == "spec":
        document = served.aggregator.spec.model_dump(mode="json") | {"seed": 7}
        (folder / "other.json").write_text(json.dumps(document))
        places["spec"] = folder / "other.json"
    elif what == "output":
        places["output"] = policy / "out"
    else:
        monkeypatch.setattr(site_module, "read_site", lambda *arguments: names["Mr. Smith"])
    fields: dict[str, Any] = {key: str(path) for key, path in places.items()}
    config = SiteConfig(name="alpha", aggregator=f"http://127.0.0.1:{served.port}", device=device, **fields)
    with pytest.raises((RankdadError, KeyError)):
        run_site(config)
    if what == "version":
        monkeypatch.undo()  # the aggregator is of this process, too
    aggregator = served.aggregator
    problem = aggregator.recorder.progress.problems["alpha"]
    assert told in problem
    assert str(tmp_path) not in problem
    assert not aggregator.ended
    assert aggregator.barrier.missing() == aggregator.plan.sites
    (line,) = [line for line in served.audited() if line["what"] == "cannot take part"]
    assert (line["site"], line["reason"]) == ("alpha", problem)
    assert json.loads((served.directory / "summary.json").read_text())["problems"] == {"alpha": problem}
    aggregator.take("alpha", served.hello("alpha"))
    assert not aggregator.recorder.progress.problems, "it is back"


class SignalAfter(ShutdownSignals):
    """Stops the site after so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    def between_steps(self) -> int:
        self._steps -= 1
        return signal.SIGTERM if self._steps < 0 else 0


def site(tmp_path: Path, served: Served) -> SiteConfig:
    address, policy = f"http://127.0.0.1:{served.port}", write_policy(tmp_path)
    data, output = str(tmp_path / "data"), str(tmp_path / "out")
    return SiteConfig(name="alpha", aggregator=address, data=data, output=output, policy=policy)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("what", sampled(["x", "y", "split"], 3))
def test_a_site_goes_on_with_the_same_data_only(tmp_path: Path, what: str) -> None:
    """Other samples, labels or splits of the same size are found out by themselves; nobody else's run ends."""
    split = np.repeat([0, 1, 2], [30, 12, 12])
    write_site(tmp_path / "data", 54, 0, split=split)
    with serving(tmp_path / "run", ledger=LedgerOptions(), **ALONE) as served:
        with pytest.raises(ShutdownError):
            run_site(site(tmp_path, served), SignalAfter(2))
        data = dict(np.load(tmp_path / "data" / "data.npz"))
        np.savez(tmp_path / "data" / "data.npz", **(data | {what: np.roll(data[what], 1, axis=0)}))
        with pytest.raises(UserError, match=r"samples, labels or splits differ .* restore the data"):
            run_site(site(tmp_path, served))
        assert not served.aggregator.ended
        np.savez(tmp_path / "data" / "data.npz", **data)
        result = run_site(site(tmp_path, served))
        assert served.aggregator.state.replica.digest() == result.weights_sha256["alpha"]


@pytest.mark.exhaustive
def test_a_run_never_writes_over_the_results_of_another(tmp_path: Path) -> None:
    """The same site file, two aggregators: the second run's results go into a folder of its own."""
    write_site(tmp_path / "data", 54, 0)
    before: dict[str, bytes] = {}
    for seed in (1, 2, 3):
        with serving(tmp_path / f"run-{seed}", seed=seed, **ALONE) as served:
            run_site(site(tmp_path, served))
            own = f"small-{served.aggregator.run_id}/" if before else ""
        after = contents(tmp_path / "out")
        assert {f"{own}model/best.safetensors", f"{own}predictions/fold-1.csv"} <= after.keys() - before.keys()
        assert before == {name: after[name] for name in before}
        before = after
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700, "predictions name patients"


def test_the_results_folder_is_the_same_whenever_a_run_asks(tmp_path: Path) -> None:
    first, second, third = "1" * 16, "2" * 16, "3" * 16
    assert results_folder(tmp_path, "small", first) == tmp_path
    assert results_folder(tmp_path, "small", second) == tmp_path, "the first has left nothing"
    (tmp_path / "model").mkdir()
    assert results_folder(tmp_path, "small", second) == tmp_path
    assert results_folder(tmp_path, "small", first) == tmp_path / f"small-{first}"
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    assert results_folder(tmp_path, "small", first) == tmp_path / f"small-{first}"
    (tmp_path / "predictions").mkdir()
    (tmp_path / "run-id").unlink()
    assert results_folder(tmp_path, "small", third) == tmp_path / f"small-{third}", "whose they are is not known"
