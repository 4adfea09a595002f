"""The platform's limit on messages, checked against the plan before a run begins."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from torch import nn

from rankdad.common.errors import SpecError
from rankdad.common.methods.rank_dad import RankDad
from rankdad.common.protocol.message_sizes import body_limit
from rankdad.common.protocol.plan import Plan, make_plan
from rankdad.common.spec import RunSpec

MAX_BYTES = 100 * 2**20  # of a message on the platform's WebSocket
ENVELOPE = 2048  # bytes of JSON around a body, with the site's name and progress
RANKS = (256, 128, 64, 32, 16, 8, 4, 2, 1)
MAX_SUGGESTIONS = 3


def largest_message(spec: RunSpec, plan: Plan) -> int:
    """Return the size of the largest message in bytes: all contributions to a round, or an update."""
    up = body_limit(plan, up=True)
    down = body_limit(plan, up=False, replica=spec.federation.compare_every > 0)
    return max(len(plan.sites) * _carried(up), _carried(down))


def _carried(size: int) -> int:
    """Return a body's size after base64 and JSON."""
    return 4 * -(-size // 3) + ENVELOPE


def check_size(spec: RunSpec, model: nn.Module, max_bytes: int = MAX_BYTES, *, whole: bool = True) -> None:
    """Check that all messages of a run fit.

    Args:
        spec: the run.
        model: the network with initial weights.
        max_bytes: maximum size of a message.
        whole: whether the owner wrote a whole specification and can change more than the form's fields.

    Raises:
        SpecError: with the size, the limit, and smaller settings.
    """
    size = largest_message(spec, make_plan(spec, model))
    if size <= max_bytes:
        return
    changes = _smaller(spec) if whole else _lower_ranks(spec)
    fitting = ", or ".join(islice(_fitting(changes, model, max_bytes), MAX_SUGGESTIONS))
    raise SpecError(
        "method",
        f"{spec.method.name} with this network and {len(spec.federation.sites)} sites needs messages of up to "
        f"{_mebibytes(size)}, but the platform carries at most {_mebibytes(max_bytes)}; what fits: "
        f"{fitting or 'a smaller network'}",
        code="messages-too-large",
    )


def _fitting(changes: Iterator[tuple[str, RunSpec]], model: nn.Module, max_bytes: int) -> Iterator[str]:
    """Yield changes that make messages small enough."""
    for words, changed in changes:
        try:
            size = largest_message(changed, make_plan(changed, model))
        except SpecError:  # the method does not fit the network
            continue
        if size <= max_bytes:
            yield f"{words} ({_mebibytes(size)})"


def _smaller(spec: RunSpec) -> Iterator[tuple[str, RunSpec]]:
    """Yield changes that make messages smaller, in words and as the run, smaller changes first."""
    method, federation = spec.method, spec.federation
    uncompared = {"federation": federation.model_copy(update={"compare_every": 0})}
    if federation.compare_every:  # an update may contain the whole replica
        yield "federation.compare_every 0", spec.model_copy(update=uncompared)
    for wire in ("bfloat16", "int8"):
        if wire in method.wires and method.wire not in (wire, "int8", "int4", "int2"):
            yield f"wire {wire}", spec.model_copy(update={"method": method.model_copy(update={"wire": wire})})
    for words, lower in _lower_ranks(spec):
        yield words, lower
        if federation.compare_every:
            yield f"{words} and federation.compare_every 0", lower.model_copy(update=uncompared)


def _lower_ranks(spec: RunSpec) -> Iterator[tuple[str, RunSpec]]:
    """Yield the run with rank-dad at decreasing ranks."""
    method = spec.method
    base = method if method.tuned else RankDad(name="rank-dad", rank=RANKS[0] + 1)
    for rank in (rank for rank in RANKS if rank < (base.most_rows or 0)):
        lower = {"method": base.model_copy(update={"rank": rank})}
        yield f"{base.name} with rank {rank}", spec.model_copy(update=lower)


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
