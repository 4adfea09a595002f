"""The aggregator's node of the COINSTAC platform: one round in each iteration, all contributions handed over at once.

Whatever process an iteration runs in, it goes on from the ledger in the node's output folder.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from rankdad.common import __version__
from rankdad.common.documents import load_json, validate
from rankdad.common.documents import problems as spec_problems
from rankdad.common.errors import ProtocolError, RankdadError, SpecError, UserError, visible
from rankdad.common.files import write_json
from rankdad.common.memory import check_memory
from rankdad.common.plan import make_plan
from rankdad.common.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.platforms.coinstac.displays import for_people, for_sites
from rankdad.platforms.coinstac.inputs import SPEC, Filled, read, with_sites
from rankdad.platforms.coinstac.limits import check_size
from rankdad.platforms.coinstac.outputs import (
    Done,
    Failed,
    Joined,
    NodeState,
    Opened,
    Reply,
    Sent,
    Updated,
    decoded,
    encoded,
    from_site,
    output,
)
from rankdad.platforms.coinstac.table_profile import complete
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.ledger import Retention
from rankdad.remote.persistence import LEDGER, LedgerOptions

MEMBERS = "members.json"  # in the node's output folder: which client is which site, and warnings before the first round
DIRECTORY = "run"
Said = Joined | Sent | Failed | Done
T = TypeVar("T", Joined, Sent, Failed, Done)
Say = Callable[[str], None]


class InputError(UserError):
    """What people have filled in cannot be run: a line for every wrong field, for all to read."""


class AggregatorNode:
    """The aggregator.

    Args:
        allow_factories: model factories that the image's maker permits.
        say: told what the container's log should have, one line at a time.
    """

    def __init__(self, allow_factories: Collection[str] = (), say: Say = print) -> None:
        self._allow_factories, self._say = allow_factories, say
        self._aggregator: Aggregator | None = None
        self._members: dict[str, str] = {}  # client → site

    def advance(self, given: Mapping[str, Any], state: NodeState) -> Reply:
        """Return the answer to what all sites have said in one iteration.

        Args:
            given: every site's output, by its client's id.
            state: of the node.

        Raises:
            RankdadError: the run ends, for all.
        """
        if self._aggregator is not None and not self._aggregator.persistence.relock():
            self.close()
        try:
            return self._answer(given, state)
        finally:
            if self._aggregator is not None:
                self._aggregator.persistence.unlock()

    def _answer(self, given: Mapping[str, Any], state: NodeState) -> Reply:
        folder = Path(state.outputDirectory)
        said = {client: self._heard(client, given[client]) for client in sorted(given)}
        if not said:
            raise RankdadError("no site takes part")
        lines = _problems(said, first=state.iteration <= 1)
        if lines:
            self._say(f"error: {'; '.join(lines)}")
            raise InputError("\n".join(lines))
        joined = _all(Joined, said)
        if joined is not None:
            return Reply(output(self._open(joined, folder), progress="the run begins"))
        if _all(Done, said) is not None and _is_complete(folder / DIRECTORY):
            self._say("done")
            return Reply(for_people(folder / DIRECTORY, **load_json(folder / MEMBERS)), success=True)
        self._come_back(folder)
        failed = [f"{self._members[client]}: {one.reason}" for client, one in said.items() if isinstance(one, Failed)]
        if failed:
            raise self._end(*failed)
        sent = _all(Sent, said)
        if sent is None:
            raise self._end("the sites are not in the same round")
        return self._round(sent, folder)

    def close(self) -> None:
        """Let go of the node's files."""
        if self._aggregator is not None:
            self._aggregator.abandon()
            self._aggregator = None

    def _heard(self, client: str, given: object) -> Said:
        try:
            return from_site(given)
        except ProtocolError as error:
            raise RankdadError(f"{self._members.get(client, f'member {client}')}: {error}") from None

    def _open(self, joined: Mapping[str, Joined], folder: Path) -> Opened:
        """Begin the run that the form asks for.

        Raises:
            InputError: it asks for something that cannot be run.
        """
        filled = _check_together(joined)
        profiles = {one.site: one.profile for one in sorted(joined.values(), key=lambda one: one.site)}
        order = list(filled.sites) or list(profiles)
        draft, problems, warnings = complete(filled, {site: profiles[site] for site in order})
        run = with_sites(draft, order)
        problems += [] if problems else [filled.problem(path, said) for path, said in spec_problems(RunSpec, run)]
        if problems:
            raise InputError("\n".join(f"owner: {problem.text}" for problem in problems))
        spec = validate(RunSpec, run)
        self._begin(folder)
        members = {client: one.site for client, one in joined.items()}
        write_json(folder / MEMBERS, {"sites": members, "warnings": warnings})
        try:
            aggregator = self._start(spec, members, folder)
        except SpecError as error:
            said = str(error).removeprefix(f"{error.field}: ")
            raise InputError(f"owner: {filled.problem(error.field, said).text}") from None
        for line in warnings:
            self._say(f"warning: {line}")
        self._say(f"{spec.name}: {len(order)} sites, {spec.method.name}, {spec.training.epochs} epochs")
        return Opened(version=__version__, id=aggregator.run_id, run=spec.model_dump(mode="json"))

    def _begin(self, folder: Path) -> None:
        """Leave nothing of a run before this one, or of a beginning that nobody has heard of.

        Raises:
            UserError: it cannot be removed.
        """
        self.close()
        try:
            if (folder / DIRECTORY).exists():
                shutil.rmtree(folder / DIRECTORY)
        except OSError as error:
            raise UserError(f"{folder}: holds an earlier run, and cannot be emptied: {error.strerror}") from None

    def _come_back(self, folder: Path) -> None:
        """Take up a run that another process has led so far."""
        if self._aggregator is None:
            path = folder / DIRECTORY / "run.json"
            self._start(validate(RunSpec, load_json(path), file=path), load_json(folder / MEMBERS)["sites"], folder)

    def _start(self, spec: RunSpec, members: Mapping[str, str], folder: Path) -> Aggregator:
        torch.set_num_threads(spec.training.threads)
        check_memory(spec)
        replica = Replica(spec, self._allow_factories)
        check_size(spec, make_plan(spec, replica.model), replica.model)
        directory = folder / DIRECTORY
        resumes = (directory / LEDGER).exists()
        options = LedgerOptions(retention=Retention.TAIL)
        aggregator = self._aggregator = Aggregator(spec, replica, directory, time.perf_counter, ledger=options)
        self._members = dict(members)
        if resumes:
            aggregator.resume()
            aggregator.tick()
            step = aggregator.recorder.progress.step
            self._say(f"goes on from its ledger: step {step}, round {aggregator.barrier.round}")
        return aggregator

    def _round(self, sent: Mapping[str, Sent], folder: Path) -> Reply:
        """Aggregate one round."""
        aggregator = self._aggregator
        assert aggregator is not None
        answers: dict[str, bytes] = {}
        for client, one in sent.items():
            site = self._members.get(client, "")
            try:
                answers |= aggregator.take(site, decoded(one.body))
            except ProtocolError as error:
                raise self._end(f"{site}: {error}") from None
        if aggregator.barrier.failed:
            self._close()
            raise RankdadError(aggregator.recorder.progress.reason)
        number = next(iter(sent.values())).round
        if set(answers) != set(self._members.values()):
            raise self._end("the sites are not in the same round")
        body = encoded(answers[self._members[next(iter(sent))]])
        if not aggregator.ended:
            return Reply(output(Updated(round=number, body=body), progress=_progress(aggregator)))
        self._close()
        found = for_sites(folder / DIRECTORY)
        return Reply(output(Updated(round=number, body=body, results=found), progress="writing the results"))

    def _close(self) -> None:
        """Write down how the run has ended."""
        assert self._aggregator is not None
        self._aggregator.close()
        self._aggregator = None

    def _end(self, *reasons: str) -> RankdadError:
        """Write down that the run ends, and return what ends it."""
        aggregator = self._aggregator
        if aggregator is not None and not aggregator.ended:
            site, _, reason = reasons[0].partition(": ")
            aggregator.fail(site, reason or site)
            self._close()
        self._say(f"error: {'; '.join(reasons)}")
        return RankdadError("\n".join(reasons))


