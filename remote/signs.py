"""Signs of life of an engine's nodes, for engines that do not report in time that a node's process is gone."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from queue import SimpleQueue

from rankdad.common.protocol.lost import Lost

PATIENCE = 300.0  # seconds: a job's process, which may have to start first, beats every ten


class Signs:
    """When the nodes of a run were last heard.

    A node that has called, but sends no heartbeats, may compute in silence for as long as it likes.

    Args:
        nodes: their names.
        patience: seconds of silence after which a node is lost.
        inbox: gets a `Lost` for every node that is lost.
    """

    def __init__(self, nodes: Iterable[str], patience: float, inbox: SimpleQueue[tuple[str, object]]) -> None:
        self._patience, self._inbox = patience, inbox
        self._heard = dict.fromkeys(nodes, time.monotonic())
        self._beating = set[str]()

    def heard(self, node: str, *, beats: bool) -> None:
        """Record a message of a node.

        Args:
            node: its name.
            beats: whether the message is a heartbeat.
        """
        if beats:
            self._beating.add(node)
        if node in self._heard:
            self._heard[node] = time.monotonic() if node in self._beating else math.inf

    def look(self) -> None:
        """Report the nodes that have been silent for too long."""
        for node, heard in list(self._heard.items()):
            if time.monotonic() - heard > self._patience:
                del self._heard[node]
                self._inbox.put((node, Lost(f"no sign of life from its process for {self._patience:g} seconds")))
