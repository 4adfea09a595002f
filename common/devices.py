"""Names of devices, in configurations, commands and benchmarks."""

from __future__ import annotations

import logging
import os
import re
from typing import Annotated

from pydantic import Field

from rankdad.common.errors import UserError, counted

CPU = "cpu"
NAMES = r"(auto|cpu|cuda(:\d{1,4})?)"
Device = Annotated[str, Field(pattern=f"^{NAMES}$")]
_log = logging.getLogger(__name__)


def device_here(name: str, field: str = "device", *, shared: bool = True) -> str:
    """Return the device for a name on this machine: cpu, or cuda with a number.

    Args:
        name: cpu; cuda:N; cuda for the first GPU, or under torchrun the local rank's, shared if there are more ranks
            than GPUs; or auto for cuda if there is a GPU, otherwise cpu. The choice of auto is logged, because results
            on another device differ by rounding.
        field: with the name, for errors.
        shared: whether ranks may share a GPU for `cuda`.

    Raises:
        UserError: there is no such device, or not one for each rank.
    """
    if not re.fullmatch(NAMES, name):
        raise UserError(
            f"{field}: got {name!r}, expected cpu, cuda:N, cuda or auto", code="device-unknown", field=field
        )
    if name == CPU:
        return CPU
    import torch  # not above: an agent and commands read configurations without it

    count = torch.cuda.device_count()
    if name == "auto":
        chosen = device_here("cuda") if count else CPU
        _log.info("%s auto: computing on %s", field, chosen if count else f"{CPU}, since torch finds no GPU here")
        return chosen
    place = int(os.environ.get("LOCAL_RANK", "0"))
    if name == "cuda" and not shared and 0 < count <= place:
        raise UserError(
            f"{field}: cuda gives each rank its own GPU, and this machine has {count}: start as many ranks, or "
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
    """Set the number of threads of tensor operations, at most the number of processors."""
    import torch

    torch.set_num_threads(min(count, os.cpu_count() or 1))
