"""Fields and values of earlier versions, and their replacements."""

from __future__ import annotations

import re

PAPERS = "is no longer part of rankdad: add benchmarks/plugins of a checkout to PYTHONPATH to run it"
CONVERT = "was removed: convert the data with python -m benchmarks ts"
TRANSFORMS = (  # of MONAI
    *("RandAffine", "Rand3DElastic", "RandZoom", "RandGaussianSmooth", "RandGaussianSharpen", "RandAdjustContrast"),
    *("RandBiasField", "RandRicianNoise", "RandGibbsNoise", "RandHistogramShift", "RandCoarseDropout"),
    *("RandGridDistortion", "RandSimulateLowResolution"),
)
# By the last two names of a field, and by its value if other values are still valid.
GONE: dict[tuple[str, str | None], str] = {
    ("data.reader", "ts"): f"ts {CONVERT}, and read it as npz; for tables use series",
    ("source.name", "uea"): f"uea {CONVERT}, and use the source npz",
    **{
        ("source.name", name): f"{name} moved: convert it with python -m benchmarks archives, and use the source npz"
        for name in ("mnist", "pendigits", "natops", "cifar10", "spoken-arabic-digits")
    },
    ("simulation.relay", None): "the relay moved to the benchmarks: python -m benchmarks behind RELAY.json FILE.json",
    ("loading.disk_mib", None): "the cache on disk was removed: leave it out, and read ahead (loading.workers)",
    ("method.name", "top-rows"): f"top-rows {PAPERS}; expected dsgd, dad, edad, rank-dad, powersgd or top-k",
    ("method.preset", "authors"): f'authors {PAPERS}, {{"name": "authors"}}; expected converged, or no preset',
    ("method.reducer", "published"): f'published {PAPERS}, {{"name": "authors"}}; expected spi, block, exact or auto',
    ("method.buckets", None): "a step is one message: leave it out",
    ("method.exchanges", None): "all gradients are in one message: leave it out",
    ("training.autocast", "float16"): "float16 and its loss scale were removed: use bfloat16",
    ("training.loss_scale", None): "it was removed with autocast float16: leave it out",
    **{
        ("augmentation.name", name): "MONAI's were removed: flip, crop, noise and intensity also apply to volumes"
        for name in TRANSFORMS
    },
}


def gone(path: str, value: object) -> str | None:
    """Return the replacement of a field or value of earlier versions; None for others."""
    name = ".".join(re.sub(r"\[\d+\]", "", path).split(".")[-2:])
    return GONE.get((name, None)) or (GONE.get((name, value)) if isinstance(value, str) else None)
