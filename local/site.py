"""A site's whole life: ask for the run, check it, read the data, train, save the model."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from torch import Tensor, nn

from rankdad.common import __version__
from rankdad.common.data import SiteData, read_site
from rankdad.common.data.files import Fact
from rankdad.common.devices import device_here
from rankdad.common.documents import load_json, validate
from rankdad.common.errors import PolicyError, RankdadError, SpecError, UnreachableError, UserError, visible
from rankdad.common.files import owned, write_json
from rankdad.common.logs import MAX_LINE, log_names, progress
from rankdad.common.memory import check_memory
from rankdad.common.models import build_network, load_weights
from rankdad.common.needs import Need, needs
from rankdad.common.policy import Policy
from rankdad.common.policy_checks import check_run, policy_warnings
from rankdad.common.protocol.codec import pack_failure
from rankdad.common.protocol.message_sizes import step_bytes
from rankdad.common.protocol.messages import failure_message
from rankdad.common.protocol.plan import Plan, make_plan
from rankdad.common.protocol.retention import FILE, Receipt
from rankdad.common.refusals import refuse_together
from rankdad.common.run.artifacts import save_model
from rankdad.common.run.checkpoints import EVERY, Checkpoints, between
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.common.user_code import permit
from rankdad.local.admission import admitted, checks
from rankdad.local.agent.words import what_is_loaded
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.drive import drive
from rankdad.local.drivers.followed import Followed
from rankdad.local.drivers.http import AggregatorClient, RefusedError
from rankdad.local.notices import Notices
from rankdad.local.privacy.dealing import dealing_of
from rankdad.local.privacy.log import DisclosureLog
from rankdad.local.progress import following as following_progress
from rankdad.local.ranks.alone import Alone
from rankdad.local.ranks.group import LostRankError
from rankdad.local.shutdown_signals import ShutdownError, ShutdownSignals
from rankdad.local.starting import results_folder, run_id, save_state, starting_state
from rankdad.local.threads import use_threads
from rankdad.local.timings import Timings
from rankdad.local.trained_rows import write_trained_rows
from rankdad.local.training import Result, train

_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class TakingPart:
    """What a site takes part in a run with: all that it has before the first round."""

    spec: RunSpec
    policy: Policy
    replica: Replica
    plan: Plan
    data: SiteData


def run_site(
    config: SiteConfig,
    signals: ShutdownSignals | None = None,
    *,
    every: int = EVERY,
    ranks: Alone | None = None,
    number: str | None = None,
    saved: Callable[[], object] = lambda: None,
    home: Path | None = None,
) -> Result:
    """Take part in a run from hello to goodbye.

    Args:
        config: the site's own file.
        signals: tells whether the site is to stop.
        every: steps between two checkpoints.
        ranks: that share the site's batches, of which this process is rank 0; without any it is alone.
        number: of the only run that the site takes part in, and that once: the aggregator must not begin it anew.
        saved: called once the results are written, before the aggregator is told.
        home: folder of all runs' results, where `output` is one of them.

    Raises:
        ShutdownError: it is; started again, it goes on.
        UserError: before training: the aggregator is not there, the run is not this site's, the data cannot be used.
        RankdadError: in training: this site or another could not go on.
    """
    output, ranks = Path(config.output), ranks or Alone()
    look = signals.while_waiting if signals else lambda: None
    with log_names(site=config.name), AggregatorClient(config, look=look) as client, ExitStack() as names:
        offered = client.run()
        with _reporting_failure(client, config):
            try:
                output.mkdir(parents=True, exist_ok=True, mode=0o700)  # predictions name patients
            except OSError as error:
                raise UserError(
                    f"output: {output} cannot be made: {error.strerror}", code="cannot-make", field="output"
                ) from None
            names.enter_context(owned(output, config.name))
            if number is not None and (offered.get("id"), offered.get("resumes")) != (number, True):
                raise SpecError(
                    "id", f"{config.aggregator} has begun anew a run that was allowed here once", code="run-begun-anew"
                )
            ranks.share(json.dumps(offered).encode())
            own = taking_part(config, offered, lambda name: names.enter_context(log_names(run=name)), home)
            spec, policy, plan, data = own.spec, own.policy, own.plan, own.data
            replica = ranks.replica(spec, plan, data, own.replica)
            client.expect(plan)
            run = run_id(offered)
            checkpoints = Checkpoints(output / "checkpoints" / run, plan, config.name, data_sha256=data.sha256())
            with ranks.together():
                run_state = RunState(spec, plan, replica)
            results = results_folder(output, spec.name, run)
            notices = Notices(results, _log.warning)
            followed = names.enter_context(closing(Followed(checkpoints.folder)))
            state = starting_state(
                config.name, offered, client.snapshot, run_state, checkpoints, policy, notices.add, ranks
            )
        for warning in (*plan.warnings, *policy_warnings(policy, spec)):
            _log.warning(warning)
        _log.info(_amounts(data))
        first_round, resumable = state.run.round, offered.get("resumes") is True

        def between_steps() -> None:
            stopping = signals is not None and signals.received
            due = stopping or state.run.steps % between(state.run, every) == 0
            saves = resumable and due and state.run.round > first_round
            if ranks.share(b"saves" if saves else None):
                save_state(checkpoints, state)
                if stopping:
                    _print(f"{config.name}: stops after step {state.run.steps}; start it again to go on from there")
            if signals is not None:
                signals.between_steps()

        def tested(fold: int, outputs: Tensor) -> None:
            from rankdad.local.prediction import write_predictions

            write_predictions(results / "predictions", spec, data, fold, outputs)

        with closing(Timings(results / "timings.csv", again=first_round > 0)) as timings:
            following = following_progress(spec, state.run, partial(progress, config.name))
            lap: Callable[[str], None] = timings.lap
            training = train(
                spec,
                plan,
                data,
                state,
                policy,
                lap,
                between_steps,
                tested,
                notices.add,
                following,
                ranks,
                followed.again,
            )
            quietly, device = (ShutdownError, LostRankError) if resumable else (), state.run.replica.device
            result = drive(
                training,
                client,
                plan,
                config.name,
                device=device,
                lap=lap,
                ranks=ranks,
                quietly=quietly,
                hear=followed.note,
            )
        model = results / "model"
        save_model(model, spec, result.best, result.final, result.fit, result.own)
        write_trained_rows(results, data)
        saved()
        keep_receipt(client.done(), policy, results)
        ranks.share()
    shutil.rmtree(checkpoints.folder, ignore_errors=True)
    trained = f"after {result.epochs} epochs" if result.epochs else "with an exact solution"
    _print(f"{config.name}: done {trained}; the model is in {model}")
    return result


def keep_receipt(receipt: Receipt | None, policy: Policy, results: Path) -> None:
    """Keep beside a site's results what has become of its contributions, and warn where that is not what it allows."""
    if receipt is None:
        _log.warning("no receipt: the aggregator does not say what has become of this site's contributions")
        return
    if not receipt.deleted and not policy.retain:
        _log.warning(
            "the aggregator says that it keeps this site's contributions beyond the run's end, against its policy "
            "(retain)"
        )
    with suppress(OSError):  # the run is over, and its results are written
        write_json(results / FILE, receipt.model_dump(mode="json"), private=True)


