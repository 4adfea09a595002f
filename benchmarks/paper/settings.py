"""Sizes of measurements: as in the paper, for a night, or for a coffee break."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.paper.panels import FOLDS, Panel


@dataclass(frozen=True)
class Timed:
    """What table 3 measures: real processes.

    Args:
        sites: numbers of sites.
        steps: of each measurement.
        methods: keys of what is compared.
    """

    sites: tuple[int, ...]
    steps: int
    methods: tuple[str, ...]


@dataclass(frozen=True)
class Setting:
    """How much is trained.

    Args:
        key: its name.
        about: what it leaves out, one sentence.
        folds: how many of the five are trained and tested.
        panels: by key.
        timing: of table 3.
        steps: of each measurement of figure 5's seconds.
        sizes: widths of figure 6's layers.
    """

    key: str
    about: str
    folds: int
    panels: Mapping[str, Panel]
    timing: Timed
    steps: int
    sizes: tuple[int, ...]


_TIMED = ("dsgd", "dsgd-per-tensor", "published-10", "rank-dad-10")
_PAPER = {"preset": "paper"}
_SMALL = {"preset": "small"}
_RANKS = (1, 2, 4)
_AS_PUBLISHED = (*(f"{name}-{rank}" for name in ("published", "powersgd-plain") for rank in (1, 10)), "authors-10")
_ROWS = tuple(f"rank-dad-rows-{rank}" for rank in _RANKS)


def _compared(*others: str, ranks: tuple[int, ...] = _RANKS) -> tuple[str, ...]:
    """Return the methods of one panel: ours and PowerSGD at several ranks, and references."""
    ranked = (f"{name}-{rank}" for name in ("rank-dad", "powersgd") for rank in ranks)
    return ("pooled", "dsgd", *ranked, "rank-dad-int8-8", "published-4", "powersgd-plain-4", "top-rows", *others)


_FULL = (
    Panel(
        key="mnist",
        title="MNIST, feed-forward",
        source="mnist",
        file="mnist.npz",
        classes=10,
        data={"shape": [784], "scale": 1 / 255},
        model={"name": "mlp", **_PAPER},
        epochs=20,
        methods=_compared(*_ROWS, "dad", "edad", *_AS_PUBLISHED, ranks=(1, 2, 4, 8)),
    ),
    Panel(
        key="spoken-arabic-digits",
        title="Spoken Arabic Digits, recurrent",
        source="spoken-arabic-digits",
        file="spoken_arabic_digits.npz",
        classes=10,
        data={"shape": [93, 13]},
        model={"name": "gru", **_PAPER},
        epochs=40,
        methods=_compared(*_ROWS, "dad", *_AS_PUBLISHED, ranks=(1, 2, 4, 8)),
    ),
    Panel(
        key="natops",
        title="NATOPS, recurrent",
        source="natops",
        file="natops.npz",
        classes=6,
        data={"shape": [51, 24]},
        model={"name": "gru", **_PAPER},
        epochs=400,
        every=10,
        methods=_compared(*_ROWS, "dad", *_AS_PUBLISHED),
    ),
    Panel(
        key="pendigits",
        title="PenDigits, recurrent",
        source="pendigits",
        file="pendigits.npz",
        classes=10,
        data={"shape": [8, 2], "scale": 1 / 100},
        model={"name": "gru", **_PAPER},
        epochs=40,
        methods=_compared(*_ROWS, "dad", *_AS_PUBLISHED),
    ),
    Panel(
        key="cifar10",
        title="CIFAR-10 (10,000 images), vision transformer",
        source="cifar10",
        file="cifar10_subset.npz",
        classes=10,
        data={"shape": [32, 32, 3], "scale": 1 / 255},
        model={"name": "vit", "width": 128, "depth": 12, "heads": 4, "patch": 4},  # the preset is for 224 × 224 pixels
        epochs=50,
        methods=_compared(*_ROWS, "dad", *_AS_PUBLISHED),
    ),
)
_BY_KEY = {panel.key: panel for panel in _FULL}


def _panels(**changed: Mapping[str, Any]) -> dict[str, Panel]:
    """Return all panels, some of their fields changed."""
    changes = {key.replace("_", "-"): change for key, change in changed.items()}
    return {key: replace(panel, **changes.get(key, {})) for key, panel in _BY_KEY.items()}


SETTINGS: Mapping[str, Setting] = {
    setting.key: setting
    for setting in (
        Setting(
            key="full",
            about="the paper's networks, five folds: a day or more on two cores",
            folds=FOLDS,
            panels=_panels(),
            timing=Timed((4, 6, 8, 10, 12, 14, 16, 18), 40, _TIMED),
            steps=20,
            sizes=(64, 128, 256, 512, 1024, 2048, 4096),
        ),
        Setting(
            key="middle",
            about="the paper's feed-forward network; recurrent networks of 128 and 64 units; a vision transformer of "
            "width 64, depth 4 and patches of 8; fewer epochs, methods and ranks: a night on two cores",
            folds=FOLDS,
            panels=_panels(
                mnist={"epochs": 6, "methods": _compared(*_ROWS, "dad", "edad", "published-10", "authors-10")},
                spoken_arabic_digits={
                    "epochs": 20,
                    "model": {"name": "gru", **_SMALL},
                    "methods": _compared("published-10", "authors-10", ranks=(1, 4)),
                },
                natops={"epochs": 200, "model": {"name": "gru", **_SMALL}, "methods": _compared("rank-dad-rows-4")},
                pendigits={"epochs": 30, "model": {"name": "gru", **_SMALL}, "methods": _compared("rank-dad-rows-4")},
                cifar10={
                    "epochs": 8,
                    "model": {"name": "vit", **_SMALL},
                    "methods": _compared("rank-dad-rows-4", ranks=(1, 4)),
                },
            ),
            timing=Timed((4, 8, 12, 18), 9, _TIMED),
            steps=8,
            sizes=(64, 128, 256, 512, 1024, 2048, 4096),
        ),
        Setting(
            key="quick",
            about="a feed-forward network of 256 and 256 units; recurrent networks of 128 and 64 units; a vision "
            "transformer of width 64, depth 4 and patches of 8; some of the samples, of a spoken digit 40 frames; few "
            "epochs, one fold",
            folds=1,
            panels=_panels(
                mnist={
                    "epochs": 6,
                    "samples": 14_000,
                    "model": {"name": "mlp", "hidden": [256, 256]},
                    "methods": _compared("dad", "edad", "published-10", "authors-10", ranks=(1, 4)),
                },
                spoken_arabic_digits={
                    "epochs": 8,
                    "samples": 2_200,
                    "data": {"shape": [40, 13]},
                    "model": {"name": "gru", **_SMALL},
                    "methods": _compared("published-10", "authors-10", ranks=(1, 4)),
                },
                natops={"epochs": 40, "model": {"name": "gru", **_SMALL}, "methods": _compared(ranks=(1, 4))},
                pendigits={
                    "epochs": 10,
                    "samples": 4_000,
                    "model": {"name": "gru", **_SMALL},
                    "methods": _compared(ranks=(1, 4)),
                },
                cifar10={
                    "epochs": 5,
                    "samples": 3_000,
                    "model": {"name": "vit", **_SMALL},
                    "methods": _compared(ranks=(1, 4)),
                },
            ),
            timing=Timed((4, 8), 7, _TIMED),
            steps=6,
            sizes=(64, 256, 1024),
        ),
    )
}
