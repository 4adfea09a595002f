"""The threads of tensor operations."""

from __future__ import annotations

import threading

import torch

from rankdad.common.errors import SpecError


def use_threads(count: int) -> None:
    """Let tensor operations use so many threads, if they can be started here.

    Raises:
        SpecError: they cannot: torch would end the process without a word.
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
            f"got {count}, but only {len(started) + 1} can be started here: all sites use as many, so choose fewer, or "
            "allow this container more",
            code="too-many-threads",
        ) from None
    finally:
        leave.set()
        for thread in started:
            thread.join()
    torch.set_num_threads(count)
