"""Notices of a run, kept for the site's staff."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rankdad.common.errors import visible
from rankdad.common.files import cannot_write
from rankdad.common.logs import MAX_LINE

FILE = "notices.txt"  # in the folder of a run's results


class Notices:
    """Sentences that are shown and written to a file.

    Args:
        folder: of the run's results; the file is created with the first sentence.
        say: shows a sentence.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._path, self._say = folder / FILE, say

    def add(self, sentence: str) -> None:
        """Show and write a sentence; a site that restarts after a crash may repeat one.

        Raises:
            UserError: the disk is full or broken.
        """
        self._say(sentence)
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(visible(sentence, MAX_LINE) + "\n")
        except OSError as error:
            raise cannot_write(self._path, error) from None
