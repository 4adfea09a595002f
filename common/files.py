"""Files and folders on the disk."""

from __future__ import annotations

import os
from pathlib import Path


def sync_path(path: Path) -> None:
    """Put a file, or a folder's list of files, on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
