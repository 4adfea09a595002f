"""A site as an executor of NVFlare's client: a task hands in the aggregator's reply, its result is the next call.

No exception leaves this file, and nothing is logged where NVFlare could bring it to the server: it sends a job's
`error_log.txt` there, and a job may ask for the other logs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from rankdad.platforms.nvflare.limits import dropped
from rankdad.platforms.nvflare.site import KEY, site_life

if TYPE_CHECKING:
    from rankdad.platforms.jobs import SiteCalls


class SiteExecutor(Executor):  # type: ignore[misc]
    """A site of a run."""

    def __init__(self) -> None:
        super().__init__()
        self._site: SiteCalls | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Hand in a reply, and return the site's next call."""
        try:
            reply = shareable.get(KEY)
            if task_name != KEY or not isinstance(reply, bytes):
                return make_reply(ReturnCode.TASK_UNKNOWN)
            self._site = self._site or self._begin(fl_ctx)
            call = self._site.advance(reply, lambda: bool(abort_signal.triggered))
        except Exception as error:
            self.log_warning(fl_ctx, f"rankdad: {type(error).__name__}")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        if call is None:
            return make_reply(ReturnCode.TASK_ABORTED)
        if self._site.reason:
            self.log_error(fl_ctx, f"the site has ended: {self._site.reason}")
        result = make_reply(ReturnCode.OK)
        result[KEY] = call
        return result

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """End the site when its job ends."""
        if event_type in (EventType.END_RUN, EventType.ABORT_TASK) and self._site is not None:
            self._site.stop()

    def _begin(self, fl_ctx: FLContext) -> SiteCalls:
        from rankdad.local.drivers.carried import Carried

        logging.getLogger("rankdad").propagate = False
        node = fl_ctx.get_identity_name()
        workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        meta = fl_ctx.get_prop(FLContextKey.JOB_META) or {}
        owner = str(meta.get("submitter_name", ""))[:63]
        return Carried(node, site_life(node, workspace.get_site_config_dir(), owner), dropped)
