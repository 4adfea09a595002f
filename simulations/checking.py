"""`rankdad check`: what a run would send, and whether all policies allow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankdad.common.data import SiteData
from rankdad.common.errors import counted, visible
from rankdad.common.lowrank.routes import Route
from rankdad.common.lowrank.wire import projections_wire
from rankdad.common.needs import Need, shown
from rankdad.common.policy import Policy
from rankdad.common.policy_checks import check_run
from rankdad.common.preparation import Preparing, Rows
from rankdad.common.preparation.description import sums
from rankdad.common.preparation.labels import counts_of, one_sided
from rankdad.common.protocol.message_sizes import step_bytes
from rankdad.common.protocol.plan import Plan
from rankdad.common.refusals import refuse_together
from rankdad.common.run.batches import drawn_sizes, largest_sizes
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.common.spec.solver import is_exact
from rankdad.common.spec.tasks import Classification, LanguageModel, Regression
from rankdad.local.admission import NO_SUMS, Exposed, admitted, check_steps
from rankdad.local.agent.words import what_tests_send
from rankdad.local.privacy.disclosed import check_repeated
from rankdad.remote.results.table_one import outcome_names, table_one
from rankdad.remote.view import size, times_fewer
from rankdad.simulations.footprint import footprint

MAX_NAMES, MAX_CELL = 5, 400  # names of files or columns in a cell, characters
STRICTER = dict.fromkeys(("min_rows", "rows_per_rank", "min_sites"), " or less")
STRICTER |= dict.fromkeys(("max_rank", "max_upload"), " or more")
PROJECTED = "a pair of random projections of every matrix"  # for a factored second moment


def admitted_together(
    policies: Mapping[str, Policy], spec: RunSpec, plan: Plan, data: Mapping[str, SiteData]
) -> dict[str, SiteData]:
    """Check a run against the policies of several sites, and return the data that each would use.

    Args:
        policies: by site.
        spec: the run.
        plan: of the run.
        data: by site, for the sites with known data.

    Raises:
        PolicyError: a site would refuse the run.
    """
    own = dict[str, SiteData]()

    def admit(site: str, policy: Policy) -> None:
        check_run(policy, spec.at(site), plan)
        if site in data:
            own[site] = admitted(policy, spec.at(site), plan, data[site])

    refuse_together({site: partial(admit, site) for site in policies}, policies)
    return own


def check_policy(policy: Policy, spec: RunSpec, plan: Plan, data: Sequence[SiteData]) -> dict[str, SiteData]:
    """Check a run of all these sites as each of them would, and return what of its data each admits.

    Raises:
        PolicyError: a site would refuse the run.
    """
    found = dict(zip(plan.sites, data, strict=bool(data)))
    own = admitted_together(dict.fromkeys(plan.sites, policy), spec, plan, found)
    if not data or is_exact(spec, [warning for site in own.values() for warning in site.warnings]):
        return own
    counts = list(zip(*([len(split.train) for split in site.splits] for site in data), strict=True))
    for check, sizes in ((check_steps, drawn_sizes), (check_repeated, largest_sizes)):
        drawn = [sizes(spec, fold) for fold in counts]
        for place, site in enumerate(data):  # a site alone does not know the sizes of even batches
            check(policy, spec, plan, site, [fold[place] for fold in drawn])
    return own


def show_plan(spec: RunSpec, plan: Plan, console: Console, own: Mapping[str, SiteData] = MappingProxyType({})) -> None:
    """Print how every parameter travels, and how large a step's body is in each direction; of no steps nothing.

    Args:
        spec: the run.
        plan: of the run.
        console: where to print.
        own: what each site admits of its data, where these are known.
    """
    if spec.solver == "exact" or (own and is_exact(spec, [one for site in own.values() for one in site.warnings])):
        console.print(f"exact, {counted(len(plan.sites), 'site')}: no step", highlight=False)
        return
    for site, told in ((site, note) for site, one in own.items() for note in one.notes if NO_SUMS in note):
        console.print(f"{site}: {told}", highlight=False, markup=False)
    if spec.solver == "auto" and not own:
        sums = "it is solved exactly, without steps, if every site's policy lets sums out"
        console.print(f"{sums}: --offline tells each site. Else:", highlight=False)
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
    ratio = 2 * plan.dense_bytes / (up + down)
    full = "full gradients" if spec.local_steps is None else "whole differences"
    fewer = f"{times_fewer(ratio)} than {full} ({plan.dense_bytes:,})"
    if spec.method.whole and ratio <= 1:
        fewer = f"{plan.dense_bytes:,} of them {full}"
    console.print(
        f"{spec.method.name}, {counted(len(plan.sites), 'site')}: at most {up:,} bytes up and {down:,} down per site "
        f"and step{_batches(spec)}{f', {PROJECTED} included' * spec.training.sends_projections}, {fewer}",
        highlight=False,
    )
    if spec.federation.regions:
        show_levels(spec, plan, console)
    kept = footprint(plan, regions=max(len(node.regions) for node in spec.federation.nodes.values()))
    console.print(
        f"disk space at the aggregator: at most {kept.step:,} bytes per step and {kept.epoch:,} per epoch. "
        f"Contributions are deleted after {kept.window} steps; {kept.step_update:,} and {kept.epoch_update:,} bytes "
        f"remain. With --retention tail: at most {size(kept.tail())} including checkpoints, and {size(kept.epoch)} for "
        f"each epoch that ends within {kept.window} steps. Temporarily, another {size(kept.journal)}",
        highlight=False,
    )


def show_levels(spec: RunSpec, plan: Plan, console: Console) -> None:
    """Print the largest traffic of an aggregator at each level, per step."""
    table = Table("level", "aggregators", "most children", "bytes in", "bytes out", "bytes up", title="per step")
    nodes = list(spec.federation.nodes.values())
    sizes = {"site": step_bytes(plan, up=True), "region": step_bytes(plan, up=False)}  # laid out as an update is
    for level in range(1 + max(node.level for node in nodes)):
        here = [node for node in nodes if node.level == level]
        taken = [sum(sizes["region" if child in node.regions else "site"] for child in node.children) for node in here]
        given = max(len(node.children) for node in here) * step_bytes(plan, up=False)
        counts = (str(level + 1), str(len(here)), str(max(len(node.children) for node in here)))
        table.add_row(*counts, f"{max(taken):,}", f"{given:,}", f"{sizes['region']:,}" if level else "–")
    console.print(table)


def show_needs(lines: Sequence[Need], console: Console) -> None:
    """Print the policy lines that a run needs, and whether the site's policy allows each."""
    table = Table()
    for name in ("policy", "allows the run", "here", "for", "lets out", ""):
        table.add_column(name, overflow="fold")  # codes must not be cut
    for one in lines:
        needed = shown(one.needed, MAX_NAMES) + STRICTER.get(one.line, "") * isinstance(one.needed, int | float)
        values = (needed, shown(one.here, MAX_NAMES))
        state = f"refused ({one.code})" if one.refused else f"left out ({one.code})" if one.code else "ok"
        cells = (one.line, *values, one.field, one.lets_out, state)
        table.add_row(*(Text(visible(text, MAX_CELL)) for text in cells))
    console.print(table)


