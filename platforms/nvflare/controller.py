"""The aggregator as a workflow of NVFlare's server: a task for every reply, and its result is the site's next call.

An exception here would end the job by words of the engine's; what ends it is said in a sentence instead.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.wf_comm_spec import WFCommSpec

from rankdad.common.documents import load_json
from rankdad.common.errors import RankdadError, UserError
from rankdad.common.protocol.lost import Lost
from rankdad.platforms.nvflare.limits import dropped
from rankdad.platforms.nvflare.site import KEY, RUN
from rankdad.remote.signs import PATIENCE, Signs

HEARTBEAT = "jobHeartbeat"  # NVFlare's word for a message that a client's job process sends every ten seconds


class RunController(Controller):  # type: ignore[misc]
    """A run's aggregator."""

    def __init__(self) -> None:
        super().__init__()
        self._inbox = SimpleQueue[tuple[str, object]]()  # a node's name, and the bytes that it sent, or why it is lost
        self._clients = frozenset[str]()  # to which NVFlare has handed the job: it waits for others without end
        self._signs = Signs((), PATIENCE, self._inbox)

    def set_communicator(self, communicator: WFCommSpec) -> None:
        """Record every sign of life that NVFlare reports to its communicator."""
        super().set_communicator(communicator)
        is_active = communicator.client_is_active

        def heard(client_name: str, reason: str, fl_ctx: FLContext) -> None:
            self._signs.heard(client_name, beats=reason == HEARTBEAT)
            is_active(client_name, reason, fl_ctx)

        communicator.client_is_active = heard

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: a run begins with its control flow."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: the control flow has closed the run's files."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """See the run through; its aggregator is called in this thread alone."""
        try:
            self._clients = frozenset(client.name for client in fl_ctx.get_engine().get_clients())
            self.log_info(fl_ctx, self._lead(abort_signal, fl_ctx))
        except RankdadError as error:
            self._fail(f"{error} [{error.code}]", abort_signal, fl_ctx)
        except Exception as error:
            self.log_exception(fl_ctx, "an error of the aggregator's own")
            self._fail(f"an error of the aggregator's own ({type(error).__name__})", abort_signal, fl_ctx)

    def _fail(self, reason: str, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """End the job with a sentence; of a job that NVFlare ends already, the log has it."""
        if abort_signal.triggered:
            self.log_error(fl_ctx, reason)
        else:
            self.system_panic(reason, fl_ctx)

    def _lead(self, abort_signal: Signal, fl_ctx: FLContext) -> str:
        """See the run through, and return in a sentence how it has ended.

        Raises:
            RankdadError: what ends the job, in words that may be shown.
        """
        workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        document = None
        with suppress(UserError):
            document = load_json(Path(workspace.get_app_config_dir(fl_ctx.get_job_id())) / RUN)
        from rankdad.platforms.nvflare.settings import server_settings
        from rankdad.remote.hosted import host

        settings = server_settings(workspace.get_site_config_dir())
        self._signs = Signs(self._clients, settings.patience, self._inbox)
        return host(
            document,
            settings,
            self._inbox,
            lambda node, reply: self._post(node, reply, fl_ctx),
            lambda: self._stops(abort_signal),
            lambda line: self.log_info(fl_ctx, line),
        )

    def _stops(self, abort_signal: Signal) -> bool:
        """Return whether NVFlare ends the job, after a look for silent clients."""
        self._signs.look()
        return bool(abort_signal.triggered)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Take note of a client whose job process does not come back."""
        if event_type == EventType.CLIENT_DISCONNECTED:
            node = fl_ctx.get_prop(FLContextKey.DISCONNECTED_CLIENT_NAME)
            self._inbox.put((str(node), Lost("NVFlare has lost its process")))

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Drop what belongs to no task."""

    def _post(self, node: str, reply: bytes, fl_ctx: FLContext) -> None:
        if node not in self._clients:
            self._inbox.put((node, Lost("no client of this name takes part in the job")))
            return
        if why := dropped(len(reply)):
            self._inbox.put((node, Lost(f"at the server {why}")))
            return
        data = Shareable()
        data[KEY] = reply
        self.send(Task(name=KEY, data=data, result_received_cb=self._received), fl_ctx, targets=[node])

    def _received(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Put a site's call where the control flow finds it, under the name that the engine has checked."""
        result: Any = client_task.result
        code = result.get_return_code()
        node = client_task.client.name
        failed = code is not None and code != ReturnCode.OK
        self._inbox.put((node, Lost(f"NVFlare answers with {code}") if failed else result.get(KEY)))
