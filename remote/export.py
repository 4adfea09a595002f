"""`rankdad export`: the model after any step of a run, by replaying updates from the initial weights.

If the file keeps only its tail, the replay starts at the last checkpoint before that step. It stops at damage.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import torch

from rankdad.common.documents import load_json, validate
from rankdad.common.errors import UserError
from rankdad.common.preparation import Preparing
from rankdad.common.protocol.codec import unpack
from rankdad.common.protocol.messages import Kind
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.artifacts import save_model
from rankdad.common.run.checkpoints import Checkpoints
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tree import TOP
from rankdad.remote.persistence import CHECKPOINTS
from rankdad.remote.records import DamageError
from rankdad.remote.run_directory import owner_of
from rankdad.remote.run_reader import FILE, RunReader

_log = logging.getLogger(__name__)


def export(
    directory: Path,
    step: int | None,
    output: Path,
    allowed_factories: Collection[str] = (),
    weights: Path | None = None,
) -> RunState:
    """Write the model after a step as the final one in `output`; return the run's state then.

    The run may be active.

    Args:
        directory: the run's.
        step: counted from 1; None is the last one.
        output: folder for `model/`.
        allowed_factories: permitted model factories.
        weights: folder of the pretrained weights that the spec names.

    Raises:
        UserError: the ledger is missing, of another version, or does not reach that step.
    """
    spec = validate(RunSpec, load_json(directory / "run.json"), file=directory / "run.json")
    torch.set_num_threads(spec.training.threads)
    replica = Replica(spec, allowed_factories, weights=weights)
    plan = make_plan(spec, replica.model)
    state = RunState(spec, plan, replica)
    ledger, damage = directory / FILE, ""
    checkpoints = Checkpoints(directory / CHECKPOINTS, plan, owner_of(directory) or TOP)
    with closing(RunReader(ledger, plan.sha256())) as file:
        if file.oldest > 0 and not checkpoints.load(state, step):
            raise UserError(
                f"--step: got {step}, but {ledger} keeps only the last checkpoints and later rounds",
                code="step-gone",
                field="--step",
            )
        try:
            for record in file.updates(state.round):
                if state.steps == step and state.due and state.due.kind is not Kind.BUFFERS:  # of the last step
                    break
                state.follow(unpack(record.body, plan, up=False))
        except DamageError as error:
            damage = str(error)
    if state.steps == 0:
        raise UserError(damage or f"{ledger}: has no step yet", code="no-step")
    if step not in (None, state.steps):
        reaches = damage or f"that is how far {ledger} reaches"
        raise UserError(
            f"--step: got {step}, expected 1 to {state.steps}: {reaches}", code="step-out-of-range", field="--step"
        )
    if damage:
        _log.warning("%s; the model is that of step %d, before it", damage, state.steps)
    fit = Preparing(spec).fit(state.totals_of(min(state.fold, plan.folds - 1)))
    save_model(output / "model", spec, {}, replica.weights(), fit)
    return state
