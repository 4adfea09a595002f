"""Converts a form to a draft of the run. The platform checks nothing, so all problems are reported here."""

from __future__ import annotations

import contextlib
import copy
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rankdad.common.documents import problems, shown
from rankdad.common.errors import SpecError
from rankdad.common.spec import RunSpec
from rankdad.common.spec.solver import DEFAULT
from rankdad.platforms.coinstac.fields import FIELDS, NEW
from rankdad.platforms.coinstac.form import Problem

SPEC = FIELDS["spec"]
WEIGHTS = "best.safetensors"  # initial weights
TABLE = "table.csv"  # name in a form's spec; members' files may differ
SITES = ("this-site", "other-site")  # placeholders: only the aggregator knows the sites
# Fields without effect on an exact solution: setting one selects steps.
STEPS = ("epochs", "batch_size", "learning_rate", "patience", "method", "rank")
FIELD_OF = {  # field of the form by prefix of a path in the spec
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
    "training.solver": "network",
    "training.batch_size": "batch_size",
    "training.optimizer": "learning_rate",
    "training.early_stopping": "patience",
    "training": "epochs",
    "seed": "seed",
}


@dataclass(frozen=True)
class Filled:
    """A filled-in form.

    Args:
        values: values by variable; an invalid field has its default.
        draft: the run's document without sites. Without a whole specification it also lacks what depends on tables:
            classes, values of categorical columns, the batch size.
        sites: sites of a whole specification, in order; empty if all members take part.
        problems: problems with fields.
        whole: whether the draft is a whole specification, in which only patterns of columns are resolved.
    """

    values: dict[str, Any]
    draft: dict[str, Any]
    sites: tuple[str, ...]
    problems: tuple[Problem, ...]
    whole: bool = False

    @property
    def start(self) -> str:
        """What the run begins with; see `fields`."""
        return str(self.values.get("start", NEW))

    def with_weights(self, sha256: str) -> Filled:
        """Return the form with initial weights from a file with this digest."""
        given = {"file": WEIGHTS, "sha256": sha256}
        return replace(self, draft=self.draft | {"model": self.draft["model"] | {"pretrained": given}})

    def problem(self, path: str, said: str, code: str = "invalid") -> Problem:
        """Convert a problem at a path of the spec to one of the form's field."""
        if self.whole:
            return SPEC.problem(f"{path}: {said}", code=code)
        for start, variable in FIELD_OF.items():
            if f"{path}.".startswith((f"{start}.", f"{start}[")):
                return FIELDS[variable].problem(said, code=code)
        return Problem(source="owner", text=f"{path}: {said}", code=code, field=path)

    def refused(self, error: SpecError) -> Problem:
        """Convert an error of the spec to a problem of the form's field."""
        problem = self.problem(error.field, str(error).removeprefix(f"{error.field}: "), error.code)
        return problem if error.is_public else problem.withheld()


def read(inputs: Mapping[str, Any]) -> Filled:
    """Parse a member's inputs, which include the owner's.

    Args:
        inputs: inputs by variable; missing ones have their default.
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
            with contextlib.suppress(ValueError):
                values[variable] = field.value(None)
    wrong = list(dict.fromkeys(wrong))
    if whole and (values["spec"] or not wrong):  # else the specification is unreadable
        return _specification(values, wrong)
    return Filled(values, {} if wrong else _draft(values), (), tuple(wrong), whole)


def _specification(values: dict[str, Any], wrong: list[Problem]) -> Filled:
    """Separate the sites from a whole specification, and check the rest."""
    draft: dict[str, Any] = copy.deepcopy(values["spec"])
    federation = draft.setdefault("federation", {})
    sites: Any = federation.pop("sites", None) if isinstance(federation, dict) else None
    if sites is not None and not (isinstance(sites, list) and all(isinstance(name, str) for name in sites)):
        wrong.append(SPEC.problem(f"federation.sites: got {_shown(sites)}, expected a list of names"))
        sites = None
    waits, alone = (
        "the platform waits for every site in every round",
        "the platform has one aggregator, above all sites",
    )
    for name, only, why in (("quorum", "all", waits), ("staleness", 0, waits), ("regions", {}, alone)):
        if isinstance(federation, dict) and federation.pop(name, only) != only:
            wrong.append(SPEC.problem(f"federation.{name}: {why}: remove it"))
    filled = Filled(values, draft, tuple(sites or ()), tuple(wrong), whole=True)
    run = with_sites(draft, sites or SITES)
    return replace(filled, problems=(*wrong, *(filled.problem(*problem) for problem in problems(RunSpec, run))))


def with_sites(draft: Mapping[str, Any], sites: Sequence[str]) -> dict[str, Any]:
    """Return a draft with these sites."""
    federation = draft.get("federation", {})
    return {**draft, "federation": {**federation, "sites": list(sites)} if isinstance(federation, dict) else federation}


def _draft(values: Mapping[str, Any]) -> dict[str, Any]:
    """Create the run of the form's fields, with settings for tables of some hundred rows."""
    label, features, categorical = (values[name] for name in ("label", "features", "categorical"))
    classification, linear = values["task"] == "classification", values["network"]["name"] == "linear"
    untouched = all(values[name] == FIELDS[name].value(None) for name in STEPS)
    return {
        "name": " ".join(re.sub(r"[^\w.-]+", " ", f"Prediction of {label.names[0]}").split())[:63],
        "seed": values["seed"],
        "task": {"name": values["task"]} | ({"class_weights": "balanced"} if classification else {}),
        "model": values["network"],
        "data": {
            "reader": "csv",
            "file": TABLE,
            "label": label.names[0],
            "values": list(label.values.get(label.names[0], ())) if classification else [],
            "missing": "impute",
            "features": list(features.names) or ["*"],
            "exclude": list(features.excluded),
            "categorical": {name: list(categorical.values.get(name, ())) for name in categorical.names},
        },
        "preparation": {"standardise": values["standardise"]},
        "evaluation": {"name": values["evaluation"]}
        | ({"stratified": True} if values["evaluation"] == "k-fold" else {}),
        "training": {
            "solver": "auto" if linear and untouched else "steps",
            "epochs": values["epochs"],
            "batches": "even",
            "optimizer": {"name": "adam", "lr": values["learning_rate"], "weight_decay": 0.01},
        }
        | ({"batch_size": values["batch_size"]} if values["batch_size"] else {})
        | ({"early_stopping": {"patience": values["patience"]}} if values["patience"] else {}),
        "method": {"name": values["method"]}
        | ({} if values["method"] == "dsgd" else {"rank": values["rank"]})
        | ({"wire": DEFAULT.wire} if values["method"] == DEFAULT.name else {}),
        "federation": {},
    }


def _is_filled(given: Any) -> bool:
    return bool(given.strip() not in ("", "{}") if isinstance(given, str) else given not in (None, {}))


def _unknown(variable: str) -> Problem:
    near = difflib.get_close_matches(variable, FIELDS, n=1)
    hint = f"did you mean {near[0]}?" if near else "remove it"
    return Problem(source="owner", text=f"{variable[:60]}: is not known here: {hint}")


def _shown(given: Any) -> str:
    return "nothing" if given in (None, "", [], {}) else shown(given)
