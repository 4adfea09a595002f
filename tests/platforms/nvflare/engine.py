"""NVFlare's classes as far as ours touch them, and a loop in place of its server and clients."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

from tests.platforms.stubbed import stubbed

OK, ABORTED = "OK", "TASK_ABORTED"


class Shareable(dict[str, Any]):
    code = OK

    def get_return_code(self) -> str:
        return self.code


def make_reply(code: str) -> Shareable:
    reply = Shareable()
    reply.code = code
    return reply


@dataclass
class Task:
    name: str
    data: Shareable
    result_received_cb: Any


class Component:
    lines: list[str]

    def __init__(self) -> None:
        self.lines, self.panics = [], list[str]()

    def log_info(self, fl_ctx: Any, line: str) -> None:
        self.lines.append(line)

    log_warning = log_error = log_exception = log_info

    def system_panic(self, reason: str, fl_ctx: Any) -> None:
        self.panics.append(reason)


class Controller(Component):
    engine: Any

    def set_communicator(self, communicator: Any) -> None:
        self.communicator = communicator

    def send(self, task: Task, fl_ctx: Any, targets: list[str]) -> None:
        for node in targets:
            self.engine.tasks[node].put(task)


@dataclass
class Signal:
    triggered: bool = False


@dataclass
class Context:
    """A node's context: its name, its kit and its job."""

    name: str
    kit: Path
    config: Path
    job: str = "job"
    props: dict[str, Any] = field(default_factory=dict)
    clients: list[str] = field(default_factory=list)  # that the job has been handed to

    def get_identity_name(self) -> str:
        return self.name

    def get_engine(self) -> Any:
        return SimpleNamespace(get_clients=lambda: [SimpleNamespace(name=name) for name in self.clients])

    def get_job_id(self) -> str:
        return self.job

    def get_prop(self, key: str) -> Any:
        if key == "workspace":
            return SimpleNamespace(
                get_site_config_dir=lambda: str(self.kit), get_app_config_dir=lambda job: str(self.config)
            )
        return {"submitter_name": "lead@example.org"} if key == "meta" else self.props.get(key)


class Limits:
    most = 1 << 31

    def get_max_message_size(self) -> int:
        return self.most

    def get_streaming_chunk_size(self, default: int) -> int:
        return default


MODULES: dict[str, dict[str, Any]] = {
    "nvflare.apis.client": {"Client": object},
    "nvflare.apis.controller_spec": {"ClientTask": object, "Task": Task},
    "nvflare.apis.event_type": {
        "EventType": SimpleNamespace(CLIENT_DISCONNECTED="gone", END_RUN="end", ABORT_TASK="abort")
    },
    "nvflare.apis.executor": {"Executor": Component},
    "nvflare.apis.fl_constant": {
        "FLContextKey": SimpleNamespace(
            WORKSPACE_OBJECT="workspace", JOB_META="meta", DISCONNECTED_CLIENT_NAME="disconnected"
        ),
        "ReturnCode": SimpleNamespace(
            OK=OK, TASK_ABORTED=ABORTED, TASK_UNKNOWN="TASK_UNKNOWN", EXECUTION_EXCEPTION="EXECUTION_EXCEPTION"
        ),
    },
    "nvflare.apis.fl_context": {"FLContext": Context},
    "nvflare.apis.impl.controller": {"Controller": Controller},
    "nvflare.apis.shareable": {"Shareable": Shareable, "make_reply": make_reply},
    "nvflare.apis.signal": {"Signal": Signal},
    "nvflare.apis.wf_comm_spec": {"WFCommSpec": object},
    "nvflare.fuel.f3.comm_config": {"CommConfigurator": Limits},
}
OURS = tuple(
    f"rankdad.platforms.{engine}.{half}"
    for engine in ("nvflare", "neuroflame")
    for half in ("controller", "executor", "limits")
)


def stubs() -> AbstractContextManager[None]:
    """Put these classes in the place of NVFlare's within a `with`."""
    return stubbed(MODULES, OURS)


class Engine:
    """A job: the server's control flow, and every client's executor in a thread of its own.

    Args:
        folder: where the kits lie, one for each node.
        config: the job's config folder.
        sites: the clients.
    """

    def __init__(self, folder: Path, config: Path, sites: tuple[str, ...]) -> None:
        from rankdad.platforms.nvflare.controller import RunController
        from rankdad.platforms.nvflare.executor import SiteExecutor

        self.tasks: dict[str, SimpleQueue[Task | None]] = {site: SimpleQueue() for site in sites}
        self.controller: Any = RunController()
        self.controller.engine = self
        self.controller.set_communicator(SimpleNamespace(client_is_active=lambda name, reason, fl_ctx: None))
        self.executors: dict[str, Any] = {site: SiteExecutor() for site in sites}
        self.contexts = {node: Context(node, folder / node, config) for node in ("server", *sites)}
        self.contexts["server"].clients = list(sites)
        self.signal, self.codes = Signal(), list[str]()
        self.one = threading.Lock()  # nodes are processes: here models are made one after the other
        self.spoil: Any = lambda node, result: result  # what a hostile node sends in place of its result

    def run(self) -> None:
        """See the job through."""
        threads = [threading.Thread(target=self._client, args=(site,), daemon=True) for site in self.tasks]
        for thread in threads:
            thread.start()
        self.controller.control_flow(self.signal, self.contexts["server"])
        self.signal.triggered = True
        for queue in self.tasks.values():
            queue.put(None)
        for site, thread in zip(self.tasks, threads, strict=True):
            thread.join(60)
            self.executors[site].handle_event("end", self.contexts[site])
            if (own := self.executors[site]._site) is not None:
                own.stop(30)
            assert not thread.is_alive()

    def kill(self, site: str) -> None:
        """Lose a client's process, as the engine says once it has noticed."""
        self.contexts["server"].props["disconnected"] = site
        self.controller.handle_event("gone", self.contexts["server"])

    def _client(self, site: str) -> None:
        while (task := self.tasks[site].get()) is not None:
            self.controller.communicator.client_is_active(site, "getTask", self.contexts["server"])
            with self.one:
                result = self.executors[site].execute(task.name, task.data, self.contexts[site], self.signal)
            self.codes.append(result.code)
            given = self.spoil(site, result)
            if given is not None:
                client = SimpleNamespace(name=site)
                task.result_received_cb(SimpleNamespace(result=given, client=client), self.contexts["server"])

    def said(self) -> Mapping[str, list[str]]:
        """Return what each node's log has."""
        nodes: dict[str, Any] = {"server": self.controller, **self.executors}
        return {node: one.lines for node, one in nodes.items()}
