"""Prints what the project needs to be installed and built: requirements, one a line.

Arguments: the project's file, then further extras.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1] if sys.argv[1:] else "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = ("coinstac", "demo", "excel", "images", "nifti", "plots")
extras = [requirement for extra in (*EXTRAS, *sys.argv[2:]) for requirement in project["project"]["optional-dependencies"][extra]]
print(*project["build-system"]["requires"], *project["project"]["dependencies"], *extras, sep="\n")
