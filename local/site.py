"""A site's whole life: ask for the run, check it, read the data, train, save the model."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import torch
from torch import Tensor

from rankdad.common import __version__
from rankdad.common.artifacts import save_model
from rankdad.common.checkpoints import EVERY, Checkpoints, take_over
from rankdad.common.documents import load_json, validate
from rankdad.common.errors import RankdadError, SpecError, UnreachableError, UserError, visible
from rankdad.common.memory import check_memory
from rankdad.common.messages import failure_message
from rankdad.common.plan import Plan, make_plan
from rankdad.common.policy import Policy
from rankdad.common.protocol import pack_failure, step_bytes
from rankdad.common.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.local.admission import admitted
from rankdad.local.config import PATHS, SiteConfig
from rankdad.local.data import SiteData, read_site
from rankdad.local.drivers.drive import drive
from rankdad.local.drivers.http import AggregatorClient, RefusedError
from rankdad.local.leaving import Leaving, LeavingError
from rankdad.local.notices import MAX_LINE, Notices
from rankdad.local.threads import use_threads
from rankdad.local.timings import Timings
from rankdad.local.training import Result, TrainingState, train

WHOSE = "run-id"  # in an output folder: the run whose results lie there


def run_site(config: SiteConfig, leaving: Leaving | None = None, *, every: int = EVERY) -> Result:
    """Take part in a run from hello to goodbye.

    Args:
        config: the site's own file.
        leaving: whether somebody asks the site to stop.
        every: steps between two checkpoints.

    Raises:
        LeavingError: somebody does; the site can go on from where it stood.
        UserError: before training: the aggregator is not there, the run is not this site's, the data cannot be used.
        RankdadError: in training: this site or another could not go on.
    """
    output = Path(config.output)
    with AggregatorClient(config, say) as client:
        offered = client.run()
        with _telling(client, config):
            try:
                output.mkdir(parents=True, exist_ok=True, mode=0o700)  # predictions name patients
            except OSError as error:
                raise UserError(f"output: {output} cannot be made: {error.strerror}") from None
            policy = Policy.read(config.policy)
            spec = _spec(config, offered)
            replica = _replica(config, spec)
            plan = make_plan(spec, replica.model)
            policy.check(spec, plan)
            data = _data(config, spec, plan, policy)
            client.expect(plan)
            run = run_id(offered)
            checkpoints = Checkpoints(output / "checkpoints" / run, plan, config.name, data_sha256=data.sha256())
            run_state = RunState(spec, plan, replica)
            results = results_folder(output, spec.name, run)
            notices = Notices(results, say)
            state = starting_state(config.name, offered, client.snapshot, run_state, checkpoints, policy, notices.add)
        for warning in (*plan.warnings, *policy.warnings(spec)):
            say(f"warning: {warning}")
        say(f"{config.name}: {_amounts(data)}")
        began, resumes = state.run.round, offered.get("resumes") is True

        def between_steps() -> None:
            asked = leaving is not None and leaving.asked
            if resumes and (state.run.steps % every == 0 or asked) and state.run.round > began:
                checkpoints.save(state.run, state.residuals, {"follows": state.follows})
                if asked:
                    say(f"{config.name}: stops after step {state.run.steps}; start it again to go on from there")
            if leaving is not None:
                leaving.between_steps()

        def tested(fold: int, outputs: Tensor) -> None:
            from rankdad.local.prediction import (
                write_predictions,  # which takes pandas, and half a second of every start
            )

            write_predictions(results / "predictions", spec, data, fold, outputs)

        with closing(Timings(results / "timings.csv", again=began > 0)) as timings:
            training = train(spec, plan, data, state, policy, timings.lap, between_steps, tested, notices.add)
            quietly = (LeavingError,) if resumes else ()
            result = drive(training, client, plan, config.name, device=config.device, lap=timings.lap, quietly=quietly)
        model = results / "model"
        save_model(model, spec, result.best, result.final, result.fit, result.own)
        client.done()
    shutil.rmtree(checkpoints.folder, ignore_errors=True)
    say(f"{config.name}: done after {result.epochs} epochs; the model is in {model}")
    return result


def results_folder(output: Path, name: str, run: str) -> Path:
    """Return where a run's results go: into `output` itself, or, if another run's lie there, a folder of its own in it.

    Args:
        output: of the site.
        name: of the run.
        run: its number.

    Raises:
        UserError: the disk is full or broken.
    """
    whose, own = output / WHOSE, output / f"{name}-{run}"
    try:
        if whose.exists() and whose.read_bytes() == run.encode():
            return output
        if own.exists() or any((output / results).exists() for results in ("model", "predictions")):
            own.mkdir(exist_ok=True)
            return own
        whose.write_bytes(run.encode())
    except OSError as error:
        raise UserError(f"{output}: cannot be written: {error.strerror}") from None
    return output


def starting_state(
    site: str,
    offered: Mapping[str, object],
    ask_for_snapshot: Callable[[], bytes | None],
    run_state: RunState,
    checkpoints: Checkpoints,
    policy: Policy,
    notice: Callable[[str], None],
) -> TrainingState:
    """Return where a site stands: at its last checkpoint, else where the run does, else at the beginning.

    Args:
        site: its name.
        offered: what the aggregator says of the run.
        ask_for_snapshot: returns the aggregator's checkpoint; None if it has none.
        run_state: of the run, at its beginning; changed in place.
        checkpoints: of the site.
        policy: of the site.
        notice: told that the site takes over the aggregator's weights.

    Raises:
        PolicyError: the site could go on from the aggregator's checkpoint alone, and takes over no weights.
        UserError: the checkpoint is not this site's, or was made with other data.
    """
    found, oldest = checkpoints.load(run_state), offered.get("oldest", 0)
    if found is None and checkpoints.damaged and oldest == 0:
        say(f"{site}: has no whole checkpoint; begins anew, and computes again what it has sent")
        return TrainingState(site, run_state)
    if found is not None and isinstance(oldest, int) and run_state.round >= oldest:
        say(f"{site}: goes on from its checkpoint of step {run_state.steps}, round {run_state.round}")
        return TrainingState(site, run_state, found[1], follows=found[0].get("follows") is True)
    snapshot = ask_for_snapshot()
    if snapshot is None:
        return TrainingState(site, run_state)
    policy.check_snapshot(own=found is not None)
    take_over(run_state, snapshot)
    why = "has lost its checkpoints" if found is None else "was away for longer than the ledger reaches back"
    notice(
        f"{site}: {why}; goes on from the aggregator's of step {run_state.steps}, without residuals: takes over its "
        "weights, which it cannot compare with its own"
    )
    checkpoints.save(run_state, {}, {"follows": True})
    return TrainingState(site, run_state, follows=True)


def check_site(config: SiteConfig) -> None:
    """Reach the aggregator, and check that the site could take part: its data are read, nothing is sent.

    Raises:
        UserError: what would keep the site from taking part.
    """
    policy = Policy.read(config.policy)
    with AggregatorClient(config, say) as client:
        spec = _spec(config, client.run())
    plan = make_plan(spec, _replica(config, spec).model)
    policy.check(spec, plan)
    data = _data(config, spec, plan, policy)
    for warning in policy.warnings(spec):
        say(f"warning: {warning}")
    say(
        f"{config.name} can take part in {spec.name} ({spec.method.name}), and its policy allows it: {_amounts(data)}; "
        f"at most {step_bytes(plan, up=True):,} bytes up and {step_bytes(plan, up=False):,} down per step"
    )


def say(line: str) -> None:
    """Print a line for the person at the site."""
    print(visible(line, MAX_LINE), flush=True)


def run_id(offered: Mapping[str, object]) -> str:
    """Return the number by which the aggregator tells this run from others, which names a folder here.

    Raises:
        UserError: it is not made of 16 hexadecimal digits, and so might lead out of that folder.
    """
    found = offered.get("id")
    if not isinstance(found, str) or not re.fullmatch("[0-9a-f]{16}", found):
        raise UserError(f"the aggregator calls its run {str(found)[:40]!r}, expected 16 hexadecimal digits")
    return found


def _data(config: SiteConfig, spec: RunSpec, plan: Plan, policy: Policy) -> SiteData:
    """Read the site's samples, check them, and leave out what its policy does not evaluate."""
    index = spec.federation.sites.index(config.name)
    data = admitted(policy, spec, plan, read_site(spec, Path(config.data), index, config.allow_factories))
    for note in data.notes:
        say(f"warning: {note}")
    return data


