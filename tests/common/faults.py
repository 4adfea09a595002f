"""What an error says in code: tests assert codes and places, not sentences."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rankdad.common.errors import UserError

Fault = tuple[str, str, int | None]  # an error's code, field and row


def refused(call: Callable[[], object]) -> UserError:
    with pytest.raises(UserError) as error:
        call()
    return error.value


def fault(call: Callable[[], object], *private: str) -> Fault:
    """Return code, field and row of the error that a call ends with, which tells others nothing that is private."""
    error = refused(call)
    assert not [word for word in private if word in error.public_message]
    return error.code, error.field, error.row
