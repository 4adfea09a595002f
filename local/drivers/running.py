"""Runs a site from start to end: requests the run, checks it, reads the data, trains, and saves the model."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path

from torch import Tensor

from rankdad.common.errors import RankdadError, SpecError, UnreachableError, UserError
from rankdad.common.files import make_folder, naming_the_disk, owned
from rankdad.common.logs import log_names, progress
from rankdad.common.policy_checks import policy_warnings
from rankdad.common.protocol.codec import pack_failure
from rankdad.common.protocol.messages import failure_message
from rankdad.common.run.artifacts import save_model
from rankdad.common.run.checkpoints import EVERY, Checkpoints, between
from rankdad.common.run.state import RunState
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.connection import Connection
from rankdad.local.drivers.drive import drive
from rankdad.local.drivers.followed import Followed
from rankdad.local.drivers.http import AggregatorClient, RefusedError
from rankdad.local.drivers.receipts import keep_receipt
from rankdad.local.notices import Notices
from rankdad.local.observer import Observer
from rankdad.local.progress import following
from rankdad.local.ranks.alone import Alone
from rankdad.local.ranks.group import LostRankError
from rankdad.local.sent import Messages
from rankdad.local.shutdown_signals import ShutdownError, ShutdownSignals
from rankdad.local.site import site_of
from rankdad.local.starting import checkpoints_folder, results_folder, run_id, save_state, starting_state
from rankdad.local.taking_part import TakingPart, amounts, printed, taking_part
from rankdad.local.timings import Timings
from rankdad.local.trained_rows import write_trained_rows
from rankdad.local.training import Result, TrainingState

_log = logging.getLogger(__name__)


def run_site(
    config: SiteConfig,
    signals: ShutdownSignals | None = None,
    *,
    every: int = EVERY,
    ranks: Alone | None = None,
    number: str | None = None,
    saved: Callable[[], object] = lambda: None,
    home: Path | None = None,
    connection: Connection | None = None,
) -> Result:
    """Take part in a run from hello to goodbye.

    Args:
        config: of the site.
        signals: stop signals.
        every: steps between two checkpoints.
        ranks: that share the site's batches; this process is rank 0. By default the site has one process.
        number: of the only run that the site may take part in, once: the aggregator must not start it anew.
        saved: called when the results are written, before the aggregator is informed.
        home: folder with the results of all runs, if `output` is a folder in it.
        connection: to the aggregator, instead of HTTP.

    Raises:
        ShutdownError: a signal stopped the site; it continues when it is started again.
        UserError: before training: no aggregator, a run that is not allowed here, or unusable data.
        RankdadError: during training: this site or another failed.
    """
    if ranks is None:
        config.mesh(1)
    output, ranks = Path(config.output), ranks or Alone()
    connection = connection or AggregatorClient(config, look=signals.while_waiting if signals else lambda: None)
    with log_names(site=config.name), connection as client, ExitStack() as names:
        offered = client.run()
        with _reporting_failure(client, config):
            make_folder(output, private=True, field="output")  # predictions name patients
            names.enter_context(owned(output, config.name))
            if number is not None and (offered.get("id"), offered.get("resumes")) != (number, True):
                raise SpecError(
                    "id", f"{config.aggregator} has restarted a run that was allowed here once", code="run-begun-anew"
                )
            ranks.share(json.dumps(offered).encode())
            own = taking_part(config, offered, lambda name: names.enter_context(log_names(run=name)), home)
            spec, policy, plan, data = own.spec, own.policy, own.plan, own.data
            replica = ranks.replica(spec, plan, data, own.replica)
            client.expect(plan)
            checkpoints = ranks.checkpoints(checkpoints_folder(output, offered), plan, config.name, data)
            with ranks.together():
                run_state = RunState(spec, plan, replica)
            results = results_folder(output, spec.name, run_id(offered))
            notices = Notices(results, _log.warning)
            followed = names.enter_context(closing(Followed(checkpoints.folder)))
            state = starting_state(
                config.name, offered, client.snapshot, run_state, checkpoints, policy, notices.add, ranks
            )
        for warning in (*plan.warnings, *policy_warnings(policy, spec)):
            _log.warning(warning)
        _log.info(amounts(data))
        first_round, resumable = state.run.round, offered.get("resumes") is True
        saves = every if resumable else 0
        with (
            closing(Timings(results / "timings.csv", again=first_round > 0)) as timings,
            closing(Messages(results, spec, again=followed.again)) as messages,
        ):
            observer = Observer(
                lap=timings.lap,
                sent=messages.note,
                between_steps=partial(_between_steps, checkpoints, state, first_round, saves, ranks, signals),
                tested=partial(_tested, results / "predictions", own),
                notice=notices.add,
                answered=followed.note,
                followed=following(spec, state.run, partial(progress, config.name)),
            )
            site = site_of(spec, plan, data, state, policy, observer, ranks=ranks, again=followed.again)
            quietly = (ShutdownError, LostRankError) if resumable else ()
            result = drive(site, client, config.name, ranks=ranks, quietly=quietly, comes_back=resumable)
        model = results / "model"
        save_model(model, spec, result.best, result.final, result.fit, result.own)
        write_trained_rows(results, data)
        saved()
        try:
            keep_receipt(client.done(), results, retain=policy.retain)
        except UserError as error:  # the run has ended, and its results are written
            _log.warning("no receipt: %s", error)
        ranks.share()
    shutil.rmtree(checkpoints.folder, ignore_errors=True)
    with suppress(OSError):  # those of another run are there
        checkpoints.folder.parent.rmdir()
    trained = f"after {result.epochs} epochs" if result.epochs else "with an exact solution"
    printed(f"{config.name}: done {trained}; the model is in {model}")
    return result


def _between_steps(
    checkpoints: Checkpoints,
    state: TrainingState,
    first_round: int,
    every: int,
    ranks: Alone,
    signals: ShutdownSignals | None,
) -> None:
    """Write a checkpoint if one is due, and stop if a signal says so."""
    run, stopped_by = state.run, signals.between_steps() if signals is not None else 0
    due = stopped_by or (every and run.steps % between(run, every) == 0)
    saves = bool(every and due and run.round > first_round)
    ranks.pause(saves, stopped_by)
    if saves:
        save_state(checkpoints, state)
        if stopped_by:
            printed(f"{state.site}: stopped after step {run.steps}; start it again to continue")
    if stopped_by:
        ranks.share()  # all have saved
        raise ShutdownError(stopped_by)


def _tested(folder: Path, part: TakingPart, fold: int, outputs: Tensor) -> None:
    from rankdad.local.prediction import write_predictions

    write_predictions(folder, part.spec, part.data, fold, outputs)


@contextmanager
def _reporting_failure(client: Connection, config: SiteConfig) -> Iterator[None]:
    """Report to the aggregator why the site cannot take part, for the other sites.

    The run waits for the site, which may be corrected and started again.
    """
    try:
        with naming_the_disk():
            yield
    except (ShutdownError, UnreachableError, RefusedError, LostRankError):
        raise
    except Exception as error:
        if isinstance(error, RankdadError) and (error.code, error.site) == ("folder-in-use", config.name):
            raise  # another process of the site takes part
        client.give_up(pack_failure(failure_message(config.name, 0, error, final=False)))
        raise