def taking_part(
    config: SiteConfig,
    offered: dict[str, object],
    called: Callable[[str], object] = lambda name: None,
    home: Path | None = None,
) -> TakingPart:
    """Make the model of a run that the aggregator offers, and read the site's data.

    Args:
        config: the site's own file.
        offered: what the aggregator says of the run.
        called: told the run's name as soon as it is known.
        home: folder of all runs' results, where the site's `output` is one of them.

    Raises:
        UserError: what keeps the site from taking part.
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
    """Return the site's policy, the model and the plan of a run, if that is allowed here; no data are read before.

    Args:
        config: the site's own file.
        spec: of the run.
        run: its identity; None where nobody asks for it but the site itself, which is not counted.
        owner: who asks; the aggregator, where that is not known.
        planned: told the policy and the plan before the run is judged.

    Raises:
        UserError: what keeps the site from taking part.
    """
    policy = Policy.read(config.policy)
    limits = policy.runs_per_day, policy.runs
    if run is not None and limits != (None, None):
        log = DisclosureLog(Path(config.privacy), config.name, results=[Path(config.output)])
        log.count(f"{run} {spec.sha256()}", owner or config.aggregator, *limits)  # an aggregator names runs as it likes
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
        plan = make_plan(spec, model)  # whose digest is that of the weights
    return policy, model, plan


def check_site(
    config: SiteConfig,
    offline: RunSpec | None = None,
    told: Callable[[Sequence[Need]], object] = lambda lines: None,
) -> tuple[RunSpec, Plan, SiteData]:
    """Check that the site could take part in its aggregator's run: its data are read, nothing is sent.

    Args:
        config: the site's own file.
        offline: the run, where no aggregator is to be reached.
        told: what the run needs of the site's policy: once, whether it is refused or not, and with what depends on the
            site's data where these are read.

    Returns:
        The run, its plan, and what of the site's samples the policy admits.

    Raises:
        UserError: what would keep the site from taking part.
    """
    with log_names(site=config.name):
        if offline is None:
            _log.info("asks %s for its run", config.aggregator)
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
            policy, _, plan = permitted(config, spec, planned=planned)
            _log.info("reads %s for the run %s", config.data, spec.name)
            data = _data(config, spec, plan, policy, looked=partial(looked, policy, plan))
        finally:
            if lines:
                told(lines)
        for warning in policy_warnings(policy, spec):
            _log.warning(warning)
    for line in what_is_loaded(spec):
        _print(line)
    _print(
        f"{config.name} can take part in {spec.name} ({spec.trained_by}), and its policy allows it: {_amounts(data)}; "
        f"at most {step_bytes(plan, up=True):,} bytes up and {step_bytes(plan, up=False):,} down per step"
    )
    return spec, plan, data


def _print(line: str) -> None:
    """Print a command's result."""
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
    """Read the site's samples, check them, and leave out what its policy does not evaluate.

    With a run's identity the site's log notes it, once nothing can refuse it any more.

    Raises:
        UserError: another run has begun meanwhile.
    """
    index, output = spec.federation.sites.index(config.name), Path(config.output)
    results = (output,) if home is None else (home, output)
    read = read_site(
        spec,
        Path(config.data),
        index,
        config.allow_factories,
        config.loading,
        dealing_of(Path(config.privacy), config.name, policy, spec, run, results=results, others=config.other_patients),
    )
    looked(read)
    try:
        data = admitted(policy, spec.at(config.name), plan, read)
    except PolicyError:
        _say(read.notes)  # which patients wait, and why, may be what the refusal comes from
        raise
    if run is not None and data.parts is not None and not data.parts.kept():
        raise UserError(
            f"data: another run has begun at {config.name} while this one read its data: start again",
            code="another-run-began",
            field="data",
        )
    _say(data.notes)
    return data


