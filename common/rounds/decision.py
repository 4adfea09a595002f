"""The decision after an epoch's metrics, on which all sites must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankdad.common.errors import ProtocolError
from rankdad.common.protocol.messages import Body, Control, Count, Kind, Message
from rankdad.common.rounds.base import Collected, Contributor, Cost, Due, Ready, Record, Round

if TYPE_CHECKING:
    from rankdad.common.run.state import RunState


class Decision(Control):
    """The end of an epoch, up or down: whether its model is the best so far, and whether to stop."""

    epoch: Count
    best: bool
    stop: bool


class DecisionRound(Round):
    """The end of an epoch."""

    kind, up, down = Kind.DECISION, Decision, Decision

    def due(self, run: RunState) -> Due | None:
        """Return it after the validation."""
        return run.next(self.kind) if run.decides else None

    def contribution(self, site: Contributor, due: Due, *, counts: bool) -> Decision:
        """Return the decision that follows from the pooled metrics."""
        return vote(site.run)

    def agrees(self, run: RunState, message: Message, status: int) -> None:
        """Refuse a decision that does not follow from the pooled metrics."""
        expected = vote(run)
        if message.body != expected:
            raise ProtocolError(
                status,
                f"d: got {message.body}, expected {expected}: it follows from the pooled metrics",
                code="decision-differs",
                field="d",
            )

    def pooled(self, here: Collected) -> Decision:
        """Return the common decision."""
        views = here.ready.bodies(Decision)
        best, stop = all(view.best for view in views), any(view.stop for view in views)
        return Decision(epoch=views[0].epoch, best=best, stop=stop)

    combined = pooled

    def apply(self, run: RunState, update: Message) -> None:
        """End the epoch."""
        assert isinstance(update.body, Decision)
        run.end_epoch(best=update.body.best, stop=update.body.stop)

    def record(self, record: Record, ready: Ready, update: Body, cost: Cost) -> None:
        """Record the epoch."""
        assert isinstance(update, Decision)
        record.progress.end_epoch(update.epoch, best=update.best)
        record.summarise()


def vote(run: RunState) -> Decision:
    """Return the decision at the end of an epoch: whether it was the best, and whether to stop."""
    stopping, stale = run.spec.training.early_stopping, run.epochs_since_best
    return Decision(epoch=run.epoch, best=stale == 0, stop=bool(stopping and stale >= stopping.patience))