def show_contribution(site: str, spec: RunSpec, plan: Plan, data: SiteData, console: Console) -> None:
    """Print a site's data column by column, and the figures that would leave the site.

    Args:
        site: its name.
        spec: the run.
        plan: of the run.
        data: of the site, as its policy admits them.
        console: to print to.
    """
    label, described = data.samples.labels, data.described()
    whole = Rows(data.samples.inputs, label)
    if isinstance(spec.data, TableData):
        found, sent = (_table_of(spec, spec.data, site, rows) for rows in (whole, described))
        table = Table("column", "missing", "values", "leaves the site")
        for name, own in found["columns"].items():
            column = sent["columns"][name]
            out = any(column["levels"].values()) if "levels" in column else column["mean"] is not None
            kind = "rows of each level" if "levels" in own else "count, mean and deviation"
            values = ", ".join(f"{level}: {count}" for level, count in own.get("levels", {}).items())
            if "levels" not in own:
                values = f"{_short(own['mean'])} ± {_short(own['sd'])}"
            missing = f"{own['missing']} ({own['missing'] / found['rows']:.0%})" if own["missing"] else "–"
            table.add_row(*(Text(visible(text)) for text in (name, missing, values, kind if out else "nothing")))
        console.print(table)
    if isinstance(spec.task, LanguageModel):
        console.print(f"texts: {len(label)}, of {int(label.sum()):,} bytes", highlight=False)
    elif isinstance(spec.task, Regression):
        console.print(f"label: mean {_short(float(label.double().mean()))}, of {len(label)} rows", highlight=False)
    else:
        names, counts = outcome_names(spec), counts_of(spec.task, label).tolist()
        words = ", ".join(f"{visible(names(place))}: {int(count)}" for place, count in enumerate(counts))
        console.print(f"label of {len(label)} rows: {words}", highlight=False, markup=False)
        for question in one_sided(counts if isinstance(spec.task, Classification) else [], site):
            console.print(f"warning: {question}", highlight=False, markup=False)
    exact, numbers = is_exact(spec, data.warnings), _numbers(spec, data)
    people = "rows" if data.groups is None else f"{spec.group_noun}s"
    references = spec.references
    linear = ", the exact solution" * exact + ", the reference linear" * ("linear" in references)
    projected = f", and {PROJECTED}" * spec.training.sends_projections
    even = "batches are even: of two thirds of the rows here if they fill none, and another site makes several"
    step = (
        f"{'else in ' * exact}every step: gradients as {spec.method.name} has them{projected}, "
        f"at most {step_bytes(plan, up=True):,} bytes"
    )
    lines = [
        f"rows: {len(label)} read, {data.dropped} left out, {len(described.inputs)} in Table 1",
        f"before training: {numbers}, for the preparation{linear} and Table 1: sums, each over at least {data.fewest} "
        f"{people}, such as counts, totals and products of columns",
        *(["no step, if every other site's policy allows an exact solution, too"] if exact else []),
        *([step] if spec.solver != "exact" else []),
        *([f"{even}; the policy is then checked again"] if spec.batches == "even" else []),
        *(["every epoch: metrics of the validation set"] if any(len(own.validation) for own in data.splits) else []),
        f"every fold: {what_tests_send(spec, smooth=data.parts is not None)}"
        f"{', and the same for each reference model: ' * bool(references)}{', '.join(references)}",
        *(f"others could compute: {note}" for note in data.notes if isinstance(note, Exposed)),
        "no row and no identifier is sent",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False)


