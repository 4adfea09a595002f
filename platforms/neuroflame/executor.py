"""A member as an executor of NVFlare's client: a task has what the aggregator says, its result what the site says.

What is printed here is the member's alone: `__main__.take_part` keeps it among the results. The first task is empty.
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import TYPE_CHECKING

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from rankdad.platforms.nvflare.site import KEY

if TYPE_CHECKING:
    from rankdad.platforms.coinstac.outputs import Reply
    from rankdad.platforms.coinstac.site_node import SiteNode


class SiteExecutor(Executor):  # type: ignore[misc]
    """A member of a run."""

    def __init__(self) -> None:
        super().__init__()
        self._node: SiteNode | None = None
        self._iteration = 0

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Hand in what the aggregator says, and return what the site says."""
        said = shareable.get(KEY)
        if task_name != KEY or not isinstance(said, bytes):
            return make_reply(ReturnCode.TASK_UNKNOWN)
        from rankdad.common.errors import public_reason
        from rankdad.platforms.coinstac.outputs import Failed, reply

        try:
            answer = self._advance(said, fl_ctx.get_identity_name())
        except Exception as error:  # its words stay here
            traceback.print_exception(error)
            answer = reply(Failed(reason=public_reason(error)))
        result = make_reply(ReturnCode.OK)
        result[KEY] = json.dumps(answer.output).encode()
        return result

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Let go of the site's files when its job ends."""
        if event_type == EventType.END_RUN and self._node is not None:
            self._node.close()

    def _advance(self, said: bytes, client: str) -> Reply:
        from rankdad.platforms.coinstac.outputs import NodeState
        from rankdad.platforms.coinstac.site_node import SiteNode
        from rankdad.platforms.neuroflame.folders import site_inputs, workspace

        root = workspace()
        inputs, name = site_inputs(root, client)
        self._node = self._node or SiteNode(say=lambda line: print(line, file=sys.stderr, flush=True))
        self._iteration += 1
        places = {"baseDirectory": str(root / "data"), "outputDirectory": str(root / "output")}
        state = NodeState(iteration=self._iteration, clientId=name, **places)
        return self._node.advance(json.loads(said) if said else inputs, state)
