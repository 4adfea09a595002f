"""Fields and values of earlier versions, and what to write in their place."""

from __future__ import annotations

import re

PAPERS = "is no longer part of rankdad: of a checkout, put benchmarks/plugins on PYTHONPATH to run it"
TRANSFORMS = (  # of MONAI
    *("RandAffine", "Rand3DElastic", "RandZoom", "RandGaussianSmooth", "RandGaussianSharpen", "RandAdjustContrast"),
    *("RandBiasField", "RandRicianNoise", "RandGibbsNoise", "RandHistogramShift", "RandCoarseDropout"),
    *("RandGridDistortion", "RandSimulateLowResolution"),
)
# By the last two names of a field, and by its value where other values stay.
GONE: dict[tuple[str, str | None], str] = {
    ("data.reader", "ts"): "convert it by python -m benchmarks ts, and read it as npz; of tables series is the reader",
    ("simulation.source", "uea"): "convert it by python -m benchmarks ts, and take the source npz",
    ("loading.disk_mib", None): "there is no cache on disk any more: leave it out, and read ahead (loading.workers)",
    ("method.name", "top-rows"): f"{PAPERS}; expected dsgd, dad, edad, rank-dad, powersgd or top-k",
    ("method.preset", "authors"): f'{PAPERS}, {{"name": "authors"}}; expected converged, or no preset',
    ("method.reducer", "published"): f'{PAPERS}, {{"name": "authors"}}; expected spi, block, exact or auto',
    ("method.buckets", None): "a step is one message again: leave it out",
    ("method.exchanges", None): "all gradients travel in one message: leave it out",
    ("training.autocast", "float16"): "float16 and its loss scale are gone: take bfloat16",
    ("training.loss_scale", None): "it went with autocast float16: leave it out",
    **{
        ("augmentation.name", name): "MONAI's are gone: flip, crop, noise and intensity vary volumes, too"
        for name in TRANSFORMS
    },
}


def gone(path: str, value: object) -> str | None:
    """Return what to write in the place of a field, or of a value, that earlier versions knew; None of others."""
    name = ".".join(re.sub(r"\[\d+\]", "", path).split(".")[-2:])
    return GONE.get((name, None)) or (GONE.get((name, value)) if isinstance(value, str) else None)
