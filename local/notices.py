"""Notices of a run that a person at the site should still find when it is over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rankdad.common.errors import visible
from rankdad.common.files import cannot_write
from rankdad.common.logs import MAX_LINE

FILE = "notices.txt"  # in the folder of a run's results


class Notices:
    """Sentences that are said, and written into a file.

    Args:
        folder: of the run's results; the file is made with the first sentence.
        say: told each sentence.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._path, self._say = folder / FILE, say

    def add(self, sentence: str) -> None:
        """Say a sentence; a site that comes back from a crash may say it twice.

        Raises:
            UserError: the disk is full or broken.
        """
        self._say(sentence)
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(visible(sentence, MAX_LINE) + "\n")
        except OSError as error:
            raise cannot_write(self._path, error) from None
