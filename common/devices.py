"""Devices: how sites, simulations, `verify`, benchmarks and the aggregator name where they compute."""

from __future__ import annotations

import logging
import os
import re
from typing import Annotated

import torch
from pydantic import Field

from rankdad.common.errors import UserError, counted

CPU = "cpu"
NAMES = r"(auto|cpu|cuda(:\d{1,4})?)"
Device = Annotated[str, Field(pattern=f"^{NAMES}$")]
_log = logging.getLogger(__name__)


def device_here(name: str, field: str = "device", *, shared: bool = True) -> str:
    """Return the device that a name stands for on this machine: cpu, or cuda with a number.

    Args:
        name: cpu; cuda:N; cuda, which is this process's GPU: the first, or under torchrun that of the local rank, which
            ranks share where they outnumber the GPUs; or auto, which is cuda where there is a GPU, else cpu. What auto
            has chosen is logged: results on another device are equal only up to rounding.
        field: that holds the name, for errors.
        shared: whether `cuda` may be the GPU of several ranks.

    Raises:
        UserError: there is no such device, or not one for each rank.
    """
    if not re.fullmatch(NAMES, name):
        raise UserError(
            f"{field}: got {name!r}, expected cpu, cuda:N, cuda or auto", code="device-unknown", field=field
        )
    if name == CPU:
        return CPU
    count = torch.cuda.device_count()
    if name == "auto":
        chosen = device_here("cuda") if count else CPU
        _log.info("%s auto: computes on %s", field, chosen if count else f"{CPU}, since torch finds no GPU here")
        return chosen
    place = int(os.environ.get("LOCAL_RANK", "0"))
    if name == "cuda" and not shared and 0 < count <= place:
        raise UserError(
            f"{field}: cuda gives each rank a GPU of its own, and this machine has {count}: start as many ranks, or "
            "name one that they share, such as cuda:0",
            code="device-too-few",
            field=field,
        )
    number = int(name.partition(":")[2] or place % max(count, 1))
    if number >= count:
        there = "cuda:0, " if count == 1 else f"cuda:0 to cuda:{count - 1}, " if count else ""
        has = counted(count, "GPU") if count else "no GPU"
        raise UserError(
            f"{field}: got {name}, but this machine has {has}: expected {there}auto or cpu",
            code="device-missing",
            field=field,
        )
    return f"cuda:{number}"


def limit_threads(count: int) -> None:
    """Let tensor operations of this thread take so many threads, but no more than there are processors."""
    torch.set_num_threads(min(count, os.cpu_count() or 1))
