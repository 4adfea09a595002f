"""The aggregator's node of the COINSTAC platform: one round in each iteration, with all contributions at once.

Each iteration may run in a new process, which resumes from the ledger in the node's output folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from rankdad.common.documents import load_json, validate
from rankdad.common.errors import ProtocolError, RankdadError, SpecError
from rankdad.common.files import write_json
from rankdad.common.memory import check_memory
from rankdad.common.protocol.versions import OUR_VERSION
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.platforms.coinstac import outputs
from rankdad.platforms.coinstac.completion import complete
from rankdad.platforms.coinstac.displays import results_of, test_results_of
from rankdad.platforms.coinstac.fields import NEW, TEST
from rankdad.platforms.coinstac.form import FormError
from rankdad.platforms.coinstac.given_model import agreed, check_alike
from rankdad.platforms.coinstac.inputs import WEIGHTS
from rankdad.platforms.coinstac.joining import check_members, check_together
from rankdad.platforms.coinstac.limits import check_size
from rankdad.platforms.coinstac.mounts import clear
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.records import Retention
from rankdad.remote.results.run_summary import RunFigures
from rankdad.remote.run_reader import FILE

# In the node's output folder:
DIRECTORY = "run"
MEMBERS = "members.json"  # sites by client, and warnings before the first round
SHOWN = "shown.json"  # output for people at the end
Say = Callable[[str], None]


class AggregatorNode:
    """The aggregator.

    Args:
        allow_factories: model factories permitted in the image.
        say: writes a line to the container's log.
    """

    def __init__(self, allow_factories: Collection[str] = (), say: Say = print) -> None:
        self._allow_factories, self._say = allow_factories, say
        self._aggregator: Aggregator | None = None
        self._members: dict[str, str] = {}  # client → site

    def advance(self, given: Mapping[str, Any], state: outputs.NodeState) -> outputs.Reply:
        """Answer all sites' outputs of one iteration.

        Args:
            given: outputs by the client's id.
            state: the node's.

        Raises:
            RankdadError: the run ends for all.
        """
        if self._aggregator is not None and not self._aggregator.persistence.file.relock():
            self.close()
        try:
            return self._answer(given, state)
        finally:
            if self._aggregator is not None:
                self._aggregator.persistence.file.unlock()

    def _answer(self, given: Mapping[str, Any], state: outputs.NodeState) -> outputs.Reply:
        folder = Path(state.outputDirectory)
        said = {client: self._parsed(client, given[client]) for client in sorted(given)}
        if not said:
            raise RankdadError("no site takes part", code="no-site")
        if state.iteration <= 1:
            message = self._open(said, folder)
            begins = isinstance(message, outputs.Opened)
            return outputs.reply(message, progress="the run begins" if begins else "writing the results")
        if (folder / SHOWN).exists() and all(isinstance(one, outputs.Done) for one in said.values()):
            self._say("done")
            return outputs.Reply(load_json(folder / SHOWN), success=True)
        if self._aggregator is None:  # in a new process
            path, self._members = folder / DIRECTORY / "run.json", load_json(folder / MEMBERS)["sites"]
            if path.exists():  # else a model was only tested
                self._start(validate(RunSpec, load_json(path), file=path), self._members, folder)
        failed = [
            f"{self._members[client]}: {one.reason}" for client, one in said.items() if isinstance(one, outputs.Failed)
        ]
        if failed:
            raise self._end(*failed)
        return self._round({client: one for client, one in said.items() if isinstance(one, outputs.Sent)}, folder)

    def close(self) -> None:
        """Close the node's files."""
        if self._aggregator is not None:
            self._aggregator.abandon()
            self._aggregator = None

    def _parsed(self, client: str, given: object) -> outputs.FromSite:
        try:
            return outputs.parsed(outputs.FROM_SITE, given)
        except ProtocolError as error:
            raise RankdadError(
                f"{self._members.get(client, f'member {client}')}: {error}", code="member-failed"
            ) from None

    def _open(self, said: Mapping[str, outputs.FromSite], folder: Path) -> outputs.FromAggregator:
        """Begin the run of the form, or pool a test, after removing an earlier run.

        Raises:
            UserError: the form cannot be run.
        """
        joined = check_members(said)
        filled = check_together([*joined.values()])
        profiles = {one.site: one.profile for one in joined.values()}
        sites = filled.sites or tuple(sorted(profiles))
        members = {client: one.site for client, one in joined.items()}
        model = agreed({one.site: one.model for one in joined.values()}) if filled.start != NEW else None
        self.close()
        clear(folder, DIRECTORY, SHOWN, WEIGHTS)
        if filled.start == TEST:
            write_json(folder / MEMBERS, {"sites": members, "warnings": []})
            tests = {one.site: one.model for one in joined.values() if one.model is not None}
            results, shown = test_results_of(tests, members)
            write_json(folder / SHOWN, shown)
            return outputs.Updated(round=0, body=b"", results=results)
        if model is not None:
            (folder / WEIGHTS).write_bytes(model.content)
            filled = filled.with_weights(model.weights_sha256)
        spec, warnings = complete(filled, {site: profiles[site] for site in sites}, sites)
        if model is not None:
            check_alike(spec, model)
        write_json(folder / MEMBERS, {"sites": members, "warnings": warnings})
        try:
            aggregator = self._start(spec, members, folder, whole=filled.whole)
        except SpecError as error:
            raise FormError(filled.refused(error)) from None
        for line in warnings:
            self._say(f"warning: {line}")
        epochs = f", {spec.training.epochs} epochs" * (spec.solver == "steps")
        self._say(f"{spec.name}: {len(sites)} sites, {spec.trained_by}{epochs}")
        return outputs.Opened(**OUR_VERSION, id=aggregator.run_id, run=spec.document())

    def _start(self, spec: RunSpec, members: Mapping[str, str], folder: Path, *, whole: bool = True) -> Aggregator:
        torch.set_num_threads(spec.training.threads)
        check_memory(spec)
        replica = Replica(spec, self._allow_factories, weights=folder)
        directory, options = folder / DIRECTORY, LedgerOptions(retention=Retention.TAIL)
        resumes = (directory / FILE).exists()
        if not resumes:
            check_size(spec, replica.model, whole=whole)
        aggregator = self._aggregator = Aggregator(spec, replica, directory, time.perf_counter, ledger=options)
        self._members = dict(members)
        if resumes:
            aggregator.resume()
            aggregator.tick()
            step = aggregator.recorder.progress.step
            self._say(f"resumed from the ledger: step {step}, round {aggregator.barrier.round}")
        return aggregator

    def _round(self, sent: Mapping[str, outputs.Sent], folder: Path) -> outputs.Reply:
        """Aggregate one round."""
        aggregator = self._aggregator
        if aggregator is None:
            raise self._end("the sites are not in the same round")
        answers: dict[str, bytes] = {}
        for client, one in sent.items():
            site = self._members.get(client, "")
            try:
                answers |= aggregator.take(site, one.body)
            except ProtocolError as error:
                raise self._end(f"{site}: {error}") from None
        if aggregator.barrier.failed:
            self._finish(aggregator)
            raise RankdadError(aggregator.recorder.progress.reason, code="run-failed")
        if not sent or set(answers) != set(self._members.values()):
            raise self._end("the sites are not in the same round")
        client, one = next(iter(sent.items()))
        body = answers[self._members[client]]
        if not aggregator.ended:
            return outputs.reply(outputs.Updated(round=one.round, body=body), progress=_progress(aggregator))
        self._finish(aggregator)
        results, shown = results_of(folder / DIRECTORY, **load_json(folder / MEMBERS))
        write_json(folder / SHOWN, shown)
        return outputs.reply(
            outputs.Updated(round=one.round, body=body, results=results), progress="writing the results"
        )

    def _finish(self, aggregator: Aggregator) -> None:
        """Close the run's aggregator."""
        aggregator.close()
        self._aggregator = None

    def _end(self, *reasons: str) -> RankdadError:
        """Record the failure of the run, and return its error."""
        aggregator = self._aggregator
        if aggregator is not None and not aggregator.ended:
            site, _, reason = reasons[0].partition(": ")
            aggregator.fail(site, reason or site)
            self._finish(aggregator)
        return RankdadError("\n".join(reasons), code="form-refused")


def _progress(aggregator: Aggregator) -> str:
    p = RunFigures.of(aggregator.recorder.progress)
    if aggregator.state.exact:
        return aggregator.state.where
    loss = "" if p.loss is None else f", loss {p.loss:.4f}"
    left = f", about {p.seconds_left:.0f} s left" if p.steps else ""
    return f"epoch {p.epochs + 1} of {p.planned_epochs}, step {p.steps} of {p.planned_steps}{loss}{left}"
