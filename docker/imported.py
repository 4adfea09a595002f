"""Prints the imported files that are not compiled yet, so that the image can compile them."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

ABSENT = tuple(f"rankdad.platforms.{engine}" for engine in ("flower", "neuroflame", "nvflare"))  # not in the image
LATE = ("torch._dynamo", "matplotlib.backends.backend_agg", "jinja2")  # imported at the first step, plot and page


def files() -> list[Path]:
    """Import all modules, and return the files that were loaded."""
    for module in pkgutil.walk_packages(importlib.import_module("rankdad").__path__, "rankdad."):
        if not module.name.startswith(ABSENT):
            importlib.import_module(module.name)
    for name in LATE:
        importlib.import_module(name)
    specs = (getattr(module, "__spec__", None) for module in list(sys.modules.values()))
    return [Path(spec.origin) for spec in specs if spec and spec.cached and not Path(spec.cached).exists()]


if __name__ == "__main__":
    print(*files(), sep="\n")
