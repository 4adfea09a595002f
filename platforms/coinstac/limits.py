"""How much the platform carries at once, and whether a run's messages fit: known from the plan, before it begins."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from rankdad.common.errors import SpecError
from rankdad.common.message_sizes import body_limit
from rankdad.common.plan import Plan, make_plan
from rankdad.common.spec import Edad, RankDad, RunSpec

MOST_BYTES = 100 * 2**20  # of one message over the platform's WebSocket
ENVELOPE = 2048  # bytes of JSON around a body, with the site's name and progress
RANKS = (256, 128, 64, 32, 16, 8, 4, 2, 1)


def largest_message(spec: RunSpec, plan: Plan) -> int:
    """Return the size of the largest message, in bytes: all sites' contributions to a round, or an update."""
    up = body_limit(plan, up=True)
    down = body_limit(plan, up=False, replica=spec.federation.compare_every > 0)
    return max(len(plan.sites) * _carried(up), _carried(down))


def _carried(size: int) -> int:
    """Return what a body of so many bytes takes in base64 and JSON."""
    return 4 * -(-size // 3) + ENVELOPE


def check_size(spec: RunSpec, plan: Plan, model: nn.Module, most: int = MOST_BYTES) -> None:
    """Check that all messages of a run fit.

    Args:
        spec: the run.
        plan: of it.
        model: the network, with the initial weights.
        most: bytes of a message that the platform carries.

    Raises:
        SpecError: with the size, the limit, and what would fit.
    """
    size = largest_message(spec, plan)
    if size <= most:
        return
    sizes = ((words, _size(changed, model)) for words, changed in _smaller(spec))
    fitting = [f"{words} ({_shown(found)})" for words, found in sizes if found and found <= most][:3]
    raise SpecError(
        "method",
        f"{spec.method.name} of this network over {len(plan.sites)} sites makes messages of up to {_shown(size)}, but "
        f"the platform carries at most {_shown(most)}; what fits: {', or '.join(fitting) or 'a smaller network'}",
    )


def _size(spec: RunSpec, model: nn.Module) -> int | None:
    """Return the size of a run's largest message; None if the run does not fit the model."""
    try:
        return largest_message(spec, make_plan(spec, model))
    except SpecError:
        return None


def _smaller(spec: RunSpec) -> Iterator[tuple[str, RunSpec]]:
    """Yield changed runs whose messages are smaller, in words, the smaller change first."""
    method, compared = spec.method, spec.federation.compare_every > 0
    if compared:  # an update then may hold the whole replica
        yield "federation.compare_every 0", _uncompared(spec)
    for wire in ("bfloat16", "int8"):
        if not isinstance(method, Edad) and method.wire not in (wire, "int8"):
            yield f"wire {wire}", spec.model_copy(update={"method": method.model_copy(update={"wire": wire})})
    most = method.rank - 1 if isinstance(method, RankDad) else RANKS[0]
    for rank in (rank for rank in RANKS if rank <= most):
        base = method if isinstance(method, RankDad) else RankDad(name="rank-dad", rank=rank)
        lower = spec.model_copy(update={"method": base.model_copy(update={"rank": rank})})
        yield f"rank-dad with rank {rank}", lower
        if compared:
            yield f"rank-dad with rank {rank} and federation.compare_every 0", _uncompared(lower)


def _uncompared(spec: RunSpec) -> RunSpec:
    return spec.model_copy(update={"federation": spec.federation.model_copy(update={"compare_every": 0})})


def _shown(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
