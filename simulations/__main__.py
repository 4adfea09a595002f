"""`python -m simulations`: the simulator's commands alone."""

from __future__ import annotations

from common.command import new_app, run
from simulations.cli import mount

app = new_app("rankdad: the simulator's commands.")
mount(app)
run(app)
