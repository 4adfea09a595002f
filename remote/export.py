"""`rankdad export`: the model of any step of a run, from the initial weights and the ledger alone."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch

from common.artifacts import save_model
from common.documents import load_json, validate
from common.errors import UserError
from common.follower import Follower
from common.ledger import Entry, read_ledger
from common.methods import method_for
from common.plan import make_plan
from common.protocol import unpack
from common.replica import Replica
from common.spec import RunSpec
from remote.aggregator import LEDGER


def export(directory: Path, step: int | None, output: Path, allowed_factories: Collection[str] = ()) -> Replica:
    """Write the model as it was after a step, as the final one of the output folder; return its replica.

    A run that is still going on is only read.

    Args:
        directory: of the run.
        step: counted from 1; None takes the last there is.
        output: for `model/`.
        allowed_factories: model factories that the caller permits.

    Raises:
        UserError: there is no ledger, it is that of other versions, or it does not reach so far.
    """
    spec = validate(RunSpec, load_json(directory / "run.json"), file=directory / "run.json")
    torch.set_num_threads(spec.training.threads)
    replica = Replica(spec, allowed_factories)
    plan = make_plan(spec, replica.model)
    method = method_for(spec, plan.routes, replica.model)
    follower = Follower(plan, method, replica, spec.training.step_size)
    for record in read_ledger(directory / LEDGER, plan.sha256()):
        if replica.step == step:
            break
        if record.entry is Entry.UPDATE:
            follower.follow(unpack(record.body, plan, up=False).body)
    if replica.step == 0 or (step is not None and replica.step != step):
        raise UserError(f"--step: got {step}, expected 1 to {replica.step}: so far does {directory / LEDGER} reach")
    save_model(output / "model", spec, {}, replica.weights())
    return replica
