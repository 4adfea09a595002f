"""The platform's iterations over nodes in this process: no sockets, but the same JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rankdad.platforms.coinstac.aggregator_node import AggregatorNode
from rankdad.platforms.coinstac.compspec import compspec
from rankdad.platforms.coinstac.fields import FIELDS
from rankdad.platforms.coinstac.outputs import NodeState, Reply
from rankdad.platforms.coinstac.service import Node
from rankdad.platforms.coinstac.site_node import SiteNode
from tests.coinstac.app import App
from tests.coinstac.typed import Tick
from tests.conftest import OPEN, write_site

REMOTE = "remote"


@dataclass
class Iterations:
    """A run.

    Args:
        folder: of all nodes' folders.
        inputs: of every member, by the client's id; its files lie in its folder `base`.
        typed: whether people fill them in, in the platform's app; else a simulator hands them over as they are.
        replaced: told an iteration and a node; returns whether a fresh process takes over before it works.
        forgotten: the same; returns whether it dies when it has worked, and a fresh process does it again.
    """

    folder: Path
    inputs: dict[str, dict[str, Any]]
    replaced: Callable[[int, str], bool] = lambda iteration, node: False
    forgotten: Callable[[int, str], bool] = lambda iteration, node: False
    typed: bool = True
    nodes: dict[str, Node] = field(default_factory=dict)
    iteration: int = 1
    outputs: list[dict[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.typed:
            self.inputs = through_the_app(self.folder, self.inputs)

    def state(self, client: str) -> NodeState:
        folders = {kind: self.folder / client / kind for kind in ("base", "output")}
        for path in folders.values():
            path.mkdir(parents=True, exist_ok=True)
        here, now = {kind: str(path) for kind, path in folders.items()}, self.iteration
        return NodeState(iteration=now, baseDirectory=here["base"], outputDirectory=here["output"], clientId=client)

    def ask(self, client: str, given: Mapping[str, Any], iteration: int) -> Reply:
        self.iteration = iteration
        if client not in self.nodes or self.replaced(iteration, client):
            self.start(client)
        reply = self.work(client, given)
        if self.forgotten(iteration, client):
            self.start(client)
            again = self.work(client, given)
            assert (again.success, sent(again)) == (reply.success, sent(reply)), "the same bytes, whoever works"
        return reply

    def start(self, client: str) -> None:
        if client in self.nodes:
            self.nodes[client].close()
        kind = AggregatorNode if client == REMOTE else SiteNode
        self.nodes[client] = kind(say=lambda line: None)

    def work(self, client: str, given: Mapping[str, Any]) -> Reply:
        reply = self.nodes[client].advance(json.loads(json.dumps(given)), self.state(client))
        return Reply(json.loads(json.dumps(reply.output, allow_nan=False)), reply.success)

    def go(self, most: int = 500) -> dict[str, Any]:
        """Run to the end, and return the aggregator's last output."""
        try:
            return self.iterate(most)
        finally:
            for node in self.nodes.values():
                node.close()

    def iterate(self, most: int) -> dict[str, Any]:
        answer: Mapping[str, Any] = {}
        for iteration in range(1, most):
            outputs = {
                client: self.ask(client, answer if iteration > 1 else given, iteration).output
                for client, given in self.inputs.items()
            }
            self.outputs.append(outputs)
            reply = self.ask(REMOTE, outputs, iteration)
            if reply.success:
                return reply.output
            answer = reply.output
        raise AssertionError(f"no end after {most} iterations")


def through_the_app(folder: Path, inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what arrives of what people fill in, with each member's files linked into its folder `base`."""
    first = next(iter(inputs.values()))
    app = App(compspec(folder="folder" in first))
    owner = {name: value for name, value in first.items() if FIELDS[name].source == "owner"}
    form, arrived = app.consortium(owner), {}
    for client, typed in inputs.items():
        own, base = folder / client / "own", folder / client / "base"
        if not own.exists():
            base.rename(own)
            base.mkdir()
        given: dict[str, Any] = {name: typed.get(name, Tick.USE_DEFAULT) for name in ("min_rows", "max_rank")}
        given |= {"folder": own} if "folder" in typed else {"files": [own / name for name in typed["files"]]}
        mapped = form.member(client, given)
        assert not mapped.lost, mapped.lost
        mapped.link(base)
        assert {name: mapped.inputs[name] for name in typed if name != "folder"} == {
            name: value for name, value in typed.items() if name != "folder"
        }, "what is typed is what arrives"
        arrived[client] = mapped.inputs
    return arrived


def sent(reply: Reply) -> Any:
    """Return what a reply says to other nodes, but for times and a run's number, which differ."""
    message = dict(reply.output.get("rankdad", {}))
    return {key: value for key, value in message.items() if key not in ("results", "id")}


def member(folder: Path, name: str, samples: int, seed: int, **inputs: Any) -> dict[str, Any]:
    """Write a member's data and its own file where the platform shows them, and return its inputs."""
    write_site(folder, samples, seed)
    site_file(folder, name=name, policy=OPEN)
    return {"files": ["data.npz", "site.json"], **inputs}


def site_file(folder: Path, **content: Any) -> None:
    """Write a member's own JSON file."""
    (folder / "site.json").write_text(json.dumps(content))


def patients(folder: Path, rows: int = 60, **form: Any) -> dict[str, dict[str, Any]]:
    """Two members with a table each, and the owner's fields."""
    inputs = {}
    for place, client in enumerate(("9f0c", "8f0c")):
        base = folder / client / "base"
        base.mkdir(parents=True)
        generator = np.random.default_rng(place)
        sex = np.array(["F", "M"] * (rows // 2))
        age = generator.normal(50, 5, rows) + 10 * (sex == "M")
        table = pd.DataFrame({"id": [f"P{row}" for row in range(rows)], "age": age, "dose": age * 1000, "sex": sex})
        table.to_csv(base / f"{client}.csv", index=False)
        inputs[client] = {
            "files": [f"{client}.csv"],
            "min_rows": 8,
            "max_rank": 32,
            "label": "sex",
            "positive": "M",
            "epochs": 1,
            **form,
        }
    return inputs
