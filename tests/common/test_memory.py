"""What does not fit is refused before it is made, by the container's limit too: weights, samples, threads."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rankdad.common import available_memory
from rankdad.common.available_memory import available
from rankdad.common.errors import SpecError
from rankdad.common.memory import COPIES, check_memory
from rankdad.common.protocol.routing import PROBE_SAMPLES
from rankdad.local.threads import use_threads
from tests.common.faults import fault
from tests.conftest import run_spec

WEIGHTS = 6 * 16 + 16 + 16 * 16 + 16 + 16 * 3 + 3  # of 6-16-16-3, with biases
KEPT = 6 + 16 + 16  # of a sample


@pytest.mark.parametrize("text", ["{}", "{}\n"])
def test_the_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(available_memory, "LIMITS", (limit, tmp_path / "missing"))
    needed = (COPIES * WEIGHTS + PROBE_SAMPLES * KEPT) * 4
    limit.write_text(text.format(needed))
    assert available() == needed
    check_memory(run_spec())
    limit.write_text(text.format(needed - 1))
    with pytest.raises(SpecError, match=rf"^model\.hidden: the network has {WEIGHTS} weights"):
        check_memory(run_spec())


def test_a_limit_that_is_none_leaves_what_the_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("max\n")
    monkeypatch.setattr(available_memory, "LIMITS", (limit,))
    assert (available() or 0) > 2**20
    monkeypatch.setattr(available_memory, "FREE", tmp_path / "missing")
    assert available() is None
    check_memory(run_spec(model={"name": "mlp", "hidden": [100_000, 100_000]}))


@pytest.mark.parametrize(
    ("model", "shape", "field"),
    [
        ({"name": "linear"}, [10**9], "model"),
        ({"name": "gru", "hidden": [10**6]}, [4, 4], "model.hidden"),
        ({"name": "lstm", "hidden": [4, 10**6]}, [4, 4], "model.hidden"),
        ({"name": "vit", "width": 10**6, "depth": 1, "heads": 1, "patch": 2}, [4, 4], "model.width"),
        ({"name": "cnn", "filters": [10**6, 10**6]}, [4, 4], "model.filters"),
        ({"name": "cnn3d", "filters": [10**6, 10**6]}, [4, 4, 4], "model.filters"),
        ({"name": "mlp", "hidden": [10**6] * 1000}, [4], "model.hidden"),
        ({"name": "cnn", "filters": [8]}, [20_000, 20_000], "model.filters"),
        ({"name": "cnn3d", "filters": [8]}, [800, 800, 800], "model.filters"),
        ({"name": "vit", "width": 64, "depth": 4, "heads": 1, "patch": 2}, [2000, 2000], "model.width"),
        ({"name": "lstm", "hidden": [4]}, [1000, 10**7], "model.hidden"),
        ({"name": "factory", "factory": "os:getcwd"}, [10**9, 10**9, 10**9], "data.shape"),
        ({"name": "mlp", "hidden": [4]}, [10**9] * 16, "model.hidden"),
    ],
)
def test_every_network_of_ours_is_refused_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any], shape: list[int], field: str
) -> None:
    (tmp_path / "memory.max").write_text(str(2**33))
    monkeypatch.setattr(available_memory, "LIMITS", (tmp_path / "memory.max",))
    spec, began = run_spec(model=model, data={"shape": shape}), time.monotonic()
    with pytest.raises(SpecError, match=r"the network has|does not fit into memory") as error:
        check_memory(spec)
    assert error.value.field == field
    assert time.monotonic() - began < 5


def test_threads_that_cannot_be_started_are_said_before_torch_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, start, left = threading.active_count(), threading.Thread.start, iter(range(3))

    def limited(thread: threading.Thread) -> None:
        if next(left, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    assert fault(lambda: use_threads(64))[1] == "training.threads"
    assert threading.active_count() == before
