"""The version of a build: the number in `common/__init__.py`, and in a clone the commits since its tag."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def version() -> str:
    """Return the version, such as 1.2.3, or 1.2.3.post4+gabcdef0 four commits after the tag v1.2.3."""
    text = (ROOT / "common" / "__init__.py").read_text(encoding="utf-8")
    (number,) = re.findall(r'^__version__ = "(.+)"$', text, flags=re.MULTILINE)
    words = ["git", "-C", str(ROOT), "describe", "--tags", "--long", "--match", f"v{number}"]
    try:  # not of a repository that this folder lies in
        environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(ROOT.parent)}
        said = subprocess.run(words, env=environment, capture_output=True, text=True, check=False).stdout
    except OSError:  # there is no git, as where an image is built
        said = ""
    since = re.search(r"-([1-9][0-9]*)-(g[0-9a-f]+)$", said)
    return f"{number}.post{since[1]}+{since[2]}" if since else number
