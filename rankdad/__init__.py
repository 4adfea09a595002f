"""Federated training of PyTorch models across hospitals by low-rank factors of the gradient (arXiv 2102.09631).

`simulate` trains a model across simulated sites, and `load` opens a run that has ended; both return a `Run`. The other
names are building blocks and errors, which are all subclasses of `RankdadError`.

These names are the public API. They are imported lazily, because most of them need PyTorch. The subpackages are links
to the folders next to this one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rankdad.common import __version__

if TYPE_CHECKING:
    from rankdad.common.errors import (
        DataError,
        ModelError,
        NonFiniteError,
        PolicyError,
        RankdadError,
        RunFailedError,
        SpecError,
        UserError,
    )
    from rankdad.common.lowrank.capture import FactorCapture
    from rankdad.common.lowrank.factors import Factor, concatenate
    from rankdad.common.lowrank.reduction.block import block
    from rankdad.common.lowrank.reduction.exact import exact
    from rankdad.common.lowrank.reduction.spi import spi
    from rankdad.common.spec import RunSpec
    from rankdad.distributed.hook import LowRankState, low_rank_hook
    from rankdad.distributed.low_rank import LowRank
    from rankdad.library import load, simulate
    from rankdad.runs import Run

__all__ = [
    "DataError",
    "Factor",
    "FactorCapture",
    "LowRank",
    "LowRankState",
    "ModelError",
    "NonFiniteError",
    "PolicyError",
    "RankdadError",
    "Run",
    "RunFailedError",
    "RunSpec",
    "SpecError",
    "UserError",
    "__version__",
    "block",
    "concatenate",
    "exact",
    "load",
    "low_rank_hook",
    "simulate",
    "spi",
]

_ROOMS = {
    "DataError": "common.errors",
    "Factor": "common.lowrank.factors",
    "FactorCapture": "common.lowrank.capture",
    "LowRank": "distributed.low_rank",
    "LowRankState": "distributed.hook",
    "ModelError": "common.errors",
    "NonFiniteError": "common.errors",
    "PolicyError": "common.errors",
    "RankdadError": "common.errors",
    "Run": "runs",
    "RunFailedError": "common.errors",
    "RunSpec": "common.spec",
    "SpecError": "common.errors",
    "UserError": "common.errors",
    "block": "common.lowrank.reduction.block",
    "concatenate": "common.lowrank.factors",
    "exact": "common.lowrank.reduction.exact",
    "load": "library",
    "low_rank_hook": "distributed.hook",
    "simulate": "library",
    "spi": "common.lowrank.reduction.spi",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
