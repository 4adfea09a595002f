"""Federated training of PyTorch models across hospitals by low-rank factors of the gradient (arXiv 2102.09631).

The names below are what other programs may use. They are imported when they are asked for: most of them take PyTorch.
Its subpackages are links to the folders beside this one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rankdad.common import __version__

if TYPE_CHECKING:
    from rankdad.common.gradients.capture import FactorCapture
    from rankdad.common.gradients.factors import Factor, concatenate
    from rankdad.common.gradients.reduction.block import block
    from rankdad.common.gradients.reduction.exact import exact
    from rankdad.common.gradients.reduction.spi import spi
    from rankdad.common.spec import RunSpec

__all__ = ["Factor", "FactorCapture", "RunSpec", "__version__", "block", "concatenate", "exact", "spi"]

_ROOMS = {
    "Factor": "common.gradients.factors",
    "FactorCapture": "common.gradients.capture",
    "RunSpec": "common.spec",
    "block": "common.gradients.reduction.block",
    "concatenate": "common.gradients.factors",
    "exact": "common.gradients.reduction.exact",
    "spi": "common.gradients.reduction.spi",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
