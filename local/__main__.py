"""`python -m local`: a site's commands alone."""

from __future__ import annotations

from common.command import new_app, run
from local.cli import mount

app = new_app("rankdad: a site's commands.")
mount(app)
run(app)
