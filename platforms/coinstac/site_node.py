"""A member's node of the COINSTAC platform: the trainer with inverted control, one round in each iteration.

Every iteration passes in the last update and returns the next contribution, possibly in a new process.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from rankdad.common.data.spreadsheets import inert_cell
from rankdad.common.documents import load_json, validate
from rankdad.common.errors import DataError, PolicyError, RankdadError, SpecError, UserError
from rankdad.common.files import write_json
from rankdad.common.memory import check_memory
from rankdad.common.models import build_model
from rankdad.common.policy_checks import check_run, policy_warnings
from rankdad.common.protocol.plan import make_plan
from rankdad.common.protocol.versions import OUR_VERSION, check_versions
from rankdad.common.spec import RunSpec
from rankdad.local.prediction import inert
from rankdad.platforms.coinstac import outputs
from rankdad.platforms.coinstac.completion import check_opened, complete_alone, complete_unread
from rankdad.platforms.coinstac.fields import FIELDS, GIVEN, TEST
from rankdad.platforms.coinstac.form import FormError, Problem
from rankdad.platforms.coinstac.given_model import GivenModel, given_model, tested
from rankdad.platforms.coinstac.inputs import Filled, read
from rankdad.platforms.coinstac.mounts import Member, clear, find_member, name_of
from rankdad.platforms.coinstac.site_run import STATE, Say, SiteRun, read_data, write_results
from rankdad.platforms.coinstac.table_profile import Profile, describe

INPUTS, OPENED = "inputs.json", "opened.json"  # inputs of the first iterations, in a node's output folder
ERROR = "error.txt"  # problems of this site's inputs or data
PREDICTIONS = "predictions"  # only for the site itself
OTHER = "another-site"  # placeholder for other members, whose names are unknown


class SiteNode:
    """One site.

    Args:
        allow_factories: model factories permitted in the image.
        say: writes a line to the container's log.
    """

    def __init__(self, allow_factories: Collection[str] = (), say: Say = print) -> None:
        self._allow_factories, self._say = allow_factories, say
        self._run: SiteRun | None = None
        self._member: tuple[Filled, Member] | None = None

    def advance(self, given: Mapping[str, Any], state: outputs.NodeState) -> outputs.Reply:
        """Answer one iteration; a failure is sent to all, with its reason.

        Args:
            given: the form's inputs in the first iteration, then the aggregator's output.
            state: the node's.
        """
        try:
            if self._run is not None and not self._run.relock():
                self.close()
            if outputs.is_form(given):
                if state.iteration > 1:
                    raise UserError(
                        f"got a form in iteration {state.iteration}, expected the aggregator's output",
                        code="iteration-unexpected",
                    )
                return outputs.reply(self._join(given, state), progress="inputs and data are checked")
            message = outputs.parsed(outputs.FROM_AGGREGATOR, given)
            if isinstance(message, outputs.Updated) and self._find_member(state)[0].start == TEST:
                return outputs.reply(self._tested(message, state), progress="the results are written")
            if isinstance(message, outputs.Opened):
                self._open(message, state)
            run = self._run = self._run or self._resumed(state)
            if isinstance(message, outputs.Updated):
                run.take(message)
            return run.reply()
        except (FormError, PolicyError) as error:
            problems = error.problems if isinstance(error, FormError) else [self._refused(error, state)]
            self._note(problems, Path(state.outputDirectory))
            return _failed(given, state, "; ".join(problem.named() for problem in problems))
        except RankdadError as error:
            self._say(f"error: {error}")
            return _failed(given, state, error.public_message)
        except Exception as error:  # the message may quote data and stays here
            traceback.print_exc()
            return _failed(given, state, f"{type(error).__name__}: see the log of this site's container")
        finally:
            if self._run is not None:
                self._run.unlock()

    def close(self) -> None:
        """Close the node's files."""
        if self._run is not None:
            self._run.close()
            self._run = None

    def _join(self, inputs: Mapping[str, Any], state: outputs.NodeState) -> outputs.Joined:
        """Check form, policy and data before the run is known."""
        folder = Path(state.outputDirectory)
        self.close()
        clear(folder, OPENED, ERROR, *STATE)
        write_json(folder / INPUTS, dict(inputs))
        filled = read(inputs)
        member, wrong = find_member(filled, inputs, Path(state.baseDirectory), state.clientId)
        self._member = filled, member
        problems, profile, model = [*filled.problems, *wrong], Profile(), None
        try:
            if member.model is not None and not filled.problems:
                model, self._member = _begun(filled, member)
            if member.data is not None and filled.start == TEST and not problems:
                model = self._test(filled, member, member.data, folder)
            elif member.data is not None and filled.start != TEST:
                profile = self._tried(filled, member, member.data)
        except FormError as error:
            problems += error.problems
        except (DataError, PolicyError) as error:
            problems.append(member.refused(error, filled))
        except SpecError as error:
            problems.append(filled.refused(error))
        problems = list(dict.fromkeys(problems))
        if problems:
            self._note(problems, folder)
            return outputs.Joined(**OUR_VERSION, site=member.name, problems=tuple(problems[: outputs.MAX_PROBLEMS]))
        form = {variable: value for variable, value in inputs.items() if FIELDS[variable].source == "owner"}
        return outputs.Joined(**OUR_VERSION, site=member.name, form=form, profile=profile, model=model)

    def _test(self, filled: Filled, member: Member, data: Path, folder: Path) -> GivenModel:
        """Test a trained model on the member's rows, write predictions, and return the tally.

        Raises:
            UserError: it cannot be tested.
        """
        assert member.model is not None
        (label,), allowed = filled.values["label"].names, self._allow_factories
        model, predicted, key = tested(member.model, data, label, member.policy.min_rows, allowed)
        for note in predicted.notes:
            self._say(f"note: {note}")
        (folder / PREDICTIONS).mkdir(parents=True, exist_ok=True)
        table = inert(predicted.table.set_axis(pd.Index(predicted.names)))
        table.to_csv(folder / PREDICTIONS / "test.csv", index_label=inert_cell(key))
        return model

    def _tested(self, message: outputs.Updated, state: outputs.NodeState) -> outputs.Done:
        """Write the results of a test."""
        folder, model = Path(state.outputDirectory), self._find_member(state)[1].model
        assert model is not None
        if message.results is not None:
            write_results(folder, message.results)
        return outputs.Done(weights_sha256=given_model(model).weights_sha256)

    def _note(self, problems: Sequence[Problem], folder: Path) -> None:
        """Write all problems for the member itself."""
        for problem in problems:
            self._say(f"error: {problem.text}{f' ({problem.details})' * bool(problem.details)}")
        lines = [f"{problem.named()}\n    {problem.details}".rstrip() for problem in problems]
        (folder / ERROR).write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _tried(self, filled: Filled, member: Member, data: Path) -> Profile:
        """Return the public profile of a member's table, after a trial of its run alone.

        Raises:
            UserError: the run is impossible with this table.
        """
        if filled.problems and (filled.whole or not filled.values.get("label")):
            return Profile()
        sites = filled.sites if member.name in filled.sites else (member.name, OTHER)
        if not filled.problems:
            self._check_unread(filled, member, sites)
        description = describe(filled, data, member.policy.min_rows)
        if filled.problems:
            return Profile()
        for note in description.notes:
            self._say(f"note: {note}")
        try:
            spec = complete_alone(filled, description.whole, sites)
        except FormError as error:
            raise FormError(*dict.fromkeys(problem.withheld() for problem in error.problems)) from None
        check_memory(spec)
        plan = make_plan(spec, build_model(spec, self._allow_factories))
        anyhow = member.policy.model_copy(update={"min_sites": 1})  # the number of members is unknown
        samples = read_data(spec, plan, replace(member, policy=anyhow))
        for note in (*plan.warnings, *policy_warnings(member.policy, spec), *samples.notes):
            self._say(f"warning: {note}")
        return description.public

    def _check_unread(self, filled: Filled, member: Member, sites: Sequence[str]) -> None:
        """Check the form against the member's policy, as far as possible without a table.

        Raises:
            PolicyError: the policy refuses the run for any table.
        """
        with suppress(FormError, SpecError):  # depends on the table, or is reported after reading it
            spec = complete_unread(filled, sites)
            plan = make_plan(spec, build_model(spec, self._allow_factories))
            check_run(member.policy, spec.at(member.name), plan)

    def _open(self, opened: outputs.Opened, state: outputs.NodeState) -> None:
        """Begin the run if it matches this member's form.

        Raises:
            UserError: it does not match.
        """
        folder = Path(state.outputDirectory)
        filled, member = self._find_member(state)
        spec = validate(RunSpec, opened.run)
        if member.name not in spec.federation.sites:
            raise UserError("the aggregator's run does not include this site", code="site-unknown")
        if member.data is not None:
            check_opened(filled, describe(filled, member.data, member.policy.min_rows).whole, spec)
        clear(folder, ERROR)
        write_json(folder / OPENED, opened.model_dump(mode="json"))

    def _refused(self, error: UserError, state: outputs.NodeState) -> Problem:
        """Convert an error of the data or the policy to a problem of the form."""
        filled, member = self._find_member(state)
        return member.refused(error, filled)

    def _find_member(self, state: outputs.NodeState) -> tuple[Filled, Member]:
        """Return the form and the member from the first iteration, in any process."""
        if self._member is None:
            inputs = load_json(Path(state.outputDirectory) / INPUTS)
            filled = read(inputs)
            member = find_member(filled, inputs, Path(state.baseDirectory), state.clientId)[0]
            self._member = filled, member
            if member.model is not None:
                self._member = _begun(filled, member)[1]
        return self._member

    def _resumed(self, state: outputs.NodeState) -> SiteRun:
        """Resume the run at this node.

        Raises:
            UserError: files of earlier iterations are missing.
        """
        path = Path(state.outputDirectory) / OPENED
        if not path.exists():
            raise UserError(f"{path.parent}: files of this node's earlier iterations are missing", code="state-lost")
        opened = validate(outputs.Opened, load_json(path), file=path)
        check_versions("the aggregator", dict(opened), "this site")
        member = self._find_member(state)[1]
        try:
            return SiteRun(opened, member, path.parent, self._allow_factories, self._say)
        except DataError as error:
            raise FormError(self._refused(error, state)) from None


def _begun(filled: Filled, member: Member) -> tuple[GivenModel, tuple[Filled, Member]]:
    """Return a member's chosen model, and the form with it as initial weights.

    Raises:
        UserError: the model cannot be read.
    """
    assert member.model is not None
    begins = filled.start == GIVEN
    model = given_model(member.model, carried=begins)
    return model, (filled.with_weights(model.weights_sha256) if begins else filled, member)


def _failed(given: Mapping[str, Any], state: outputs.NodeState, reason: str) -> outputs.Reply:
    site = name_of(state.clientId) if outputs.is_form(given) else None
    return outputs.reply(outputs.Failed(reason=reason, site=site))
