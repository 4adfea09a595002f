"""A site's checkpoint: all that it needs to go on from a step, in one file that is whole or not there.

The last two are kept. A file is safetensors: tensors by name, and one JSON object as its metadata. Nothing in it names
code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from common.errors import UserError
from common.factors import Factor
from common.methods import State
from common.plan import Plan
from common.replica import Replica
from local.training import TrainingState

KEPT = 2
EVERY = 50  # steps between two checkpoints
SCALARS = ("round", "epoch", "step", "best_value", "best_epoch", "stale")


def save_checkpoint(folder: Path, plan: Plan, replica: Replica, state: TrainingState) -> None:
    """Write a checkpoint between two steps, and remove all but the last two.

    Raises:
        UserError: the disk is full or broken; the last checkpoint stays.
    """
    tensors = _named("replica", replica.state()) | _named("best", state.best_weights) | _method_tensors(state.method)
    document = {
        "plan_sha256": plan.sha256(),
        "site": state.site,
        "roster": list(state.roster),
        "replica_step": replica.step,
        **{name: getattr(state, name) for name in SCALARS},
    }
    path = folder / f"{state.round:012d}.safetensors"
    temporary = path.with_suffix(".tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, temporary, {"": json.dumps(document)})
        os.replace(temporary, path)  # noqa: PTH105
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"{path}: the checkpoint cannot be written: {error}") from None
    for old in sorted(folder.glob("*.safetensors"))[:-KEPT]:
        old.unlink(missing_ok=True)


def load_checkpoint(folder: Path, plan: Plan, replica: Replica, site: str) -> TrainingState | None:
    """Load the newest readable checkpoint into the replica, and return the site's state; None if there is none.

    Raises:
        UserError: the checkpoint is that of another run, plan, version or site.
    """
    for path in sorted(folder.glob("*.safetensors"), reverse=True):
        try:
            with safe_open(path, framework="pt") as file:
                document = json.loads(file.metadata()[""])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, ValueError, KeyError, TypeError):
            continue  # cut short by a crash: the one before it is whole
        if (document["plan_sha256"], document["site"]) != (plan.sha256(), site):
            raise UserError(
                f"{path}: is a checkpoint of another run or site; choose another output, or remove {folder}"
            )
        replica.load_state(_under("replica", tensors), document["replica_step"])
        state = TrainingState(site, roster=tuple(document["roster"]), method=_method_state(tensors, replica))
        for name in SCALARS:
            setattr(state, name, document[name])
        state.best_weights = _under("best", tensors)
        return state
    return None


def _method_tensors(method: State) -> dict[str, Tensor]:
    """Return copies on the CPU by name: a part of a received update would take the whole of it along."""
    tensors = _named("basis", method.bases)
    for name, residual in method.residuals.items():
        if isinstance(residual, Factor):
            tensors |= {f"delta/{name}": residual.delta, f"activation/{name}": residual.activation}
        else:
            tensors[f"residual/{name}"] = residual
    return {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}


def _method_state(tensors: Mapping[str, Tensor], replica: Replica) -> State:
    device = next(replica.model.parameters()).device
    moved = {name: value.to(device) for name, value in tensors.items() if not name.startswith(("replica/", "best/"))}
    deltas, activations = _under("delta", moved), _under("activation", moved)
    residuals: dict[str, Factor | Tensor] = {name: Factor(deltas[name], activations[name]) for name in deltas}
    return State(residuals | _under("residual", moved), _under("basis", moved))


def _named(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{kind}/{name}": value for name, value in tensors.items()}


def _under(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{kind}/"): value for name, value in tensors.items() if name.startswith(f"{kind}/")}
