"""A member's node of the COINSTAC platform: the trainer under inverted control, one round in each iteration.

Every iteration hands in the last update and takes out the next contribution. The process may be another one each time.
"""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from common import __version__
from common.documents import load_json, validate
from common.errors import REASON_CHARACTERS, RankdadError, SpecError, UserError
from common.memory import check_memory
from common.models import build_model
from common.plan import make_plan
from common.spec import RunSpec
from platforms.coinstac.fields import FIELDS
from platforms.coinstac.inputs import read
from platforms.coinstac.outputs import (
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
from platforms.coinstac.site_run import (
    CHECKPOINTS,
    ERROR,
    INPUTS,
    OPENED,
    UPDATES,
    Say,
    SiteRun,
    read_data,
    write_document,
)


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
                return Reply(output(self._join(given, state), progress="inputs and data are checked"))
            message = from_aggregator(given)
            folder = Path(state.outputDirectory)
            if isinstance(message, Opened):
                (folder / ERROR).unlink(missing_ok=True)
                write_document(folder / OPENED, message.model_dump(mode="json"))
            if self._run is None:
                self._run = self._standing(folder, state)
            if isinstance(message, Updated):
                self._run.take(message)
            return self._run.reply()
        except RankdadError as error:
            self._say(f"error: {error}")
            return _failed(given, error.told)
        except Exception as error:  # whose words may quote data: they stay here
            traceback.print_exc()
            return _failed(given, f"{type(error).__name__}: the log of this site's container has more")
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
        write_document(folder / INPUTS, dict(inputs))
        filled = read(FIELDS, inputs)
        problems = [Complaint(source=one.source, text=one.text[:REASON_CHARACTERS]) for one in filled.problems]
        if not problems:
            try:
                spec = validate(RunSpec, filled.run)
                check_memory(spec)
                plan = make_plan(spec, build_model(spec, self._allow_factories))
            except RankdadError as error:
                field = error.field if isinstance(error, SpecError) else ""
                found = filled.problem(FIELDS, field, str(error).removeprefix(f"{field}: "))
                problems.append(_complaint("owner", found.text.removeprefix(": ")))
            else:
                try:
                    data = read_data(spec, plan, filled, state)
                    for note in (*plan.warnings, *data.notes):
                        self._say(f"warning: {note}")
                except RankdadError as error:
                    self._keep(folder, str(error))
                    problems.append(_complaint("member", error.told))
        for problem in problems:
            self._say(f"error: {problem.text}")
        return Joined(
            version=__version__,
            site=str(filled.values.get("site") or "")[:100],
            run={} if problems else filled.run,  # what is wrong may not even be what a message can hold
            sites=() if problems else filled.sites,
            problems=tuple(problems[:MOST_COMPLAINTS]),
        )

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

    def _keep(self, folder: Path, line: str) -> None:
        """Write down what is wrong here, in more words than other sites hear."""
        self._say(f"error: {line}")
        (folder / ERROR).write_text(f"{line}\n", encoding="utf-8")

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
        return SiteRun(opened, read(FIELDS, load_json(folder / INPUTS)), state, self._allow_factories, self._say)


def _failed(given: Mapping[str, Any], reason: str) -> Reply:
    site = str(given.get("site") or "")[:100] if is_form(given) else None
    return Reply(output(Failed(reason=reason[:REASON_CHARACTERS], site=site)))


def _complaint(source: Any, text: str) -> Complaint:
    return Complaint(source=source, text=text[:REASON_CHARACTERS])
