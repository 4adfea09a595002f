"""The aggregator as a workflow of NVFlare's server: a task for every member in each iteration, until all are done."""

from __future__ import annotations

from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal

from rankdad.common.files import make_folder
from rankdad.platforms.neuroflame.folders import ERROR, central, workspace
from rankdad.platforms.nvflare.controller import RunController
from rankdad.remote.signs import PATIENCE, Signs


class IterationController(RunController):
    """A run's aggregator."""

    def _lead(self, abort_signal: Signal, fl_ctx: FLContext) -> str:
        from rankdad.platforms.coinstac.carried import lead

        self._signs = Signs(self._clients, PATIENCE, self._inbox)
        lead(
            self._clients,
            make_folder(central(workspace())),
            self._inbox,
            lambda client, said: self._post(client, said, fl_ctx),
            lambda: self._stops(abort_signal),
            lambda line: self.log_info(fl_ctx, line),
        )
        return "the run has completed"

    def _fail(self, reason: str, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """End the job with a sentence, which the central node's container ends with, too."""
        reason = "; ".join(reason.splitlines())
        (make_folder(central(workspace())) / ERROR).write_text(reason + "\n", encoding="utf-8")
        super()._fail(reason, abort_signal, fl_ctx)
