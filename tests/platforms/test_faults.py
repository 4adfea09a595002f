"""What goes wrong between the platform and a node: disks, processes, runs in used folders, odd forms."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from remote import aggregator as aggregator_module
from tests.platforms.nodes import Iterations
from tests.platforms.test_nodes import METHODS, consortium

OWNER = {"classes": 3, "shape": "6", "epochs": 1, "hidden": "5", "rank": 2, "batch_size": 16}


def members(folder: Path, **changes: Any) -> dict[str, dict[str, Any]]:
    """Two members with a form instead of a whole specification."""
    _, inputs = consortium(folder, METHODS[0], 2)
    return {client: own | {"spec": {}} | OWNER | changes for client, own in inputs.items()}


def test_a_disk_that_is_full_at_the_end_is_what_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(aggregator_module, "save_model", full)
    with pytest.raises(OSError, match="No space left"):
        Iterations(tmp_path, members(tmp_path)).go()
