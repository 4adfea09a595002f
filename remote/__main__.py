"""`python -m remote`: the aggregator's command alone."""

from __future__ import annotations

from rankdad_shadows import refuse_shadows

refuse_shadows()

from common.command import new_app, run  # noqa: E402
from remote.cli import mount  # noqa: E402

app = new_app("rankdad: the aggregator's command.")
mount(app)
run(app)
