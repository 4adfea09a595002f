"""A site whose state between two calls can be saved, for engines whose processes end in between."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack
import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from rankdad.common.data import SiteData
from rankdad.common.errors import UserError
from rankdad.common.lowrank.reduction.feedback import Residuals
from rankdad.common.policy import Policy
from rankdad.common.protocol.plan import Plan
from rankdad.common.run.state import RunState
from rankdad.common.run.state_format import StateFormat
from rankdad.common.spec import RunSpec
from rankdad.local.drivers.followed import Followed
from rankdad.local.observer import Observer
from rankdad.local.site import Site, checking
from rankdad.local.starting import loaded_state, save_state
from rankdad.local.training import Result, TrainingState, train

DIGEST = 32  # bytes: a sha256 before the saved state
SIZE = 8  # bytes: size of a safetensors head


class SavableSite(Site[Result]):
    """A site that can be saved between two calls, and restored from its saved state.

    A saved state, like a checkpoint, reveals who is in which batch, and stays at the site.

    Args:
        spec: the run.
        plan: of the run.
        data: the site's samples, as its policy admits them; see `site_of`.
        name: of the site.
        run: at the run's beginning; changed in place.
        policy: of the site.
        followed: digests of the applied updates, in a file that no saved state resets: an older state accepts only the
            same updates, because its batches at other weights would reveal who is in which.
        observer: callbacks.
        saved: result of `save`; None to start from the beginning. A restored site first asks whether the round is
            complete; an update that has arrived in the meantime answers that.

    Raises:
        UserError: the saved state is of another run, site or version, or the site has other data.
    """

    def __init__(
        self,
        spec: RunSpec,
        plan: Plan,
        data: SiteData,
        name: str,
        run: RunState,
        policy: Policy,
        followed: Followed,
        observer: Observer | None = None,
        saved: bytes | None = None,
    ) -> None:
        owner = name if data.parts is None else f"{name} in {data.parts.run}"
        self._kept = _Kept(StateFormat(plan, owner, data.sha256()))
        told, self._state = observer or Observer(), TrainingState(name, run)
        updates = dict[int, bytes]()
        if saved is not None:
            self._state, updates = self._kept.load(saved, self._state)

        def between_steps() -> None:
            told.between_steps()
            save_state(self._kept, self._state)

        def answered(round_: int, answer: bytes) -> None:
            told.answered(round_, answer)
            followed.note(round_, answer)
            self._kept.updates[round_] = answer

        own = replace(told, between_steps=between_steps, answered=answered)
        training = train(spec, plan, data, self._state, policy, own, again=followed.again)
        super().__init__(training, plan, device=run.replica.device, observer=own, check=checking(run))
        if saved is not None:
            super().take()
            while self.due is not None and self.due.round in updates:
                super().take(updates[self.due.round])

    def take(self, answer: bytes | None = None) -> None:
        """Take an answer, see `Site.take`; an answer that the site cannot use is not saved."""
        before = self._kept.state, dict(self._kept.updates)
        try:
            super().take(answer)
        except BaseException:
            self._kept.state, self._kept.updates = before
            raise

    def save(self) -> bytes:
        """Return the state before the last step, with the updates since."""
        return self._kept.packed()


@dataclass(eq=False)
class _Kept:
    """A saved state, in memory."""

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
        """Replace the state, and drop the updates since the last one."""
        self.state = safetensors.torch.save(*self.format.of(state, residuals, document, moments, changes))
        self.updates.clear()

    def packed(self) -> bytes:
        """Return the state and the updates since, with their owner, after a digest."""
        content: bytes = msgpack.packb([self.format.head, self.state, list(self.updates.items())])
        return hashlib.sha256(content).digest() + content

    def load(self, saved: bytes, state: TrainingState) -> tuple[TrainingState, dict[int, bytes]]:
        """Restore a state; return it with the updates since."""
        place, content = f"what {state.site} has saved", saved[DIGEST:]
        damaged = UserError(f"{place}: is damaged", code="checkpoint-unreadable")
        if hashlib.sha256(content).digest() != saved[:DIGEST]:
            raise damaged
        try:
            head, self.state, updates = msgpack.unpackb(content)
            self.updates = dict(updates)
            if not all(isinstance(one, bytes) for one in (self.state, *self.updates.values())):
                raise damaged
            self.format.check(head, place, "restart the run")
            if self.state:
                size = int.from_bytes(self.state[:SIZE], "little")
                document = json.loads(json.loads(self.state[SIZE : SIZE + size])["__metadata__"][""])
                tensors = safetensors.torch.load(self.state)
                loaded = self.format.restore(state.run, document, tensors, place)
                state = loaded_state(state.site, state.run, loaded)
        except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RuntimeError):
            raise damaged from None
        return state, dict(self.updates)
