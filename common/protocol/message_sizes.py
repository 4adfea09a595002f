"""Largest sizes of messages, for senders, receivers and policies."""

from __future__ import annotations

import math
from functools import lru_cache

import msgpack

from rankdad.common.protocol.plan import Plan

CONTROL_BYTES = 1 << 16  # a hello, decision, goodbye or failure
REGION_BYTES = 1 << 18  # of a region's hello or goodbye, with up to a thousand names and digests
HEADER_BYTES = 50  # of a step: keys, round and measures, without the exchange and the two counted buffers


def body_limit(plan: Plan, *, up: bool, replica: bool = True, region: bool = False) -> int:
    """Return the largest size of a message's body in bytes.

    Args:
        plan: of the run.
        up: whether it is a contribution.
        replica: whether an update may hold a replica, as after a comparison.
        region: whether it may be a region's contribution, with a step as large as an update and all names in hello.
    """
    largest = _largest_bytes(plan, up and not region)
    if up and region:
        return largest + REGION_BYTES + 16 * len(plan.sites) * plan.folds
    return largest if up else max(largest + _sites_bytes(plan), CONTROL_BYTES + replica * plan.replica_bytes)


@lru_cache(maxsize=16)
def _largest_bytes(plan: Plan, up: bool) -> int:
    """Return the largest body except for a replica's; cached, because it is needed for every message."""
    steps = (body_bytes(plan, exchange, up=up) for exchange in range(len(plan.exchanges)))
    return max(*steps, CONTROL_BYTES + plan.control_bytes)


def step_bytes(plan: Plan, *, up: bool) -> int:
    """Return the largest size of a step's bodies in bytes, over all exchanges."""
    return sum(body_bytes(plan, exchange, up=up) for exchange in range(len(plan.exchanges)))


def body_bytes(plan: Plan, exchange: int, *, up: bool) -> int:
    """Return the largest size of the body of one exchange in bytes."""
    layout = plan.layout(exchange, up=up)
    rows, numbers = 4 * layout.variable, layout.payload_bytes(plan.wire)
    return HEADER_BYTES + len(msgpack.packb(exchange)) + _head_bytes(rows) + rows + _head_bytes(numbers) + numbers


def _head_bytes(size: int) -> int:
    """Return the size of msgpack's header for this many bytes."""
    return 2 if size < 2**8 else 3 if size < 2**16 else 5


def _sites_bytes(plan: Plan) -> int:
    """Return the additional size of an update that leaves a site out, or includes late contributions."""
    bits = math.ceil(len(plan.sites) / 8)
    late = plan.staleness * bits
    return 2 + _head_bytes(bits) + bits + (2 + _head_bytes(late) + late if late else 0)
