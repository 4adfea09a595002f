"""Prepares a site for a run: checks the run against the policy, builds the model, and reads the data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import nn

from rankdad.common import __version__
from rankdad.common.data import SiteData, read_site
from rankdad.common.data.files import Fact
from rankdad.common.devices import device_here
from rankdad.common.documents import load_json, validate
from rankdad.common.errors import PolicyError, SpecError, UserError, visible
from rankdad.common.files import check_writable
from rankdad.common.logs import MAX_LINE, log_names
from rankdad.common.memory import check_memory
from rankdad.common.models import build_network, load_weights
from rankdad.common.needs import Need, needs
from rankdad.common.policy import Policy
from rankdad.common.policy_checks import check_run, policy_warnings
from rankdad.common.protocol.message_sizes import step_bytes
from rankdad.common.protocol.plan import Plan, make_plan
from rankdad.common.protocol.versions import check_versions
from rankdad.common.refusals import refuse_together
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.common.user_code import permit
from rankdad.local.admission import Exposed, admitted, checks
from rankdad.local.agent.words import what_is_loaded
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.http import AggregatorClient
from rankdad.local.privacy.assigning import assigner_of
from rankdad.local.privacy.log import DisclosureLog
from rankdad.local.ranks.sharing import check_mesh
from rankdad.local.starting import run_id
from rankdad.local.threads import use_threads

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class TakingPart:
    """A site's state before the first round."""

    spec: RunSpec
    policy: Policy
    replica: Replica
    plan: Plan
    data: SiteData


def taking_part(
    config: SiteConfig,
    offered: dict[str, object],
    called: Callable[[str], object] = lambda name: None,
    home: Path | None = None,
) -> TakingPart:
    """Build the model of a run that the aggregator offers, and read the site's data.

    Args:
        config: of the site.
        offered: the run's document from the aggregator.
        called: called with the run's name.
        home: folder with the results of all runs, if `output` is a folder in it.

    Raises:
        UserError: the site cannot take part.
    """
    spec = offered_spec(config, offered)
    called(spec.name)
    run = run_id(offered)
    policy, model, plan = permitted(config, spec, run)
    return TakingPart(spec, policy, Replica(spec, model=model), plan, _data(config, spec, plan, policy, run, home))


def permitted(
    config: SiteConfig,
    spec: RunSpec,
    run: str | None = None,
    owner: str = "",
    planned: Callable[[Policy, Plan], object] = lambda policy, plan: None,
) -> tuple[Policy, nn.Module, Plan]:
    """Check a run against the site's policy without reading data; return the policy, the model and the plan.

    Args:
        config: of the site.
        spec: of the run.
        run: its identity; None for a check by the site itself, which does not count towards `runs`.
        owner: of the run; by default the aggregator.
        planned: called with the policy and the plan before the check.

    Raises:
        UserError: the site cannot take part.
    """
    policy = Policy.read(config.policy)
    limits = policy.runs_per_day, policy.runs
    if run is not None and limits != (None, None):
        log = DisclosureLog(Path(config.privacy), config.name, results=[Path(config.output)])
        log.count(f"{run} {spec.sha256()}", owner or config.aggregator, *limits)  # an aggregator may reuse a name
    device = device_here(config.device)
    use_threads(spec.training.threads)
    check_memory(spec)
    for field, name in spec.functions.items():
        permit(name, config.allow_factories, field)
    model = build_network(spec, config.allow_factories).to(device)
    plan = make_plan(spec, model)
    planned(policy, plan)
    refuse_together({config.name: lambda own: check_run(own, spec.at(config.name), plan)}, {config.name: policy})
    if spec.model.pretrained is not None:
        load_weights(model, spec, None if config.weights is None else Path(config.weights))
        plan = make_plan(spec, model)  # with the digest of these weights
    return policy, model, plan


