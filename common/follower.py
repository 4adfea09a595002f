"""Following a run: its updates, folded over the initial replica, are the model of any step, without any gradient."""

from __future__ import annotations

import math

from common.messages import Body, Buffers, Roster, Step
from common.methods import Method
from common.plan import Plan
from common.protocol import unpack_buffers
from common.replica import Replica
from common.routes import Payload, scatter


class Follower:
    """Apply a run's updates in their order.

    Args:
        plan: of the run.
        method: whose state at the sites and the aggregator is not needed here.
        replica: with the initial weights; changed in place.
        step_size: samples per site and step, at most.
    """

    def __init__(self, plan: Plan, method: Method, replica: Replica, step_size: int) -> None:
        self._plan, self._method, self._replica, self._step_size = plan, method, replica, step_size
        self._updates: list[Payload] = []  # of the step's exchanges so far

    def follow(self, update: Body) -> None:
        """Apply one update, as it was decoded."""
        if isinstance(update, Roster):
            self._replica.steps_per_epoch = math.ceil(max(update.train) / self._step_size)
        elif isinstance(update, Step):
            self._updates.append(update.payload)
            if len(self._updates) == len(self._plan.exchanges):
                self._replica.apply(scatter(self._plan.routes, self._method.gradients(self._updates)))
                self._updates = []
        elif isinstance(update, Buffers):
            self._replica.load(unpack_buffers(update.values, self._plan))
