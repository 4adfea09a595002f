"""Small tables as the measurements write them, whose numbers a test knows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from benchmarks.paper.panels import SITES

CURVES = ["panel", "method", "fold", "epoch", "step", "site", "auc", "bytes_up", "bytes_down"]


def curve(
    method: str, auc: Sequence[float], panel: str = "mnist", folds: Sequence[int] = (0, 1), size: float = 1000
) -> pd.DataFrame:
    """A method's AUC, epoch by epoch; each site has its own level, and each fold too."""
    rows = [
        (panel, method, fold, epoch, 10 * epoch, site, value - 0.001 * place - 0.002 * fold, *[size * 10 * epoch] * 2)
        for fold in folds
        for epoch, value in enumerate(auc, 1)
        for place, site in enumerate(SITES)
    ]
    return pd.DataFrame(rows, columns=CURVES)


def spectra(ranks: Sequence[int], panel: str = "mnist") -> pd.DataFrame:
    """Updates of one layer, one an epoch, with so many values that count, of at most four; the last row has three."""
    rows = [
        (panel, "published-10", fold, 10 * epoch, float(epoch), "1.weight")
        + tuple(1.0 if place < rank else 0.001 for place in range(3))
        + ((1.0 if rank > 3 else 0.001) if epoch < len(ranks) else math.nan,)
        for fold in (0, 1)
        for epoch, rank in enumerate(ranks, 1)
    ]
    columns = ["panel", "method", "fold", "step", "epoch", "layer", *(f"value_{place}" for place in range(1, 5))]
    return pd.DataFrame(rows, columns=columns)


def seconds(panel: str = "cifar10", **methods: float) -> pd.DataFrame:
    """Seconds of a step over one link."""
    rows = [(panel, method.replace("_", "-"), "unshaped", value, value, value) for method, value in methods.items()]
    return pd.DataFrame(rows, columns=["panel", "method", "link", "seconds", "low", "high"])


def sizes(method: str, power: int, header: float = 60, times: float = 1) -> pd.DataFrame:
    """Bytes of layers that grow with this power of the width; the largest has not been sent."""
    rows = [
        (method, width, way, size, size + header if width < 256 else None, header)
        for width, size in ((width, int(times * width**power)) for width in (64, 128, 256))
        for way in ("up", "down")
    ]
    return pd.DataFrame(rows, columns=["method", "size", "direction", "formula", "sent", "header"])


def timing(**ratios: Sequence[float]) -> pd.DataFrame:
    """Seconds of a step with 4 and 18 sites, as parts of dSGD's."""
    rows = [
        ("100 Mbit/s", method.replace("_", "-"), sites, value, 0.9 * value, 1.1 * value, 12, 1e6, 1e6)
        for method, values in {"dsgd": (1.0, 1.0), **ratios}.items()
        for sites, value in zip((4, 18), values, strict=True)
    ]
    columns = ["link", "method", "sites", "seconds", "low", "high", "steps", "bytes_up", "bytes_down"]
    return pd.DataFrame(rows, columns=columns)
