"""A member's node of the COINSTAC platform: the trainer under inverted control, one round in each iteration.

Every iteration hands in the last update and takes out the next contribution. The process may be another one each time.
"""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from rankdad.common import __version__
from rankdad.common.documents import load_json, validate
from rankdad.common.documents import problems as spec_problems
from rankdad.common.errors import REASON_CHARACTERS, DataError, PolicyError, RankdadError, SpecError, UserError
from rankdad.common.files import write_json
from rankdad.common.memory import check_memory
from rankdad.common.models import build_model
from rankdad.common.plan import make_plan
from rankdad.common.spec import RunSpec
from rankdad.platforms.coinstac.fields import FIELDS
from rankdad.platforms.coinstac.form import Problem
from rankdad.platforms.coinstac.inputs import Filled, read, with_sites
from rankdad.platforms.coinstac.mounts import Member, find_member, name_of, refused
from rankdad.platforms.coinstac.outputs import (
    MOST_COMPLAINTS,
    Complaint,
    Failed,
    Joined,
    NodeState,
    Opened,
    Reply,
    Updated,
    from_aggregator,
    is_form,
    output,
)
from rankdad.platforms.coinstac.site_run import (
    CHECKPOINTS,
    ERROR,
    INPUTS,
    OPENED,
    UPDATES,
    Say,
    SiteRun,
    read_data,
)
from rankdad.platforms.coinstac.table_profile import Profile, alone, check_opened, describe

OTHER = "another-site"  # in the place of the other members, whose names are not known yet