def check_site(
    config: SiteConfig,
    offline: RunSpec | None = None,
    show: Callable[[Sequence[Need]], object] = lambda lines: None,
) -> tuple[RunSpec, Plan, SiteData]:
    """Check that the site could take part in its aggregator's run; its data are read, nothing is sent.

    Args:
        config: of the site.
        offline: the run, to check without an aggregator.
        show: called once with the policy lines that the run needs, also if the run is refused.

    Returns:
        The run, its plan, and the samples that the policy admits.

    Raises:
        UserError: the site could not take part.
    """
    with log_names(site=config.name):
        check_writable(Path(config.output), "output")
        if offline is None:
            _log.info("requesting the run from %s", config.aggregator)
            with AggregatorClient(config) as client:
                spec = offered_spec(config, client.run())
        else:
            spec = _own(config, offline, "this file")
        own, lines = spec.at(config.name), list[Need]()

        def planned(policy: Policy, plan: Plan) -> None:
            lines[:] = needs(policy, lambda one: check_run(one, own, plan))

        def looked(policy: Policy, plan: Plan, read: SiteData) -> None:
            lines[:] = needs(policy, lambda one: check_run(one, own, plan), *checks(own, plan, read))

        try:
            policy, model, plan = permitted(config, spec, planned=planned)
            check_mesh(spec, config, model)
            _log.info("reading %s for the run %s", config.data, spec.name)
            data = _data(config, spec, plan, policy, looked=partial(looked, policy, plan))
        finally:
            if lines:
                show(lines)
        for warning in policy_warnings(policy, spec):
            _log.warning(warning)
    for line in what_is_loaded(spec):
        printed(line)
    up, down = step_bytes(plan, up=True), step_bytes(plan, up=False)
    printed(
        f"{config.name} can take part in {spec.name} ({spec.trained_by}), and its policy allows the run: "
        f"{amounts(data)}; at most {up:,} bytes up and {down:,} down per step"
    )
    return spec, plan, data


def printed(line: str) -> None:
    """Print a line of a command's result."""
    print(visible(line, MAX_LINE), flush=True)


def _data(
    config: SiteConfig,
    spec: RunSpec,
    plan: Plan,
    policy: Policy,
    run: str | None = None,
    home: Path | None = None,
    looked: Callable[[SiteData], object] = lambda read: None,
) -> SiteData:
    """Read the site's samples, check them, and drop sets that are too small for its policy.

    With a run's identity, the run enters the disclosure log once it can no longer be refused.

    Raises:
        UserError: another run has begun in the meantime.
    """
    index, output = spec.federation.sites.index(config.name), Path(config.output)
    results = (output,) if home is None else (home, output)
    read = read_site(
        spec,
        Path(config.data),
        index,
        config.allow_factories,
        config.loading,
        assigner_of(
            Path(config.privacy), config.name, policy, spec, run, results=results, others=config.other_patients
        ),
    )
    looked(read)
    kept = list[SiteData]()

    def admit(own: Policy) -> None:
        kept.append(admitted(own, spec.at(config.name), plan, read))

    try:
        refuse_together({config.name: admit}, {config.name: policy})
        (data,) = kept
    except PolicyError:
        _log_notes(read.notes)  # they may explain the refusal
        raise
    warnings = [note for note in data.notes if isinstance(note, Exposed)]  # others may name patients
    if run is not None and data.parts is not None and not data.parts.kept(warnings):
        raise UserError(
            f"data: another run has begun at {config.name} while this one read its data: start again",
            code="another-run-began",
            field="data",
        )
    _log_notes(data.notes)
    return data


def _log_notes(notes: Sequence[str]) -> None:
    for note in notes:
        _log.log(logging.INFO if isinstance(note, Fact) else logging.WARNING, note)


def amounts(data: SiteData) -> str:
    """Describe the number of samples, for people."""
    first = data.splits[0]
    amounts = f"{len(first.train)} samples to train on, {len(first.validation)} to validate, {len(first.test)} to test"
    if len(data.splits) == 1:
        return amounts
    return f"{len(data.samples)} samples; in the first of {len(data.splits)} trainings {amounts}"


def offered_spec(config: SiteConfig, offered: Mapping[str, object]) -> RunSpec:
    """Return the spec that the aggregator offers.

    Raises:
        UserError: the site cannot take part in it.
    """
    check_versions(config.aggregator, offered, "this site")
    try:
        spec = validate(RunSpec, offered.get("run"), file=config.aggregator)
    except SpecError as error:
        if (other := offered["version"]) == __version__:
            raise
        raise UserError(
            f"{error}; {config.aggregator} runs rankdad {other}, this site {__version__}: new fields of a spec need "
            "the newer version at all sites",
            code="spec-of-other-version",
            field=error.field,
        ) from None
    return _own(config, spec, config.aggregator)


def _own(config: SiteConfig, spec: RunSpec, source: str) -> RunSpec:
    if config.spec is not None:
        expected = validate(RunSpec, load_json(config.spec), file=config.spec)
        if expected.sha256() != spec.sha256():
            raise SpecError("spec", f"is not the run that {source} offers", code="run-differs", file=config.spec)
    if config.name not in spec.federation.sites:
        raise SpecError(
            "name",
            f"{config.name} is not a site of this run, expected one of {', '.join(spec.federation.sites[:20])}"
            + ", …" * (len(spec.federation.sites) > 20),
            code="site-unknown",
        )
    return spec
