"""`python -m local`: a site's commands alone."""

from __future__ import annotations

from rankdad_shadows import refuse_shadows

refuse_shadows()

from common.command import new_app, run  # noqa: E402
from local.cli import mount  # noqa: E402

app = new_app("rankdad: a site's commands.")
mount(app)
run(app)
