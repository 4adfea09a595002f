"""Pools a model's buffers, such as BatchNorm's statistics, at the end of an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor

from rankdad.common.errors import ProtocolError
from rankdad.common.protocol.arrays import pack_buffers, unpack_buffers
from rankdad.common.protocol.messages import Control, Count, Kind, Message, packed
from rankdad.common.rounds.base import Collected, Contributor, Due, Round
from rankdad.common.rounds.checks import MAX_SIZE, Checks
from rankdad.common.tensors import saved_buffers

if TYPE_CHECKING:
    from rankdad.common.run.state import RunState

BUFFERS = packed(pack_buffers, lambda data, plan, _: unpack_buffers(data, plan.buffers))


class Buffers(Control):
    """A model's buffers, with the number of training samples behind them; up or down."""

    samples: Count
    values: Annotated[dict[str, Tensor], *BUFFERS]


class BuffersRound(Round):
    """The exchange of buffers at the end of an epoch."""

    kind, up, down = Kind.BUFFERS, Buffers, Buffers

    def due(self, run: RunState) -> Due | None:
        """Return this round when the epoch's steps are done."""
        return run.next(self.kind) if run.trains and run.plan.buffers and not run.buffers_pooled else None

    def contribution(self, site: Contributor, due: Due, *, counts: bool) -> Buffers:
        """Return the replica's buffers."""
        return Buffers(samples=site.run.samples(site.index), values=saved_buffers(site.run.replica.model))

    def check(self, checks: Checks, site: str, message: Message, ago: int) -> None:
        """Check that numbers are within bounds, except for initial values such as infinity in a mask."""
        body, state = message.body, checks.state
        assert isinstance(body, Buffers)
        checks.count("d.samples", body.samples, sum(map(state.samples, checks.node.places[site])))
        initial = saved_buffers(state.replica.model)
        for name, value in body.values.items():
            least = 0.0 if name.endswith("running_var") else -MAX_SIZE  # square roots are taken of variances
            numbers = value.double()
            if not bool(((least <= numbers) & (numbers <= MAX_SIZE) | (value == initial[name].cpu())).all()):
                raise ProtocolError(
                    422,
                    f"d.values: {name} holds NaN, infinity or a number beyond {least:g} to {MAX_SIZE:g}",
                    code="not-finite",
                    field="d.values",
                )

    def pooled(self, here: Collected) -> Buffers:
        """Pool buffers: equal ones (masks) stay, real ones are averaged by training samples, counters take the maximum.

        Numbers that are not finite, as in a mask, are those of the first site.
        """
        sent = here.ready.bodies(Buffers)
        total = sum(buffers.samples for buffers in sent)
        weights = [buffers.samples / total if total else 1 / len(sent) for buffers in sent]
        parts = torch.tensor(weights, dtype=torch.float64)
        pooled: dict[str, Tensor] = {}
        for slot in here.plan.buffers:
            values = torch.stack([buffers.values[slot.name] for buffers in sent])
            if bool((values == values[0]).all()):
                pooled[slot.name] = values[0]
            elif values.is_floating_point():
                mean = torch.tensordot(parts, values.double().nan_to_num(0.0, 0.0, 0.0), dims=1).to(values.dtype)
                pooled[slot.name] = torch.where(torch.isfinite(values).all(dim=0), mean, values[0])
            else:
                pooled[slot.name] = values.amax(dim=0)
        return Buffers(samples=total, values=pooled)

    combined = pooled

    def apply(self, run: RunState, update: Message) -> None:
        """Load the pooled buffers."""
        assert isinstance(update.body, Buffers)
        run.replica.load(update.body.values)
        run.buffers_pooled = True
