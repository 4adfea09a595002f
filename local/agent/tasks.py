"""The tasks of an agent's processes, `rankdad site - --task`: to consider a run, to train it, to answer a question.

The agent's configuration is the first line of standard input, which stays open as long as the agent lives; the outcome
is the last line of standard output.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread
from typing import TextIO, cast, get_args

from rankdad.common.documents import parse_json, validate
from rankdad.common.errors import (
    ENDED,
    REASON_CHARACTERS,
    DataError,
    PolicyError,
    RankdadError,
    RunFailedError,
    SpecError,
    UserError,
    one_line,
    public_reason,
)
from rankdad.common.files import naming_the_disk
from rankdad.common.logs import MAX_ERROR, LogFile, LogOptions, error_line, log_names, set_up
from rankdad.local.agent.processes import Kind, Outcome, Task
from rankdad.local.agent.stance import stance_on
from rankdad.local.agent.state import Considered, RunFolder
from rankdad.local.agent.words import what_leaves
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.drive import REPLACED
from rankdad.local.drivers.running import run_site
from rankdad.local.drivers.service import ServiceClient
from rankdad.local.shutdown_signals import ShutdownSignals
from rankdad.local.taking_part import offered_spec, permitted

_log = logging.getLogger(__name__)


def perform(task: str, run: str, number: str, logs: LogOptions) -> None:
    """Do a task for the agent that has started this process, and write the outcome.

    Args:
        task: `consider`, `train` or `answer`.
        run: its name; "" for a question.
        number: of the run or the question.
        logs: log options.

    Raises:
        UserError: the task is unknown, or the configuration is not one.
    """
    if task not in get_args(Task):
        raise UserError(f"--task: got {task!r}, expected {', '.join(get_args(Task))}", code="task-unknown")
    config = validate(SiteConfig, parse_json(sys.stdin.readline()))
    Thread(target=_end_with_agent, name="lifeline", daemon=True).start()
    with os.fdopen(os.dup(1), "w") as written, log_names(run=run, site=config.name):
        os.dup2(2, 1)  # nothing else that is printed belongs to the outcome
        try:
            if task == "consider":
                consider(config, run, number)
            elif task == "train":
                train(config, run, number, logs)
            else:
                answer(config, number)
            outcome = Outcome(kind="done")
        except Exception as error:
            outcome = _failed(error)
        written.write(f"\n{outcome.model_dump_json()}\n")


def _end_with_agent() -> None:
    os.read(0, 1)
    os._exit(1)


def _failed(error: Exception) -> Outcome:
    told = public_reason(error)[:REASON_CHARACTERS]
    if not isinstance(error, RankdadError):
        return Outcome(kind="crashed", reason=one_line(error), told=told)
    lasting = isinstance(error, DataError | PolicyError | SpecError) and not error.is_recoverable
    kind: Kind = "refused" if lasting else "replaced" if error.code == REPLACED else "again"
    if isinstance(error, RunFailedError) and error.code == ENDED:
        kind = "ended"
    return Outcome(kind=kind, reason=str(error)[:MAX_ERROR], told=told)  # which fits into a pipe


def consider(config: SiteConfig, run: str, number: str) -> None:
    """Find out what a run would send, and whether the policy allows it, without reading data; keep the result.

    Raises:
        UserError: the service does not describe the run, or the disk is full or broken.
    """
    with ServiceClient(config, patience=0.1) as client:  # the agent retries later
        offer = client.offer(run)
    if (offer.run, offer.id) != (run, number):
        raise UserError("the service returned another run than it offered", code="run-differs")
    words, refusal, told, retain = list[str](), "", "", False
    try:
        spec = offered_spec(config, {"version": offer.version, "wire": offer.wire, "run": offer.spec})
        policy, _, plan = permitted(config, spec, offer.id, offer.owner)
        retain = policy.retain
        words = what_leaves(spec.at(config.name), plan, policy, offer.owner)
    except Exception as error:
        known = "; ".join(error.quoted or (str(error),)) if isinstance(error, RankdadError) else one_line(error)
        refusal, told = known, public_reason(error)
    RunFolder(config, run).keep(Considered(offer=offer, words=tuple(words), refusal=refusal, told=told, retain=retain))


def train(config: SiteConfig, run: str, number: str, logs: LogOptions) -> None:
    """Take part in an approved run, as `rankdad site` does, in its own folder.

    Raises:
        RankdadError: the site cannot take part, or the run has failed.
    """
    folder, home = RunFolder(config, run), Path(config.output)
    address = f"{config.aggregator.rstrip('/')}/runs/{run}"
    own = {"aggregator": address, "output": str(folder.path), "spec": str(folder.spec)}
    with closing(LogFile(folder.log)) as log:
        with suppress(OSError):
            os.dup2(log.fileno(), 1)
        sys.stdout = cast(TextIO, log)
        set_up(logs, log)
        try:
            with ShutdownSignals() as signals, naming_the_disk():
                run_site(config.model_copy(update=own), signals, number=number, saved=folder.finish, home=home)
        except Exception as error:
            said = (str(error), error.code) if isinstance(error, RankdadError) else (one_line(error), "crashed")
            log.write(f"{error_line(*said)}\n")
            raise
        log.write("done\n")


def answer(config: SiteConfig, number: str) -> None:
    """Answer an owner's question whether the site would take part in a draft.

    Raises:
        RankdadError: the service does not answer, or the question has expired.
    """
    with ServiceClient(config, patience=0.1) as client:  # the agent retries later
        question = client.question(number)
        stance = stance_on(config, question)
        client.answer(number, stance)
    codes = ", ".join(one.code for one in stance.refusals)
    would = f"would refuse it ({codes})" if codes else "would take part"
    _log.info("%s asks about a draft: this site %s", question.owner or "an owner", would)
