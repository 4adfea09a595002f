"""From a filled-in form to a draft of the run. The platform checks nothing: here all that is wrong is named at once."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rankdad.common.documents import problems
from rankdad.common.spec import RunSpec
from rankdad.platforms.coinstac.fields import FIELDS
from rankdad.platforms.coinstac.form import Columns, Problem

SPEC = FIELDS["spec"]
TABLE = "table.csv"  # what a form's spec calls the table, whatever each member's is called
SITES = ("this-site", "other-site")  # in the place of the sites, which only the aggregator knows
FIELD_OF = {  # by the beginning of a path in the spec: the field of the form that it follows from
    "data.label": "label",
    "data.values": "label",
    "task.classes": "label",
    "task": "task",
    "data.categorical": "categorical",
    "data": "features",
    "preparation": "standardise",
    "evaluation": "evaluation",
    "model": "network",
    "method.rank": "rank",
    "method": "method",
    "training": "epochs",
    "seed": "seed",
}


@dataclass(frozen=True)
class Filled:
    """What has been filled in.

    Args:
        values: by variable; of a field that cannot be read, what stood in the form before.
        draft: the run's document, without sites. One that the form's fields have made lacks what only tables can say:
            classes, values of categorical columns, the batch size.
        sites: that a whole specification names, in their order; none if whoever comes takes part.
        problems: with any field.
    """

    values: dict[str, Any]
    draft: dict[str, Any]
    sites: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether the draft is a whole specification, in which nothing but patterns of columns is filled in."""
        return bool(self.values.get("spec"))

    def problem(self, path: str, said: str) -> Problem:
        """Return what is wrong at a path of the spec as a problem of the field that it follows from."""
        if self.whole:
            return SPEC.problem(f"{path}: {said}")
        for start, variable in FIELD_OF.items():
            if f"{path}.".startswith((f"{start}.", f"{start}[")):
                return FIELDS[variable].problem(said)
        return Problem("owner", f"{path}: {said}")


def read(inputs: Mapping[str, Any]) -> Filled:
    """Return what a member's inputs say, the owner's among them.

    Args:
        inputs: by variable; one that is missing has its default.
    """
    values: dict[str, Any] = {}
    wrong = [_unknown(variable) for variable in inputs if variable not in FIELDS]
    whole = _is_filled(inputs.get("spec"))
    for variable, field in FIELDS.items():
        if whole and field.source == "owner" and variable != "spec":
            continue
        given = inputs.get(variable)
        try:
            values[variable] = field.value(given)
        except ValueError as error:
            wrong.append(field.problem(f"got {_shown(given)}, {error}"))
            values[variable] = None if field.default in ("", None) else field.value(None)
    if whole:
        filled = _of_specification(Filled(values, json.loads(json.dumps(values["spec"]))))
    else:
        filled = Filled(values, {} if wrong else _draft(values))
    return replace(filled, problems=tuple(dict.fromkeys([*wrong, *filled.problems])))


def _of_specification(filled: Filled) -> Filled:
    """Take the sites out of a whole specification, and check the rest."""
    draft, wrong = filled.draft, []
    federation = draft.setdefault("federation", {})
    sites: Any = federation.pop("sites", None) if isinstance(federation, dict) else None
    if sites is not None and not (isinstance(sites, list) and all(isinstance(name, str) for name in sites)):
        wrong.append(SPEC.problem(f"federation.sites: got {_shown(sites)}, expected a list of names"))
        sites = None
    if isinstance(federation, dict) and federation.pop("quorum", "all") != "all":
        wrong.append(SPEC.problem("federation.quorum: the platform waits for every site in every round: leave it out"))
    wrong += [filled.problem(path, said) for path, said in problems(RunSpec, with_sites(draft, list(sites or SITES)))]
    return replace(filled, draft=draft, sites=tuple(sites or ()), problems=tuple(wrong))


def with_sites(draft: Mapping[str, Any], sites: list[str]) -> dict[str, Any]:
    """Return a draft as the document of a run of these sites."""
    federation = draft.get("federation", {})
    return {**draft, "federation": {**federation, "sites": sites} if isinstance(federation, dict) else federation}


def _draft(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run that the form's fields ask for, with settings that suit tables of some hundred rows."""
    label, features, categorical = (values[name] or Columns() for name in ("label", "features", "categorical"))
    task: dict[str, Any] = {"name": values["task"]}
    data: dict[str, Any] = {"reader": "csv", "file": TABLE, "label": label.names[0], "missing": "impute"}
    data["features"] = list(features.names) or ["*"]
    data["exclude"] = list(features.excluded)
    data["categorical"] = {name: list((categorical.values or {}).get(name, ())) for name in categorical.names}
    if values["task"] == "classification":
        task["class_weights"] = "balanced"
        data["values"] = list((label.values or {}).get(label.names[0], ()))
    evaluation: dict[str, Any] = {"name": values["evaluation"]}
    if values["evaluation"] == "k-fold":
        evaluation["stratified"] = True
    method: dict[str, Any] = {"name": values["method"]}
    if values["method"] != "dsgd":
        method["rank"] = values["rank"]
    return {
        "name": "coinstac",
        "seed": values["seed"],
        "task": task,
        "model": values["network"],
        "data": data,
        "preparation": {"standardise": values["standardise"]},
        "evaluation": evaluation,
        "training": {
            "epochs": values["epochs"],
            "batches": "even",
            "optimizer": {"name": "adam", "lr": 0.003, "weight_decay": 0.01},
        },
        "method": method,
        "federation": {},
    }


def _is_filled(given: Any) -> bool:
    return bool(given.strip() not in ("", "{}") if isinstance(given, str) else given not in (None, {}))


def _unknown(variable: str) -> Problem:
    near = difflib.get_close_matches(variable, FIELDS, n=1)
    hint = f"did you mean {near[0]}?" if near else "remove it"
    return Problem("owner", f"{variable[:60]}: is not known here: {hint}")


def _shown(given: Any) -> str:
    text = json.dumps(given)
    return "nothing" if given in (None, "", [], {}) else text if len(text) <= 60 else text[:57] + "..."
