"""The iterations of this platform over an engine that carries bytes: both halves, as JSON."""

from __future__ import annotations

import json
import sys
import threading
import traceback
from collections.abc import Callable, Collection
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from rankdad.common.errors import RankdadError, public_reason
from rankdad.common.protocol.lost import Lost
from rankdad.platforms.coinstac.aggregator_node import AggregatorNode
from rankdad.platforms.coinstac.outputs import Failed, NodeState, Reply, reply
from rankdad.platforms.coinstac.site_node import SiteNode

TICK = 0.25  # seconds between two looks at whether the engine ends the run


class CarriedSite:
    """A site: what the aggregator says comes in, what the site says goes out.

    Args:
        begun: returns the inputs and what others call the site.
        data: folder of the site's files.
        output: folder of its results.

    Attributes:
        reason: always empty: a site's output has the reason for its end.
    """

    reason = ""

    def __init__(self, begun: Callable[[], tuple[dict[str, Any], str]], data: Path, output: Path) -> None:
        self._begun, self._data, self._output = begun, data, output
        self._node = SiteNode(say=lambda line: print(line, file=sys.stderr, flush=True))
        self._iteration, self._works = 0, threading.Lock()

    def advance(self, said: bytes, stops: Callable[[], bool]) -> bytes:
        """Hand in what the aggregator says, which is empty at first, and return what the site says."""
        with self._works:
            try:
                answer = self._answer(said)
            except Exception as error:  # its words stay here
                traceback.print_exception(error)
                answer = reply(Failed(reason=public_reason(error)))
        return json.dumps(answer.output).encode()

    def stop(self) -> None:
        """Close the site's files, unless it works on them: then its process ends with the run."""
        if self._works.acquire(blocking=False):
            self._node.close()
            self._works.release()

    def _answer(self, said: bytes) -> Reply:
        inputs, name = self._begun()
        self._iteration += 1
        places = {"baseDirectory": str(self._data), "outputDirectory": str(self._output)}
        state = NodeState(iteration=self._iteration, clientId=name, **places)
        return self._node.advance(json.loads(said) if said else inputs, state)


def lead(
    clients: Collection[str],
    folder: Path,
    inbox: SimpleQueue[tuple[str, object]],
    post: Callable[[str, bytes], None],
    stops: Callable[[], bool],
    say: Callable[[str], None],
) -> None:
    """See a run through: every iteration waits for all sites, however long one takes.

    Args:
        clients: the sites, as the engine calls them.
        folder: of the aggregator's files.
        inbox: messages of sites: a client's name, and bytes or a `Lost`.
        post: sends what the aggregator says to a client.
        stops: returns whether the engine ends the run.
        say: writes a line to the engine's log.

    Raises:
        RankdadError: the run ends for all.
    """
    node, said = AggregatorNode(say=say), b""
    try:
        for iteration in count(1):
            for client in sorted(clients):
                post(client, said)
            outputs = _outputs(clients, inbox, stops)
            answer = node.advance(outputs, NodeState(iteration=iteration, outputDirectory=str(folder)))
            if answer.success:
                return
            said = json.dumps(answer.output).encode()
    finally:
        node.close()


def _outputs(
    clients: Collection[str], inbox: SimpleQueue[tuple[str, object]], stops: Callable[[], bool]
) -> dict[str, Any]:
    """Return what all sites say in one iteration.

    Raises:
        RankdadError: a site is lost, or the engine ends the run.
    """
    outputs = dict[str, Any]()
    while len(outputs) < len(clients):
        if stops():
            waits = ", ".join(sorted({*clients} - outputs.keys()))
            raise RankdadError(f"stopped by the engine while it waited for {waits}", code="stopped")
        try:
            client, said = inbox.get(timeout=TICK)
        except Empty:
            continue
        if isinstance(said, Lost):
            raise RankdadError(f"{client}: {said.reason}", code="member-failed")
        try:
            outputs[client] = json.loads(said)  # type: ignore[arg-type]
        except (ValueError, TypeError, RecursionError):
            raise RankdadError(f"{client}: says what is not JSON", code="member-failed") from None
    return outputs
