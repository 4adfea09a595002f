"""A site whose state between two calls is a value, for whatever ends a process between two of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack
import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from rankdad.common.data import SiteData
from rankdad.common.errors import UserError, one_line
from rankdad.common.lowrank.reduction.feedback import Residuals
from rankdad.common.policy import Policy
from rankdad.common.protocol.plan import Plan
from rankdad.common.run.state import RunState
from rankdad.common.run.state_format import StateFormat
from rankdad.common.spec import RunSpec
from rankdad.local.observer import Observer
from rankdad.local.site import Site
from rankdad.local.starting import loaded_state, save_state
from rankdad.local.training import Result, TrainingState, train


class SavableSite(Site[Result]):
    """A site that can be saved between two calls, and made again from what was saved.

    Args:
        spec: the run.
        plan: of the run.
        data: the site's samples.
        name: of the site.
        run: at the run's beginning; changed in place.
        policy: of the site.
        observer: told what happens beside the messages.
        saved: what `save` has returned; without it the site is at its beginning. A site that is made again goes on
            with the answer to what it said last (`advance(answer)`), or says it once more (`advance()`).

    Raises:
        UserError: what was saved is of another run, site or version, or the site has other data.
    """

    def __init__(
        self,
        spec: RunSpec,
        plan: Plan,
        data: SiteData,
        name: str,
        run: RunState,
        policy: Policy,
        observer: Observer | None = None,
        saved: bytes | None = None,
    ) -> None:
        self._kept = _Kept(StateFormat(plan, name, data.sha256()))
        told, self._state = observer or Observer(), TrainingState(name, run)
        updates = dict[int, bytes]()
        if saved is not None:
            self._state, updates = self._kept.load(saved, self._state)

        def between_steps() -> None:
            told.between_steps()
            save_state(self._kept, self._state)

        def answered(round_: int, answer: bytes) -> None:
            told.answered(round_, answer)
            self._kept.updates[round_] = answer

        own = replace(told, between_steps=between_steps, answered=answered)
        training = train(spec, plan, data, self._state, policy, own, again=saved is not None)
        super().__init__(training, plan, device=run.replica.device, observer=own)
        if saved is not None:
            self.take()
            while self.due is not None and self.due.round in updates:
                self.take(updates[self.due.round])

    def save(self) -> bytes:
        """Return the state: that before the last step, and the updates since."""
        return self._kept.packed()


@dataclass(eq=False)
class _Kept:
    """What a site goes on from, in memory."""

    format: StateFormat
    state: bytes = b""
    updates: dict[int, bytes] = field(default_factory=dict)

    def save(
        self,
        state: RunState,
        residuals: Residuals,
        document: Mapping[str, Any],
        moments: Mapping[str, Tensor],
        changes: Sequence[Residuals],
    ) -> None:
        """Take a state in place of the last one and the updates since."""
        self.state = safetensors.torch.save(*self.format.of(state, residuals, document, moments, changes))
        self.updates.clear()

    def packed(self) -> bytes:
        """Return the state, and the updates since."""
        return bytes(msgpack.packb([self.state, list(self.updates.items())]))

    def load(self, saved: bytes, state: TrainingState) -> tuple[TrainingState, dict[int, bytes]]:
        """Return where the site stood, and the updates since."""
        place = f"what {state.site} has saved"
        try:
            self.state, updates = msgpack.unpackb(saved)
            self.updates = {int(round_): bytes(update) for round_, update in updates}
            if not self.state:
                return state, dict(self.updates)
            size = int.from_bytes(self.state[:8], "little")
            document = json.loads(json.loads(self.state[8 : 8 + size])["__metadata__"][""])
            self.format.check(document, place, "begin the run anew")
            tensors = safetensors.torch.load(self.state)
        except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"{place}: is damaged: {one_line(error)}", code="checkpoint-unreadable") from None
        loaded = self.format.restore(state.run, document, tensors, place)
        return loaded_state(state.site, state.run, loaded), dict(self.updates)
