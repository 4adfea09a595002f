"""Prints what the project needs to be installed and built: requirements, one a line.

Arguments: the project's file, then further extras.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1] if sys.argv[1:] else "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = ("coinstac", "demo", "excel", "images", "nifti", "plots")
optional = project["project"]["optional-dependencies"]
extras = [requirement for extra in (*EXTRAS, *sys.argv[2:]) for requirement in optional[extra]]
print(*project["build-system"]["requires"], *project["project"]["dependencies"], *extras, sep="\n")
