"""What tests of data share: runs of two classes, and what was read as lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankdad.common.data.reading import Reading
from rankdad.common.spec import RunSpec
from tests.conftest import run_spec


def two_classes(data: dict[str, Any], **changes: Any) -> RunSpec:
    return run_spec(task={"name": "classification", "classes": 2}, data=data, **changes)


def inputs_of(found: Reading) -> list[Any]:
    return np.asarray(found.inputs).tolist()  # type: ignore[no-any-return]


def labels_of(found: Reading) -> list[Any]:
    assert found.labels is not None
    return found.labels.tolist()  # type: ignore[no-any-return]
