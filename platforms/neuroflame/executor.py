"""A member as an executor of NVFlare's client: a task has what the aggregator says, its result what the site says.

What is printed here is the member's alone: `__main__.take_part` keeps it among the results. The first task is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvflare.apis.fl_context import FLContext

from rankdad.platforms.neuroflame.folders import site_inputs, workspace
from rankdad.platforms.nvflare.executor import SiteExecutor as Executor

if TYPE_CHECKING:
    from rankdad.platforms.coinstac.carried import CarriedSite


class SiteExecutor(Executor):
    """A member of a run."""

    def _begin(self, fl_ctx: FLContext) -> CarriedSite:
        from rankdad.platforms.coinstac.carried import CarriedSite

        root, client = workspace(), fl_ctx.get_identity_name()
        return CarriedSite(lambda: site_inputs(root, client), root / "data", root / "output")
