"""From a filled-in form to a run's document. The platform checks nothing: here all that is wrong is named at once."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from common.documents import problems
from common.spec import RunSpec
from platforms.coinstac.form import Field, Problem
from platforms.coinstac.parsing import is_site_name

SPEC = "Whole specification (spec)"


@dataclass(frozen=True)
class Filled:
    """What has been filled in.

    Args:
        values: by variable, of the fields that count; of one that cannot be read, what stood in the form before.
        run: the run's document, whose sites are this one alone.
        sites: that the owner expects, in their order; none if whoever comes takes part.
        problems: with any field.
    """

    values: dict[str, Any]
    run: dict[str, Any]
    sites: tuple[str, ...]
    problems: tuple[Problem, ...] = ()

    def problem(self, fields: Sequence[Field], path: str, said: str) -> Problem:
        """Return what is wrong at a path of the run's document as a problem of the field that it came from."""
        expert = bool(self.values.get("spec"))
        for field in fields:
            at = field.path and f"{path}[".startswith((f"{field.path}[", f"{field.path}."))
            if at and field.applies(self.values) and (field.source == "member" or not expert):
                return field.problem(said)
        inner, colon, _ = said.partition(": ")  # of a part as a whole, which then names its field itself
        if colon and any(field.path == f"{path}.{inner}" for field in fields):
            return self.problem(fields, f"{path}.{inner}", said.removeprefix(f"{inner}: "))
        return Problem("owner", f"{SPEC}: {path}: {said}" if expert else f"{path}: {said}")


def read(fields: Sequence[Field], inputs: Mapping[str, Any]) -> Filled:
    """Return what a member's inputs say, the owner's among them.

    Args:
        fields: of the form; one whose value decides about others comes before them.
        inputs: by variable; one that is missing has its default.
    """
    values: dict[str, Any] = {}
    known = [field.variable for field in fields if not field.fixed]
    wrong = [_unknown(known, variable) for variable in inputs if variable not in known]
    unread: set[str] = set()  # labels of the fields whose value is not known
    for field in fields:
        if field.applies(values):
            given = None if field.fixed else inputs.get(field.variable)
            try:
                values[field.variable] = field.read(given)
            except ValueError as error:
                wrong.append(field.problem(f"got {_shown(given)}, {error}"))
                unread.add(field.problem("").text)
                values[field.variable] = field.initial
        if field.variable == "spec" and values["spec"]:  # its kind of data decides which files a member gives
            data = values["spec"].get("data")
            values["reader"] = data.get("reader", "npz") if isinstance(data, dict) else values["reader"]
    run: dict[str, Any] = json.loads(json.dumps(values.get("spec"))) or _assembled(fields, values)
    federation = run.setdefault("federation", {})
    sites = values.get("sites") or []
    if isinstance(federation, dict):
        if not isinstance(federation.get("sites") or [], list):
            said = f"{SPEC}: federation.sites: got {_shown(federation['sites'])}, expected a list of names"
            wrong.append(Problem("owner", said))
        else:
            sites = sites or federation.get("sites") or []
        federation["sites"] = [values["site"]]
        if federation.pop("quorum", "all") != "all":
            said = f"{SPEC}: federation.quorum: the platform waits for every site in every round: leave it out"
            wrong.append(Problem("owner", said))
    filled = Filled(values, run, tuple(str(name) for name in sites))
    wrong += [
        Problem("owner", f"Sites, in their order (sites): {name[:80]!r} is no name, expected such as hospital-a")
        for name in filled.sites
        if not is_site_name(name)
    ]
    for path, said in problems(RunSpec, run):
        found = filled.problem(fields, path, said)
        if not found.text.startswith(tuple(unread)):
            wrong.append(found)
    return replace(filled, problems=tuple(dict.fromkeys(wrong)))


def _assembled(fields: Sequence[Field], values: Mapping[str, Any]) -> dict[str, Any]:
    run: dict[str, Any] = {}
    for field in fields:
        if field.path and field.source == "owner" and field.variable in values:
            *parents, last = field.path.split(".")
            place = run
            for key in parents:
                place = place.setdefault(key, {})
            place[last] = values[field.variable]
    return run


def _unknown(known: Sequence[str], variable: str) -> Problem:
    near = difflib.get_close_matches(variable, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "remove it"
    return Problem("owner", f"{variable[:60]}: is not known here: {hint}")


def _shown(given: Any) -> str:
    text = json.dumps(given)
    return "nothing" if given in (None, "") else text if len(text) <= 60 else text[:57] + "..."