class SiteNode:
    """One site.

    Args:
        allow_factories: model factories that the image's maker permits.
        say: told what the container's log should have, one line at a time.
    """

    def __init__(self, allow_factories: Collection[str] = (), say: Say = print) -> None:
        self._allow_factories, self._say = allow_factories, say
        self._run: SiteRun | None = None

    def advance(self, given: Mapping[str, Any], state: NodeState) -> Reply:
        """Return what the site says in one iteration; if it cannot go on, all are told why.

        Args:
            given: the form's inputs in the first iteration, then what the aggregator has said.
            state: of the node.
        """
        try:
            if self._run is not None and not self._run.back():
                self.close()
            if is_form(given):
                if state.iteration > 1:
                    raise UserError(f"got a form in iteration {state.iteration}, expected what the aggregator says")
                return Reply(output(self._join(given, state), progress="inputs and data are checked"))
            message = from_aggregator(given)
            folder = Path(state.outputDirectory)
            if isinstance(message, Opened):
                self._check_opened(message, folder, state)
                (folder / ERROR).unlink(missing_ok=True)
                write_json(folder / OPENED, message.model_dump(mode="json"))
            if self._run is None:
                self._run = self._standing(folder, state)
            if isinstance(message, Updated):
                self._run.take(message)
            return self._run.reply()
        except RankdadError as error:
            self._say(f"error: {error}")
            return _failed(given, state, error.public_message)
        except Exception as error:  # whose words may quote data: they stay here
            traceback.print_exc()
            return _failed(given, state, f"{type(error).__name__}: the log of this site's container has more")
        finally:
            if self._run is not None:
                self._run.leave()

    def close(self) -> None:
        """Let go of the node's files."""
        if self._run is not None:
            self._run.close()
            self._run = None

    def _join(self, inputs: Mapping[str, Any], state: NodeState) -> Joined:
        """Check all that can be checked before the run is known: the form, the policy, the data."""
        folder = Path(state.outputDirectory)
        self._begin(folder)
        write_json(folder / INPUTS, dict(inputs))
        filled = read(inputs)
        member, found = find_member(filled, inputs, Path(state.baseDirectory), state.clientId)
        problems, profile = [*filled.problems, *found], Profile()
        if not found and member.data is not None:
            tried, profile = self._tried(filled, member)
            problems += tried
        problems = list(dict.fromkeys(problems))
        for problem in problems:
            self._say(f"error: {problem.text}{f' ({problem.details})' * bool(problem.details)}")
        if problems:
            lines = [f"{'owner: ' * (one.source == 'owner')}{one.text}\n    {one.details}".rstrip() for one in problems]
            (folder / ERROR).write_text("\n".join(lines) + "\n", encoding="utf-8")
            return Joined(
                version=__version__,
                site=member.name,
                problems=tuple(
                    Complaint(source=one.source, text=one.text[:REASON_CHARACTERS])
                    for one in problems[:MOST_COMPLAINTS]
                ),
            )
        form = {variable: value for variable, value in inputs.items() if FIELDS[variable].source == "owner"}
        return Joined(version=__version__, site=member.name, form=form, profile=profile)

    def _tried(self, filled: Filled, member: Member) -> tuple[list[Problem], Profile]:
        """Return what is wrong with a run of this site's data alone, and what of its table the others may know."""
        assert member.data is not None
        try:
            if filled.problems and (filled.whole or not filled.values["label"]):
                return [], Profile()
            described = describe(filled, member.data, member.policy.min_rows)
            if filled.problems:
                return list(described.problems), Profile()
            for note in described.notes:
                self._say(f"note: {note}")
            draft, problems = alone(filled, described.own) if not described.problems else ({}, described.problems)
            if problems or filled.problems:
                return list(problems), Profile()
            sites = list(filled.sites) if member.name in filled.sites else [member.name, OTHER]
            run = with_sites(draft, sites)
            wrong = [filled.problem(path, said) for path, said in spec_problems(RunSpec, run)]
            if wrong:
                return wrong, Profile()
            spec = validate(RunSpec, run)
            check_memory(spec)
            plan = make_plan(spec, build_model(spec, self._allow_factories))
            data = read_data(spec, plan, member)
        except (DataError, PolicyError) as error:
            return [refused(error, member)], Profile()
        except SpecError as error:
            return [filled.problem(error.field, str(error).removeprefix(f"{error.field}: "))], Profile()
        for note in (*plan.warnings, *member.policy.warnings(spec), *data.notes):
            self._say(f"warning: {note}")
        return [], described.told

    def _check_opened(self, opened: Opened, folder: Path, state: NodeState) -> None:
        """Check that the run is the one that this member's form asks for.

        Raises:
            UserError: it is another.
        """
        inputs = load_json(folder / INPUTS)
        filled = read(inputs)
        member, _ = find_member(filled, inputs, Path(state.baseDirectory), state.clientId)
        spec = validate(RunSpec, opened.run)
        if member.name not in spec.federation.sites:
            raise UserError("the aggregator opens a run without this site")
        if member.data is not None:
            own = describe(filled, member.data, member.policy.min_rows).own
            check_opened(filled, own, spec.model_dump(mode="json"))

    def _begin(self, folder: Path) -> None:
        """Leave no trace of a run before this one from which this one could go on.

        Raises:
            UserError: it cannot be removed.
        """
        self.close()
        try:
            for name in (OPENED, ERROR):
                (folder / name).unlink(missing_ok=True)
            for name in (CHECKPOINTS, UPDATES):
                if (folder / name).exists():
                    shutil.rmtree(folder / name)
        except OSError as error:
            raise UserError(f"{folder}: holds an earlier run, and cannot be emptied: {error.strerror}") from None

    def _standing(self, folder: Path, state: NodeState) -> SiteRun:
        """Return the run where this node stands in it, whichever process took it there.

        Raises:
            UserError: the output folder does not hold what was written there.
        """
        if not (folder / OPENED).exists():
            raise UserError(f"{folder}: does not hold what this node wrote there in earlier iterations")
        opened = validate(Opened, load_json(folder / OPENED), file=folder / OPENED)
        if opened.version != __version__:
            raise UserError(f"the aggregator runs rankdad {opened.version}, this site {__version__}: use one image")
        inputs = load_json(folder / INPUTS)
        member, _ = find_member(read(inputs), inputs, Path(state.baseDirectory), state.clientId)
        return SiteRun(opened, member, state, self._allow_factories, self._say)


def _failed(given: Mapping[str, Any], state: NodeState, reason: str) -> Reply:
    site = name_of(state.clientId) if is_form(given) else None
    return Reply(output(Failed(reason=reason[:REASON_CHARACTERS], site=site)))
