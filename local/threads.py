"""The threads of tensor operations."""

from __future__ import annotations

import threading

import torch

from rankdad.common.errors import SpecError


def use_threads(count: int) -> None:
    """Set the number of threads for tensor operations, if they can be started here.

    Raises:
        SpecError: they cannot: torch would end the process without a message.
    """
    leave, started = threading.Event(), list[threading.Thread]()
    try:
        for _ in range(count - 1):
            thread = threading.Thread(target=leave.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        raise SpecError(
            "training.threads",
            f"got {count}, but only {len(started) + 1} can be started here, and all sites use the same number: choose "
            "fewer, or allow this container more",
            code="too-many-threads",
        ) from None
    finally:
        leave.set()
        for thread in started:
            thread.join()
    torch.set_num_threads(count)
