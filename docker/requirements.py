"""Prints the requirements for installing and building the project, one per line."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1] if sys.argv[1:] else "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = ("coinstac", "demo", "excel", "images", "nifti", "plots")
extras = [requirement for extra in EXTRAS for requirement in project["project"]["optional-dependencies"][extra]]
print(*project["build-system"]["requires"], *project["project"]["dependencies"], *extras, sep="\n")
