"""A network that does not fit is refused before it is made, by the container's limit too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common import memory
from common.errors import SpecError
from common.memory import available, check_memory
from tests.conftest import run_spec

WEIGHTS = 6 * 16 + 16 + 16 * 16 + 16 + 16 * 3 + 3  # of 6-16-16-3, with biases


@pytest.mark.parametrize("text", ["{}", "{}\n"])
def test_the_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "LIMITS", (limit, tmp_path / "missing"))
    needed = memory.COPIES * WEIGHTS * 4
    limit.write_text(text.format(needed))
    assert available() == needed
    check_memory(run_spec())
    limit.write_text(text.format(needed - 1))
    with pytest.raises(SpecError, match=rf"^model\.hidden: the network has {WEIGHTS} weights"):
        check_memory(run_spec())


def test_a_limit_that_is_none_leaves_what_the_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("max\n")
    monkeypatch.setattr(memory, "LIMITS", (limit,))
    assert (available() or 0) > 2**20
    monkeypatch.setattr(memory, "FREE", tmp_path / "missing")
    assert available() is None
    check_memory(run_spec(model={"name": "mlp", "hidden": [100_000, 100_000]}))


@pytest.mark.parametrize(
    ("model", "shape", "field"),
    [
        ({"name": "linear"}, [10**10], "model"),
        ({"name": "gru", "hidden": [10**6]}, [4, 4], "model.hidden"),
        ({"name": "lstm", "hidden": [4, 10**6]}, [4, 4], "model.hidden"),
        ({"name": "vit", "width": 10**6, "depth": 1, "heads": 1, "patch": 2}, [4, 4], "model.width"),
        ({"name": "cnn", "filters": [10**6, 10**6]}, [4, 4], "model.filters"),
        ({"name": "cnn3d", "filters": [10**6, 10**6]}, [4, 4, 4], "model.filters"),
    ],
)
def test_every_network_of_ours_is_refused_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any], shape: list[int], field: str
) -> None:
    (tmp_path / "memory.max").write_text(str(2**33))
    monkeypatch.setattr(memory, "LIMITS", (tmp_path / "memory.max",))
    with pytest.raises(SpecError, match="the network has") as error:
        check_memory(run_spec(model=model, data={"shape": shape}))
    assert error.value.field == field
