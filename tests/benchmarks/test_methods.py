"""The table of methods compares bytes of whole trainings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import methods
from benchmarks.methods import bench_methods

SPECS = Path(__file__).parent.parent.parent / "simulations" / "specs"


def test_local_steps_save_the_exchanges_between_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an exchange for every tenth batch, of as many bytes each, a tenth of them travels."""
    common: dict[str, Any] = {"train_loss": 1.0, "seconds_per_step": 1.0, "weights_sha256": {"a": "0" * 64}}
    common |= {"metrics": {"test": {"auc": 0.9, "accuracy": 0.9}}}
    common |= {"bytes_up_per_site_step": 600_000, "bytes_down_per_site_step": 400_000}
    summaries = iter([common | {"steps": 100}, common | {"steps": 10}] * 2)
    monkeypatch.setattr(methods, "_run", lambda *_: next(summaries))
    named = [json.dumps({"name": "dsgd"}), json.dumps({"name": "dsgd", "local_steps": 10})]
    bench_methods(SPECS / "digits.json", [], None, [0, 1], named)
    printed = [[cell.strip() for cell in line.split("|")] for line in capsys.readouterr().out.splitlines()]
    assert [line[9:11] for line in printed[2:6]] == [["100.00", "1.0"], ["10.00", "10.0"]] * 2
    assert [line[4] for line in printed[-2:]] == ["1.0", "10.0"]