def _replica(config: SiteConfig, spec: RunSpec) -> Replica:
    """Make the model, once it is known that it and the run's threads fit into this machine."""
    check_device(config.device)
    use_threads(spec.training.threads)
    check_memory(spec)
    weights = None if config.weights is None else Path(config.weights)
    return Replica(spec, config.allow_factories, config.device, weights)


def check_device(device: str) -> None:
    """Check that this machine can train on a device.

    Raises:
        UserError: it cannot.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device: {device} is not available on this machine, expected cpu")


def _amounts(data: SiteData) -> str:
    """Say how many samples there are."""
    first = data.splits[0]
    amounts = f"{len(first.train)} samples to train on, {len(first.validation)} to validate, {len(first.test)} to test"
    if len(data.splits) == 1:
        return amounts
    return f"{len(data.samples)} samples; in the first of {len(data.splits)} folds {amounts}"


@contextmanager
def _telling(client: AggregatorClient, config: SiteConfig) -> Iterator[None]:
    """Tell the aggregator why the site cannot take part: others would wait for it without knowing.

    The site may be back before long, and the run waits for it.
    """
    try:
        yield
    except (LeavingError, UnreachableError, RefusedError):
        raise
    except Exception as error:
        # What an error nobody has thought of says may come from the data.
        unexpected = f"an unexpected error ({type(error).__name__}), of which its log says more"
        reason = error.public_message if isinstance(error, RankdadError) else unexpected
        for path in filter(None, (getattr(config, key) for key in PATHS)):  # its folders are the site's business
            reason = reason.replace(f"{Path(path).parent}{os.sep}", "")
        client.give_up(pack_failure(failure_message(config.name, 0, RankdadError(reason), final=False)))
        raise


def _spec(config: SiteConfig, offered: dict[str, object]) -> RunSpec:
    """Return the aggregator's spec, if the site can take part in it."""
    if offered.get("version") != __version__:
        raise UserError(
            f"{config.aggregator} runs rankdad {visible(str(offered.get('version')), 63)}, this site {__version__}: "
            "install the same"
        )
    spec = validate(RunSpec, offered.get("run"), file=config.aggregator)
    if config.spec is not None:
        own = validate(RunSpec, load_json(config.spec), file=config.spec)
        if own.sha256() != spec.sha256():
            raise SpecError("spec", f"{config.spec} is not the run that {config.aggregator} offers")
    if config.name not in spec.federation.sites:
        raise SpecError(
            "name",
            f"{config.name} is not a site of this run, expected one of {', '.join(spec.federation.sites[:20])}"
            + ", …" * (len(spec.federation.sites) > 20),
        )
    return spec
