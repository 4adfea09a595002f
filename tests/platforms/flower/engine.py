"""Flower's classes as far as ours touch them, and a thread for every node in place of its processes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

from tests.platforms.stubbed import stubbed

UNAVAILABLE = 5
NUMBERS = itertools.count(1)


class Message:
    """Of the engine: `error` is a code."""

    def __init__(
        self, content: Any = None, dst: int = 0, kind: str = "", *, reply_to: Message | None = None, error: int = 0
    ) -> None:
        self.number: str = str(next(NUMBERS))
        self.node = dst
        self.metadata = SimpleNamespace(reply_to_message_id=reply_to.number if reply_to else "")
        self.content, self.error = content, SimpleNamespace(code=error)

    def has_error(self) -> bool:
        return bool(self.error.code)


class App:
    """An app of either kind."""

    def query(self) -> Any:
        return lambda function: function

    main = query


@dataclass
class Context:
    run_config: dict[str, Any]
    node_config: dict[str, Any] = field(default_factory=dict)
    run_id: int = 1


MODULES: dict[str, dict[str, Any]] = {
    "flwr.app": {"ConfigRecord": dict, "Context": Context, "Message": Message, "RecordDict": dict},
    "flwr.clientapp": {"ClientApp": App},
    "flwr.serverapp": {"Grid": object, "ServerApp": App},
}
OURS = tuple(f"rankdad.platforms.flower.{name}" for name in ("client_app", "nodes", "server_app"))


def stubs() -> AbstractContextManager[None]:
    """Put these classes in the place of Flower's within a `with`."""
    return stubbed(MODULES, OURS)


class Engine:
    """A job: the ServerApp, and a thread for every node.

    Args:
        folder: of the settings.
        config: of the job.
        nodes: by number, the names that they are registered under.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], nodes: Mapping[int, str]) -> None:
        from rankdad.local.drivers.carried import Carried
        from rankdad.platforms.flower import client_app, site

        self.folder, self.config = folder, dict(config)
        self.client: Any = client_app
        self.job = next(NUMBERS)
        self.names, self.since = dict(nodes), dict.fromkeys(nodes, "0")
        self.tasks = {node: SimpleQueue[Message | None]() for node in nodes}
        self.answers: dict[str, Message] = {}
        self.sites: dict[str, Carried] = {}
        self.one = threading.Lock()  # nodes are processes: here models are made one after the other
        self.spoil: Any = lambda name, answer: answer  # what becomes of an answer; None: it is lost
        self.crossed: list[bytes] = []
        self.make: Any = lambda place: Carried(site.name_of(place), site.live(place))
        vars(client_app)["answer"] = self._answer

    def _answer(self, place: str, run: object, job: str, reply: bytes) -> bytes:
        """Do what a resident process does."""
        if place not in self.sites:
            self.sites[place] = self.make(place)
        return self.sites[place].advance(reply) or b""

    def run(self) -> str:
        """See the job through, and return what has ended it; "" of one that has completed."""
        from rankdad.platforms.flower import nodes, server_app

        nodes.INTERVAL, nodes.ROLL_CALL = 0.01, 0.2
        threads = [threading.Thread(target=self._work, args=(node,), daemon=True) for node in self.tasks]
        for thread in threads:
            thread.start()
        try:
            server_app.main(self, Context(self.config, run_id=self.job))
        except server_app.JobError as error:
            return str(error)
        finally:
            for queue in self.tasks.values():
                queue.put(None)
            for thread in threads:
                thread.join(60)
            for one in self.sites.values():
                one.stop(30)
        return ""

    def _work(self, node: int) -> None:
        while (message := self.tasks[node].get()) is not None:
            place = str(self.folder / f"{self.names[node]}.json")
            context = Context(self.config, {"rankdad": place}, self.job)
            with self.one:
                answer = self.spoil(self.names[node], self.client.query(message, context))
            if answer is not None:
                answer.metadata.reply_to_message_id = message.number
                self.crossed += list(((answer.content or {}).get("rankdad") or {}).values())
                self.answers[message.number] = answer

    def again(self, node: int) -> None:
        """Start a node's process again."""
        self.since[node] = str(time.monotonic())

    def get_nodes(self) -> list[Any]:
        return [
            SimpleNamespace(node_id=node, name=name, last_activated_at=self.since[node])
            for node, name in list(self.names.items())
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        pushed = list(messages)
        for message in pushed:
            self.tasks[message.node].put(message)
        return [message.number for message in pushed]

    def pull_messages(self, numbers: Iterable[str]) -> list[Message]:
        return [self.answers.pop(number) for number in numbers if number in self.answers]
