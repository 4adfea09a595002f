"""Through which files a contribution goes, from a site's batch to the weights of the aggregator's replica."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType

import numpy as np

from rankdad.common.data import read_site
from rankdad.common.documents import validate
from rankdad.common.lowrank.factors import Factor
from rankdad.common.policy import EVERYTHING
from rankdad.common.protocol.messages import Message
from rankdad.common.protocol.plan import make_plan
from rankdad.common.rounds.step import Step
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.local.batch import StepBatch
from rankdad.local.own_gradients import OwnGradients
from rankdad.local.site import Site, site_of
from rankdad.local.training import Result, TrainingState
from rankdad.remote.aggregator import Aggregator

SITES = "alpha", "beta"
ROUND = 4  # a step like any other
LEAST = 500  # bytes of a contribution
DOCUMENT = {
    "name": "way",
    "task": {"name": "classification", "classes": 3},
    "model": {"name": "mlp", "hidden": [16, 16]},
    "data": {"shape": [6]},
    "method": {"name": "rank-dad", "rank": 2},
    "training": {"epochs": 4, "batch_size": 8},
    "federation": {"sites": list(SITES)},
}


def is_contribution(value: object, depth: int = 2) -> bool:
    """Tell whether a value is, or holds, a batch, its gradients, what is sent of them, or what is made of that."""
    if isinstance(value, Factor | Message | Step | OwnGradients | StepBatch):
        return True
    if isinstance(value, bytes):
        return len(value) > LEAST
    held = list(value) if isinstance(value, tuple | list) else list(value.values()) if isinstance(value, dict) else []
    return depth > 0 and any(is_contribution(one, depth - 1) for one in held[:3])


class Way:
    """Notes the files in whose functions a contribution is an argument or a result, in order.

    Args:
        root: folder of the files that count.
    """

    def __init__(self, root: Path) -> None:
        self._root, self.files = f"{root.resolve()}/", list[str]()

    def during(self, work: Callable[[], object]) -> None:
        """Do a piece of work, and note the files."""
        sys.setprofile(self._look)
        try:
            work()
        finally:
            sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, value: object) -> None:
        code, file = frame.f_code, frame.f_code.co_filename
        if (
            event not in ("call", "return")
            or not file.startswith(self._root)
            or "site-packages" in file
            or file == __file__
        ):
            return
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        held = [frame.f_locals.get(name) for name in given] if event == "call" else [value]
        if any(map(is_contribution, held)):
            self.files.append(file.removeprefix(self._root).removeprefix("rankdad/"))


def way_of_a_contribution(root: Path) -> list[str]:
    """Return the files through which a contribution goes, in one process: what carries the bytes is not among them.

    Args:
        root: this checkout.
    """
    spec, way, (first, last) = validate(RunSpec, DOCUMENT), Way(root), SITES
    with tempfile.TemporaryDirectory() as folder:
        sites = {name: _site(spec, Path(folder), index) for index, name in enumerate(SITES)}
        with closing(Aggregator(spec, Replica(spec), Path(folder) / "run", lambda: 0.0)) as aggregator:
            answers = dict[str, bytes]()
            for _ in range(ROUND):
                bodies = {name: _said(site, answers.get(name)) for name, site in sites.items()}
                answers = {name: body for one in bodies for name, body in aggregator.take(one, bodies[one]).items()}
            aggregator.take(first, _said(sites[first], answers[first]))

            def contribute() -> None:
                aggregator.take(last, _said(sites[last], answers[last]))

            way.during(contribute)
    return list(dict.fromkeys(way.files))


def _said(site: Site[Result], answer: bytes | None) -> bytes:
    """Return a site's next contribution: nothing is known of a round that it asks for."""
    said = site.advance(answer)
    while isinstance(said, int):
        said = site.advance()
    assert said is not None
    return said


def _site(spec: RunSpec, folder: Path, index: int) -> Site[Result]:
    generator = np.random.default_rng(index)
    y = generator.integers(0, 3, 48)
    path = folder / SITES[index]
    path.mkdir()
    np.savez(path / "data.npz", x=generator.normal(size=(48, 6)) + np.eye(3, 6)[y], y=y)
    replica = Replica(spec)
    plan = make_plan(spec, replica.model)
    state = TrainingState(SITES[index], RunState(spec, plan, replica))
    return site_of(spec, plan, read_site(spec, path, index), state, EVERYTHING)
