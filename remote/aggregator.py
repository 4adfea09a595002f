"""The aggregator without its sockets: barrier, aggregation, its own replica, and the run's directory.

The replica follows the updates as every site does; so the model is saved here too, and its digest is one more check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from common.artifacts import save_model
from common.errors import REASON_CHARACTERS, ProtocolError, RankdadError, RunFailedError
from common.messages import Body, Buffers, Decision, Failure, Farewell, Kind, Message, Roster, Step
from common.methods import State, method_for
from common.plan import make_plan
from common.protocol import pack, unpack, unpack_buffers
from common.replica import Replica
from common.routes import Payload, scatter
from common.spec import RunSpec
from common.wire import is_lossless
from remote.aggregation import aggregate
from remote.recorder import Recorder
from remote.rounds import Barrier, Effect, Phase, Ready


@dataclass(frozen=True)
class Update:
    """A round's answer: decoded, and as the bytes that every site receives."""

    body: Body
    packed: bytes


class Aggregator:
    """One run.

    The caller feeds `receive` and carries out its effects. For every `Ready` it calls `aggregate`, `complete` and then
    `follow`.

    Args:
        spec: the run.
        replica: with the initial weights.
        directory: of the run.
        clock: seconds.

    Source: arXiv 2102.09631, Algorithm 1 (the aggregator's part).
    """

    def __init__(self, spec: RunSpec, replica: Replica, directory: Path, clock: Callable[[], float]) -> None:
        self.spec = spec
        self.plan = make_plan(spec, replica.model)
        self.recorder = Recorder(directory, spec, self.plan)
        self.barrier = Barrier(self.plan.sites, clock())
        self._method = method_for(spec, self.plan.routes, replica.model)
        self._replica = replica
        self._lossless = is_lossless(self.plan.wire, next(replica.model.parameters()).dtype)
        self._clock = clock
        self._state = State()
        self._phase = 0  # of the next step message
        self._updates: list[Payload] = []  # of the step's exchanges so far
        self._best: dict[str, Tensor] = {}
        self._outcome = ("interrupted", "")

    @property
    def ended(self) -> bool:
        """Whether the run is over, well or not."""
        return self.barrier.phase is Phase.ENDED

    def receive(self, site: str, body: bytes) -> list[Effect]:
        """Check a contribution and put it in its round.

        Raises:
            ProtocolError: it has to be refused; nothing has changed then.
        """
        if site not in self.plan.sites:
            raise ProtocolError(404, "no such site in this run")
        message = unpack(body, self.plan, up=True)
        if isinstance(message.body, Failure) and not self.ended:
            return self.fail(site, message.body.reason)
        current = message.round == self.barrier.round and not self.ended
        if current and message.phase != (self._phase if isinstance(message.body, Step) else 0):
            raise ProtocolError(409, f"p: got phase {message.phase}, but the run is in phase {self._phase} of a step")
        return self.barrier.receive(site, body, message, self._clock())

    def aggregate(self, ready: Ready) -> Update:
        """Return the update of a round.

        Raises:
            RunFailedError: the run cannot go on.
        """
        try:
            body, state = aggregate(self.plan, self._method, ready.messages, self._state)
            packed = pack(Message(ready.kind, ready.round, body, ready.phase), self.plan, up=False)
        except RunFailedError:
            raise
        except RankdadError as error:
            raise RunFailedError("aggregator", str(error)) from None
        self._state = state
        if isinstance(body, Step) and not self._lossless:
            body = unpack(packed, self.plan, up=False).body  # what the sites apply, and so this replica
        return Update(body, packed)

    def complete(self, ready: Ready, update: Update) -> list[Effect]:
        """Answer a round and open the next."""
        self._phase = (ready.phase + 1) % len(self.plan.exchanges) if isinstance(update.body, Step) else 0
        return self.barrier.complete(update.packed, self._clock(), last=ready.kind is Kind.GOODBYE)

    def follow(self, ready: Ready, update: Update, seconds: float) -> None:
        """Apply an update to the aggregator's own replica, and record the round.

        Args:
            ready: the round's contributions.
            update: its answer.
            seconds: that the aggregation took.
        """
        body, replica = update.body, self._replica
        self.recorder.record(ready, body, len(update.packed), seconds)
        if isinstance(body, Roster):
            replica.steps_per_epoch = self.recorder.progress.steps_per_epoch
        elif isinstance(body, Step):
            self._updates.append(body.payload)
            if len(self._updates) == len(self.plan.exchanges):
                replica.apply(scatter(self.plan.routes, self._method.gradients(self._updates)))
                self._updates = []
        elif isinstance(body, Buffers):
            replica.load(unpack_buffers(body.values, self.plan))
        elif isinstance(body, Decision):
            if body.best:
                self._best = replica.weights()
            self.recorder.summarise()
        elif isinstance(body, Farewell):
            self.recorder.progress.aggregator_sha256 = replica.digest()
            self._outcome = ("completed", "")

    def fail(self, site: str, reason: str, *, status: str = "failed") -> list[Effect]:
        """End the run because of a site, or of the aggregator itself, and tell everyone."""
        if self.ended:
            return []
        reason = reason[:REASON_CHARACTERS]
        self._outcome = (status, f"{site}: {reason}")
        body = Failure(site=site, reason=reason)
        return self.barrier.fail(pack(Message(Kind.FAILURE, self.barrier.round, body), self.plan, up=False))

    def close(self) -> None:
        """Save the model as it stands and the last summary."""
        self.recorder.finish(*self._outcome)
        save_model(self.recorder.directory / "model", self.spec, self._best, self._replica.weights())