def _all(kind: type[T], said: Mapping[str, Said]) -> dict[str, T] | None:
    """Return what all have said, if it is all of one kind."""
    found = {client: one for client, one in said.items() if isinstance(one, kind)}
    return found if len(found) == len(said) else None


def _is_complete(directory: Path) -> bool:
    return (directory / "summary.json").exists() and load_json(directory / "summary.json")["status"] == "completed"


def _problems(said: Mapping[str, Said], *, first: bool) -> list[str]:
    """Return a line for everything that keeps single members from joining a run, each once."""
    lines: list[str] = []
    for client, one in said.items():
        if isinstance(one, Failed) and first:
            lines.append(f"{visible(client, 64)}: {one.reason}")
        if not isinstance(one, Joined):
            continue
        who = one.site if one.site == client else f"{one.site} (member {client})"
        if one.version != __version__:
            lines.append(f"{who}: runs rankdad {one.version}, the aggregator {__version__}: use one image")
        for problem in one.problems:
            lines.append(f"{'owner' if problem.source == 'owner' else who}: {problem.text}")
    return list(dict.fromkeys(lines))


def _check_together(joined: Mapping[str, Joined]) -> Filled:
    """Return what the owner has filled in, if the members make one run of it.

    Raises:
        InputError: with a line for every problem.
    """
    first, *others = joined.values()
    filled = read(first.form)
    lines = [
        f"{one.site}: has other inputs of the owner than {first.site}: save Map again there, then start the run again"
        for one in others
        if one.form != first.form
    ]
    lines += [f"owner: {problem.text}" for problem in filled.problems]
    lines += _check_names([one.site for one in joined.values()], filled.sites)
    if lines:
        raise InputError("\n".join(lines))
    return filled


def _check_names(names: Sequence[str], expected: Sequence[str]) -> list[str]:
    lines = [
        f"{name}: {names.count(name)} members have this name: every site needs its own, in its JSON file"
        for name in sorted(set(names))
        if names.count(name) > 1
    ]
    for name in expected:
        if name not in names:
            said = f"federation.sites: {name} does not take part; {', '.join(names)} do"
            lines.append(f"owner: {SPEC.problem(said).text}")
    if expected:
        others = [name for name in names if name not in expected]
        lines += [f"{name}: is not among the owner's sites ({', '.join(expected)})" for name in others]
    return lines


def _progress(aggregator: Aggregator) -> str:
    progress = aggregator.recorder.progress
    loss = "" if progress.loss is None else f", loss {progress.loss:.4f}"
    left = f", about {progress.seconds_left:.0f} s left" if progress.step else ""
    return f"epoch {progress.epoch + 1} of {progress.epochs}, step {progress.step} of {progress.steps}{loss}{left}"
