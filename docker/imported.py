"""Prints the files that the project imports and that are not compiled yet: what else an image holds may stay source."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

ABSENT = ("rankdad.platforms.nvflare", "rankdad.platforms.neuroflame")  # need an engine that the image does not have
LATE = ("torch._dynamo", "matplotlib.backends.backend_agg", "jinja2")  # imported at the first step, plot and page


def files() -> list[Path]:
    """Import all, and return the files that this took."""
    for module in pkgutil.walk_packages(importlib.import_module("rankdad").__path__, "rankdad."):
        if not module.name.startswith(ABSENT):
            importlib.import_module(module.name)
    for name in LATE:
        importlib.import_module(name)
    specs = (getattr(module, "__spec__", None) for module in list(sys.modules.values()))
    return [Path(spec.origin) for spec in specs if spec and spec.cached and not Path(spec.cached).exists()]


if __name__ == "__main__":
    print(*files(), sep="\n")
