"""Which lines of some files are run: a counter that is on only where a test says so.

A statement over several lines counts as its first.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any


class Lines:
    """The lines of functions, run between entering and leaving.

    Args:
        modules: whose functions are watched.
        beside: names of functions in them that do not count.
    """

    def __init__(self, modules: Sequence[ModuleType], beside: frozenset[str]) -> None:
        self.written: set[tuple[str, int]] = set()
        self._run: set[tuple[str, int]] = set()
        self._files = {str(module.__file__): dict[int, int]() for module in modules}
        for file, first in self._files.items():
            text = Path(file).read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)):  # outer statements come before those in them
                if isinstance(node, ast.stmt):
                    first |= dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), node.lineno)
            self.written |= {(file, first[line]) for line in _lines(compile(text, file, "exec"), beside)}

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._call)

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    @property
    def missed(self) -> list[tuple[str, int]]:
        """Files and lines that were not run, in order."""
        return sorted(self.written - self._run)

    @property
    def share(self) -> float:
        """Part of the lines that were run."""
        return 1 - len(self.missed) / len(self.written)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line(frame, event, argument) if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        self._run.add((file, self._files[file].get(frame.f_lineno, frame.f_lineno)))
        return self._line


def _lines(code: CodeType, beside: frozenset[str]) -> Iterator[int]:
    """Yield the lines of functions; those of modules and classes are run when they are imported."""
    if code.co_name in beside:
        return
    if code.co_flags & inspect.CO_OPTIMIZED:
        yield from (line for _, _, line in code.co_lines() if line is not None)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _lines(inner, beside)
