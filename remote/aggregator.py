"""The aggregator without its sockets: barrier, aggregation, its own replica, and the run's directory.

The replica follows the updates as every site does; so the model is saved here too, and its digest is one more check.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from common.artifacts import save_model
from common.errors import REASON_CHARACTERS, ProtocolError, RankdadError, RunFailedError, UserError
from common.follower import Follower
from common.ledger import NOBODY, Durability, Entry, Ledger, Record
from common.messages import Body, Decision, Failure, Farewell, Kind, Message, Step
from common.methods import State, method_for
from common.plan import make_plan
from common.protocol import pack, unpack
from common.replica import Replica
from common.spec import RunSpec
from common.wire import is_lossless
from remote.aggregation import aggregate
from remote.recorder import Recorder, new_directory
from remote.rounds import Answer, Barrier, Effect, Phase, Ready

LEDGER = "ledger"  # of a run's directory


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
        durability: against what everything is written to the directory's ledger before anybody is answered; None keeps
            no ledger. A directory that holds one already goes on from it: call `resume` first.

    Raises:
        UserError: the directory holds another run, or one without a ledger.

    Source: arXiv 2102.09631, Algorithm 1 (the aggregator's part).
    """

    def __init__(
        self,
        spec: RunSpec,
        replica: Replica,
        directory: Path,
        clock: Callable[[], float],
        *,
        durability: Durability | None = None,
    ) -> None:
        self.spec = spec
        self.plan = make_plan(spec, replica.model)
        self.run_id = secrets.token_hex(8)
        self._ledger: Ledger | None = None
        resumes = durability is not None and (directory / LEDGER).exists()
        if not resumes:
            new_directory(directory)
        if durability is not None:
            sync = durability is Durability.POWER
            self._ledger = Ledger(directory / LEDGER, self.plan.sha256(), self.run_id, sync=sync)
            self.run_id = self._ledger.run_id
        self.recorder = Recorder(directory, spec, self.plan, again=resumes)
        self.barrier = Barrier(self.plan.sites, clock())
        self._method = method_for(spec, self.plan.routes, replica.model)
        self._replica = replica
        self._lossless = is_lossless(self.plan.wire, next(replica.model.parameters()).dtype)
        self._clock = clock
        self._state = State()
        self._phase = 0  # of the next step message
        self._follower = Follower(self.plan, self._method, replica, spec.training.step_size)
        self._best: dict[str, Tensor] = {}
        self._outcome = ("interrupted", "")

    @property
    def ended(self) -> bool:
        """Whether the run is over, well or not."""
        return self.barrier.phase is Phase.ENDED

    def is_last_word(self, answer: bytes) -> bool:
        """Tell whether an answer is the one that ends the run."""
        return self.ended and answer == self.barrier.stored

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
        stored = self._ledger.update(message.round) if self._ledger else None
        if stored is not None:  # a site that has gone back to its checkpoint
            return [Answer((site,), stored)]
        current = message.round == self.barrier.round and not self.ended
        if current and message.phase != (self._phase if isinstance(message.body, Step) else 0):
            raise ProtocolError(409, f"p: got phase {message.phase}, but the run is in phase {self._phase} of a step")
        known = self.barrier.holds(site)
        effects = self.barrier.receive(site, body, message, self._clock())
        if self._ledger and not known and self.barrier.holds(site):
            self._ledger.append(Record(Entry.CONTRIBUTION, message.round, self.plan.sites.index(site), body))
        return effects

    def recorded(self, round_: int) -> bytes | None:
        """Return the update of a completed round; None if the round is not complete.

        Raises:
            ProtocolError: 409 for a round of the future, 410 for one that is no longer kept.
        """
        if round_ > self.barrier.round:
            raise ProtocolError(409, f"r: got round {round_}, but the run is in round {self.barrier.round}")
        if round_ == self.barrier.round:
            return self.barrier.stored if self.barrier.failed else None
        stored = self._ledger.update(round_) if self._ledger else None
        if stored is None and round_ == self.barrier.round - 1:
            stored = self.barrier.stored
        if stored is None:
            raise ProtocolError(410, f"r: round {round_} is no longer kept")
        return stored

    def tick(self) -> list[Effect]:
        """Do what is due by now: to be called several times a second."""
        return []

    def depart(self, site: str, reason: str) -> list[Effect]:
        """Take note that a site cannot go on, or is not there any more."""
        return self.fail(site, reason)

    def snapshot(self, site: str) -> bytes | None:
        """Return the newest state of the run for a site that has lost its own; None if the first round is near."""
        return None

    def resume(self) -> list[Effect]:
        """Go through the ledger up to where it ends, and return what is left to do.

        Raises:
            UserError: an update does not come out as it was recorded.
        """
        assert self._ledger is not None
        effects: list[Effect] = []
        for record in self._ledger.records():
            if record.entry is Entry.CONTRIBUTION:
                site = self.plan.sites[record.site]
                message = unpack(record.body, self.plan, up=True)
                effects = self.barrier.receive(site, record.body, message, self._clock())
                continue
            (ready,) = effects
            assert isinstance(ready, Ready)
            update = self.aggregate(ready)
            if update.packed != record.body:
                raise UserError(
                    f"{self._ledger.path}: the update of round {record.round} comes out differently here than it was "
                    "recorded: other hardware, or other versions? Go on where the run began"
                )
            self._open_next(ready, update)
            self.follow(ready, update, 0.0)
            effects = []
        return effects

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
        if self._ledger:
            self._ledger.append(Record(Entry.UPDATE, ready.round, NOBODY, update.packed))
        return self._open_next(ready, update)

    def _open_next(self, ready: Ready, update: Update) -> list[Effect]:
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
        self._follower.follow(body)
        if isinstance(body, Decision):
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
        if self._ledger:
            self._ledger.close()
        save_model(self.recorder.directory / "model", self.spec, self._best, self._replica.weights())
