"""Checkpoints of divided replicas: each rank writes its parts, and any other mesh, or one process, reads them."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from torch.distributed.device_mesh import init_device_mesh

from rankdad.common.models import build_model
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.checkpoints import Checkpoints
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.local.ranks.checkpoints import SharedCheckpoints
from rankdad.local.ranks.divided import DividedReplica
from tests.ranks import run_ranks
from tests.texts import text_spec

SPEC = text_spec(federation={"sites": ["alpha"]}, training={"optimizer": {"name": "adam", "lr": 0.01}})
PLAN = make_plan(SPEC, build_model(SPEC))
MESHES = ({"pipeline": 2, "tensor": 2}, {"shard": 2, "tensor": 2}, {"data": 2, "shard": 2})


def state_of(replica: Replica) -> RunState:
    state = RunState(SPEC, PLAN, replica)
    state.set_roster(((20,),) * PLAN.folds)
    return state


def stepped(state: RunState) -> RunState:
    """Take a step with gradients that are equal everywhere."""
    generator = torch.Generator().manual_seed(state.steps)
    shapes = {name: value.shape for name, value in build_model(SPEC).named_parameters()}
    gradients = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    state.replica.apply(state.replica.parts(gradients))
    state.best_weights = state.replica.weights()
    state.note(steps=state.steps + 1, round=state.round + 1)
    return state


def alone(steps: int = 0) -> RunState:
    state = state_of(Replica(SPEC, model=build_model(SPEC)))
    for _ in range(steps):
        stepped(state)
    return state


def folder_of(base: str | Path, mesh: dict[str, int]) -> Path:
    return Path(base, "-".join(mesh))


def at_a_rank(base: str) -> list[float]:
    """Write two checkpoints of each mesh; then go on from the mesh before it, and return how far that leads away."""
    ranks: Any = SimpleNamespace(rank=dist.get_rank(), size=4, together=nullcontext, patient=nullcontext)
    kept, apart = [], list[float]()
    for mesh in MESHES:
        connected = init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh))
        state = state_of(DividedReplica(SPEC, build_model(SPEC), connected))
        checkpoints = SharedCheckpoints(ranks, folder_of(base, mesh), PLAN, "alpha", divided=True)
        for _ in range(2):
            checkpoints.save(stepped(state), {"residual": torch.ones(3)})
        kept.append((state, checkpoints))
    for (_, checkpoints), (state, _) in pairwise([*kept, kept[0]]):
        found = checkpoints.find()
        assert found is not None
        checkpoints.restore(state, found)
        weights, best = stepped(state).replica.gathered(state.replica.weights()), state.best_weights
        apart += [furthest(weights, alone(3).replica.weights()), furthest(best, state.replica.weights())]
    return apart if not ranks.rank else []


def furthest(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    return max((float((ours[name] - theirs[name]).abs().max()) for name in ours if ours[name].numel()), default=0.0)


@pytest.mark.slow
def test_each_rank_writes_its_parts_and_other_meshes_or_one_process_go_on_from_them(tmp_path: Path) -> None:
    apart, *_ = run_ranks(4, at_a_rank, str(tmp_path))
    assert max(apart) < 1e-6
    for mesh in MESHES:
        folder = folder_of(tmp_path, mesh)
        parts, files = sorted(folder.glob("*.parts")), sorted(folder.glob("*.safetensors"))
        assert [path.stem for path in parts] == [path.stem for path in files]
        assert [len(list(one.iterdir())) for one in parts] == [4, 4]
        for file in files:  # has nothing of the model, and no file is a pickle
            with safe_open(file, framework="pt") as opened:
                assert not [key for key in opened.keys() if key.startswith(("replica/", "best/"))]  # noqa: SIM118
        sizes = [path.stat().st_size for path in parts[-1].iterdir()]
        assert max(sizes) < 2 * sum(sizes) / len(sizes)
        for left in (2, 1):  # the second is damaged, and the first is used
            state = alone()
            assert Checkpoints(folder, PLAN, "alpha").load(state) is not None
            assert state.steps == left
            assert furthest(state.replica.state(), alone(left).replica.state()) < 1e-6
            damaged = max(parts[-1].iterdir())
            damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
        (folder / "new.parts").mkdir()  # a rank was killed while it wrote
        Checkpoints(folder, PLAN, "alpha").save(alone(3), {})
        assert not list(folder.glob("*.parts"))