def _say(notes: Sequence[str]) -> None:
    """Tell the person at the site what reading the data has shown."""
    for note in notes:
        _log.log(logging.INFO if isinstance(note, Fact) else logging.WARNING, note)


def _amounts(data: SiteData) -> str:
    """Say how many samples there are."""
    first = data.splits[0]
    amounts = f"{len(first.train)} samples to train on, {len(first.validation)} to validate, {len(first.test)} to test"
    if len(data.splits) == 1:
        return amounts
    return f"{len(data.samples)} samples; in the first of {len(data.splits)} trainings {amounts}"


@contextmanager
def _reporting_failure(client: AggregatorClient, config: SiteConfig) -> Iterator[None]:
    """Tell the aggregator why the site cannot take part, so that the other sites know whom they wait for.

    The run waits for the site, which may be put right and started again.
    """
    try:
        yield
    except (ShutdownError, UnreachableError, RefusedError, LostRankError):
        raise
    except Exception as error:
        if isinstance(error, RankdadError) and (error.code, error.site) == ("folder-in-use", config.name):
            raise  # the site takes part already, by that process
        client.give_up(pack_failure(failure_message(config.name, 0, error, final=False)))
        raise


def offered_spec(config: SiteConfig, offered: Mapping[str, object]) -> RunSpec:
    """Return the aggregator's spec, if the site can take part in it."""
    if offered.get("version") != __version__:
        raise UserError(
            f"{config.aggregator} runs rankdad {visible(str(offered.get('version')), 63)}, this site {__version__}: "
            "install the same",
            code="version-differs",
            field="version",
        )
    return _own(config, validate(RunSpec, offered.get("run"), file=config.aggregator), config.aggregator)


def _own(config: SiteConfig, spec: RunSpec, source: str) -> RunSpec:
    """Return a run, if the site may take part in it."""
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
