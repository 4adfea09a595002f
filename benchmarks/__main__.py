"""`python -m benchmarks`: every figure of the documentation, measured again; run from a checkout."""

from __future__ import annotations

from benchmarks.plugins import put_on_path

put_on_path()

from benchmarks.cli import app  # noqa: E402
from rankdad.command import run  # noqa: E402

run(app)
