"""`rankdad check`: what would be sent, and whether every site's policy allows it. Nothing is trained."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.table import Table

from rankdad.common.gradients.methods.rank_dad import is_small
from rankdad.common.gradients.routes import Route
from rankdad.common.policy import Policy
from rankdad.common.protocol.message_sizes import step_bytes
from rankdad.common.protocol.plan import Plan
from rankdad.common.run.batches import parts
from rankdad.common.spec import RankDad, RunSpec
from rankdad.local.admission import admitted, check_steps
from rankdad.local.data import SiteData
from rankdad.remote.view import size, times_fewer
from rankdad.simulations.footprint import WINDOW, footprint


def check_policy(policy: Policy, spec: RunSpec, plan: Plan, data: Sequence[SiteData]) -> None:
    """Check a run of all these sites as each of them would.

    Raises:
        PolicyError: one of them would refuse it.
    """
    policy.check(spec, plan)
    for site in data:
        admitted(policy, spec, plan, site)
    sizes: list[int] = []  # of even batches, which a site alone does not know
    for splits in zip(*(site.splits for site in data), strict=True):
        counts = [len(split.train) for split in splits]
        most = math.ceil(max(counts) / spec.training.step_size)
        sizes += [size for count in counts for size in parts(count, most)]
    if spec.training.batches == "even":
        check_steps(policy, spec, plan, sizes)


def show_plan(spec: RunSpec, plan: Plan, console: Console) -> None:
    """Print how every parameter travels, and how large a step's body is in each direction."""
    table = Table("parameter", "shape", "route", "reducer", "residual", "rows", "bytes up", "bytes down")
    sizes = [_slot_bytes(plan, up=True), _slot_bytes(plan, up=False)]
    for route in plan.routes:
        name = f"{route.name} + {route.bias}" if route.bias else route.name
        shape = " × ".join(map(str, route.shape))
        table.add_row(name, shape, *_words(spec, route), *(f"{size[route.name]:,}" for size in sizes))
    console.print(table)
    for warning in plan.warnings:
        console.print(f"warning: {warning}", highlight=False)
    up, down = step_bytes(plan, up=True), step_bytes(plan, up=False)
    console.print(
        f"{spec.method.name}, {len(plan.sites)} sites: at most {up:,} bytes up and {down:,} down per site and step"
        f"{_batches(spec)}, {times_fewer(2 * plan.dense_bytes / (up + down))} than full gradients "
        f"({plan.dense_bytes:,})",
        highlight=False,
    )
    kept = footprint(plan)
    console.print(
        f"the aggregator's ledger: at most {kept.step:,} bytes a step and {kept.epoch:,} an epoch, of which "
        f"{kept.step_update:,} and {kept.epoch_update:,} stay; contributions are gone after {WINDOW} steps. With "
        f"--retention tail at most {size(kept.tail())}, checkpoints included, and {size(kept.epoch)} for each epoch "
        f"that ends within {WINDOW} steps",
        highlight=False,
    )


def _batches(spec: RunSpec) -> str:
    """Say how many batches a step has where sites take steps of their own."""
    most = spec.local_steps
    return "" if most is None else " of an epoch" if most == "epoch" else f" of at most {most} batches"


def _slot_bytes(plan: Plan, *, up: bool) -> dict[str, int]:
    """Return each parameter's bytes, all exchanges of a step together."""
    sizes = dict.fromkeys((route.name for route in plan.routes), 0)
    for exchange in range(len(plan.exchanges)):
        for slot in plan.layout(exchange, up=up).slots:
            sizes[slot.name] += slot.size(plan.wire)
    return sizes


def _words(spec: RunSpec, route: Route) -> tuple[str, str, str, str]:
    """Say how a parameter travels, what reduces it, how its residual is kept, and its rows up and down."""
    if route.up is None:
        return "dense", "–", "–", "–"
    how = "factor" if route.captured else "reduced gradient"
    rows = str(route.up) if route.up == route.down else f"{route.up}, {'dense' if route.down is None else route.down}"
    if not isinstance(spec.method, RankDad):
        return how, "–", "dense" if getattr(spec.method, "feedback", False) else "–", rows
    kept = f"{route.residual} rows" if route.residual else "dense"
    reducer = spec.method.reducer
    if reducer == "auto":
        small = not route.captured and is_small(torch.empty(route.matrix, device="meta"), route.up)
        reducer = "exact" if small else "block"
    return how, reducer, "–" if spec.method.feedback == "none" else kept, rows
