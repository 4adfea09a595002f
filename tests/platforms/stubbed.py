"""Classes in the place of an engine's, which is not installed beside the tests."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def stubbed(modules: Mapping[str, Mapping[str, object]], ours: Iterable[str]) -> Iterator[None]:
    """Put stubs in the place of an engine's modules within a `with`.

    Args:
        modules: their classes, by the modules' names.
        ours: modules that import them, which are imported again afterwards.
    """
    names = {".".join(name.split(".")[:end]) for name in modules for end in range(1, name.count(".") + 2)}
    before: dict[str, ModuleType | None] = {name: sys.modules.pop(name, None) for name in (*names, *ours)}
    for name in names:
        stub = sys.modules[name] = ModuleType(name)
        vars(stub).update(modules.get(name, {}))
    try:
        yield
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
