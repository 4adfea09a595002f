"""`python -m benchmarks`: every figure of the documentation, measured again; run from a checkout."""

from __future__ import annotations

from benchmarks.cli import app
from rankdad.command import run

run(app)