def _table_of(spec: RunSpec, schema: TableData, site: str, rows: Rows) -> dict[str, Any]:
    own: dict[str, Any] = table_one(spec, {site: sums(spec.task, rows, schema)})["sites"][site]
    return own


def _numbers(spec: RunSpec, data: SiteData) -> str:
    """Return how many numbers the sums before training are at most: of all rows, and of those of each training."""
    preparing, exact = Preparing(spec), is_exact(spec, data.warnings)
    whole, each = preparing.numbers()
    if not exact and "linear" not in spec.references:
        due = [stage for stage in preparing.stages if preparing.is_due(stage, exact=False)]
        whole -= preparing.solving.numbers()[0]
        each = sum(preparing.size(stage) for stage in due) - whole
    more = f", and {each:,} of the rows of each of {counted(spec.folds, 'training')}" if spec.folds > 1 else ""
    return f"at most {whole if more else whole + each:,} numbers of all rows here{more}"


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _batches(spec: RunSpec) -> str:
    """Describe the number of batches per step, for local steps."""
    own = [spec.at(site).local_steps for site in spec.federation.sites]
    most = max((steps for steps in own if isinstance(steps, int)), default=0)
    if "epoch" in own:
        return " of an epoch" if set(own) == {"epoch"} else " of at most an epoch"
    return f" of at most {most} batches" if most else ""


def _slot_bytes(plan: Plan, *, up: bool) -> dict[str, int]:
    """Return the bytes of each parameter over all exchanges of a step."""
    sizes = dict.fromkeys((route.name for route in plan.routes), 0)
    for exchange in range(len(plan.exchanges)):
        layout = plan.layout(exchange, up=up)
        for slot in layout.slots:
            sizes[slot.name] += slot.size(plan.wire)
        for slot in layout.projections:
            sizes[slot.name] += slot.size(projections_wire(plan.wire))
    return sizes


def _words(spec: RunSpec, route: Route) -> tuple[str, str, str, str]:
    """Return a parameter's route, reducer, residual and rows, as text."""
    reducer, kept = spec.method.described(route)
    if route.entries is not None:
        return f"{route.entries.count:,} entries", reducer, kept, "–"
    if route.up is None:
        return "dense", "–", "–", "–"
    how = "factor" if route.captured else "reduced gradient"
    rows = str(route.up) if route.up == route.down else f"{route.up}, {'dense' if route.down is None else route.down}"
    return how, reducer, kept, rows
