"""Says so when another package has the name of one of rankdad's: `python -m` and PYTHONPATH put other folders first."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("common", "local", "platforms", "remote", "simulations")


def refuse_shadows() -> None:
    """End with one sentence, before anything of another package runs; called ahead of all imports of ours."""
    here = Path(__file__).resolve().parent
    for name in PACKAGES:
        spec = find_spec(name)
        found = "" if spec is None or spec.origin is None else str(Path(spec.origin).resolve())
        if found != str(here / name / "__init__.py"):
            sentence = (
                f"{found or 'another folder'} has the name of rankdad's own package {name} and would be imported in "
                "its place: rename it, or start in another folder and without it in PYTHONPATH"
            )
            print(f"error: {sentence}", file=sys.stderr)
            sys.exit(2)
