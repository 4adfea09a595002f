"""`python -m remote`: the aggregator's command alone."""

from __future__ import annotations

from common.command import new_app, run
from remote.cli import mount

app = new_app("rankdad: the aggregator's command.")
mount(app)
run(app)
