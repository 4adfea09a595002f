"""What tests of data share: runs of two classes, what was read as lists, and an error's code and place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rankdad.common.data.reading import Reading
from rankdad.common.errors import UserError
from rankdad.common.spec import RunSpec
from tests.conftest import run_spec

Fault = tuple[str, str, int | None]  # an error's code, field and row


def two_classes(data: dict[str, Any], **changes: Any) -> RunSpec:
    return run_spec(task={"name": "classification", "classes": 2}, data=data, **changes)


def inputs_of(found: Reading) -> list[Any]:
    return np.asarray(found.inputs).tolist()  # type: ignore[no-any-return]


def labels_of(found: Reading) -> list[Any]:
    assert found.labels is not None
    return found.labels.tolist()


def refused(read: Callable[[], object]) -> UserError:
    with pytest.raises(UserError) as error:
        read()
    return error.value


def fault(read: Callable[[], object], *private: str) -> Fault:
    """Return code, field and row of the error that reading ends with, which tells others nothing that is private."""
    error = refused(read)
    assert not [word for word in private if word in error.public_message]
    return error.code, error.field, error.row
