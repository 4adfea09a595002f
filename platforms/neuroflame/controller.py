"""The aggregator as a workflow of NVFlare's server: a task for every member in each iteration, until all are done."""

from __future__ import annotations

import json
from itertools import count
from queue import Empty
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal

from rankdad.common.errors import RankdadError
from rankdad.common.files import make_folder
from rankdad.common.protocol.lost import Lost
from rankdad.platforms.neuroflame.folders import ERROR, central, workspace
from rankdad.platforms.nvflare.controller import RunController

TICK = 0.25  # seconds between two looks at whether the engine ends the job


class IterationController(RunController):
    """A run's aggregator: it waits for all members in every iteration, however long one takes."""

    def system_panic(self, reason: str, fl_ctx: FLContext) -> None:
        """End the job with a sentence, which the central node's container ends with, too."""
        reason = "; ".join(reason.splitlines())
        (make_folder(central(workspace())) / ERROR).write_text(reason + "\n", encoding="utf-8")
        super().system_panic(reason, fl_ctx)

    def _lead(self, abort_signal: Signal, fl_ctx: FLContext) -> str:
        from rankdad.platforms.coinstac.aggregator_node import AggregatorNode
        from rankdad.platforms.coinstac.outputs import NodeState

        folder = make_folder(central(workspace()))
        node, said = AggregatorNode(say=lambda line: self.log_info(fl_ctx, line)), b""
        try:
            for iteration in count(1):
                for client in sorted(self._clients):
                    self._post(client, said, fl_ctx)
                state = NodeState(iteration=iteration, outputDirectory=str(folder))
                reply = node.advance(self._outputs(abort_signal), state)
                if reply.success:
                    break
                said = json.dumps(reply.output).encode()
        finally:
            node.close()
        return "the run has completed"

    def _outputs(self, abort_signal: Signal) -> dict[str, Any]:
        """Return what all members say in one iteration.

        Raises:
            RankdadError: a member is lost, or the engine ends the job.
        """
        outputs = dict[str, Any]()
        while len(outputs) < len(self._clients):
            if abort_signal.triggered:
                raise RankdadError("stopped by the engine", code="stopped")
            try:
                client, said = self._inbox.get(timeout=TICK)
            except Empty:
                continue
            if isinstance(said, Lost):
                raise RankdadError(f"{client}: {said.reason}", code="member-failed")
            try:
                outputs[client] = json.loads(said)  # type: ignore[arg-type]
            except (ValueError, TypeError, RecursionError):
                raise RankdadError(f"{client}: says what is not JSON", code="member-failed") from None
        return outputs
