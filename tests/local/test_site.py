"""A site: its own checks of what the aggregator offers, what it goes on with, and what it never writes over."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import UserError
from local.config import SiteConfig
from local.leaving import Leaving, LeavingError
from local.site import results_folder, run_id, run_site
from remote.aggregator import Keeping
from tests.conftest import write_site
from tests.remote.serving import Served, serving

ALONE: dict[str, Any] = {"method": {"name": "rank-dad", "rank": 2}, "federation": {"sites": ["alpha"]}}


def test_a_runs_number_is_taken_as_it_is() -> None:
    assert run_id({"id": "0123456789abcdef"}) == "0123456789abcdef"


@pytest.mark.parametrize(
    "found", [None, "", "..", "../../../etc", "0123456789abcde/", "0123456789ABCDEF", "a" * 400, 7]
)
def test_a_number_that_could_lead_out_of_the_folder_is_refused(found: object) -> None:
    with pytest.raises(UserError, match="expected 16 hexadecimal digits"):
        run_id({"id": found})


class LeavingAfter(Leaving):
    """Asks the site to leave after so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    def between_steps(self) -> None:
        self._steps -= 1
        super().between_steps()

    @property
    def asked(self) -> bool:
        self._asked = signal.SIGTERM if self._steps < 1 else 0
        return super().asked


def site(tmp_path: Path, served: Served) -> SiteConfig:
    address = f"http://127.0.0.1:{served.port}"
    return SiteConfig(name="alpha", aggregator=address, data=str(tmp_path / "data"), output=str(tmp_path / "out"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("what", ["x", "y", "split"])
def test_a_site_goes_on_with_the_same_data_only(tmp_path: Path, what: str) -> None:
    """Other samples, labels or splits of the same size are found out by themselves; nobody else's run ends."""
    split = np.repeat([0, 1, 2], [30, 12, 12])
    write_site(tmp_path / "data", 54, 0, split=split)
    with serving(tmp_path / "run", keeping=Keeping(), **ALONE) as served:
        with pytest.raises(LeavingError):
            run_site(site(tmp_path, served), LeavingAfter(2))
        data = dict(np.load(tmp_path / "data" / "data.npz"))
        np.savez(tmp_path / "data" / "data.npz", **(data | {what: np.roll(data[what], 1, axis=0)}))
        with pytest.raises(UserError, match=r"other samples, labels or splits .* goes on with the same data"):
            run_site(site(tmp_path, served))
        assert not served.aggregator.ended
        np.savez(tmp_path / "data" / "data.npz", **data)
        result = run_site(site(tmp_path, served))
        assert served.aggregator.course.replica.digest() == result.weights_sha256["alpha"]


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
