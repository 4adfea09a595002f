"""Completes a draft of the run from all members' tables."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from rankdad.common.data.levels import ordered, respelled
from rankdad.common.documents import problems, validate
from rankdad.common.errors import SpecError, UserError
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import CsvData, FreesurferData, resolve_features
from rankdad.common.spec.model import Mlp
from rankdad.common.spec.patterns import is_pattern, literal
from rankdad.platforms.coinstac import pace
from rankdad.platforms.coinstac.fields import FIELDS
from rankdad.platforms.coinstac.form import FormError, Problem
from rankdad.platforms.coinstac.inputs import Filled, with_sites
from rankdad.platforms.coinstac.outcome import outcome_last, same
from rankdad.platforms.coinstac.table_profile import Profile, missing_code

PACE = ("batch_size", "epochs", "early_stopping")
MANY = 2  # factor of epochs that gives a warning
LARGEST_STEP = 1_000_000  # rows that a specification allows
MAX_NAMED = 10  # columns in a warning, or members


def complete(filled: Filled, profiles: Mapping[str, Profile], sites: Sequence[str]) -> tuple[RunSpec, list[str]]:
    """Return the run of a form, and warnings for the owner.

    Args:
        filled: the form.
        profiles: profiles of members' tables by site.
        sites: the run's sites in order.

    Raises:
        FormError: the form cannot be run with these tables.
    """
    draft = copy.deepcopy(filled.draft)
    warnings = [] if filled.whole else _collect(filled, draft, profiles)
    warnings += [
        f"{site}: {missing_code(name, code)}"
        for site, profile in profiles.items()
        for name, codes in profile.stand_ins.items()
        for code in codes
    ]
    if not filled.whole or any(profile.columns for profile in profiles.values()):
        try:
            warnings += _name_features(filled, draft["data"], profiles)
        except SpecError as error:
            raise FormError(filled.refused(error)) from None
    run = with_sites(draft, sites)
    wrong = [filled.problem(*problem) for problem in problems(RunSpec, run)]
    if wrong:
        raise FormError(*wrong)
    spec = validate(RunSpec, run)
    return spec if filled.whole else _within_rank(spec), warnings


def _within_rank(spec: RunSpec) -> RunSpec:
    """Limit a run's rank to the largest that a layer of its network can use."""
    method = spec.method
    rank = getattr(method, "rank", None)
    if rank is None:
        return spec
    widths = [
        math.prod(spec.data.shape),
        *(spec.model.hidden if isinstance(spec.model, Mlp) else ()),
        spec.task.outputs,
    ]
    rank = min(rank, max(map(min, pairwise(widths))))
    return spec.model_copy(update={"method": method.model_copy(update={"rank": rank})})


def _collect(filled: Filled, draft: dict[str, Any], profiles: Mapping[str, Profile]) -> list[str]:
    """Fill in values of columns and the batch size where the form is empty; return warnings."""
    data, task = draft["data"], draft["task"]
    wrong, warnings, tables = _respelled(filled, profiles), list[str](), list(profiles.values())
    for name, levels in data["categorical"].items():
        data["categorical"][name] = levels or _union(tables, name)
        if not data["categorical"][name]:
            said = f"column {name} has no value in enough rows of any member; to name its values, write {name} = a | b"
            wrong.append(FIELDS["categorical"].problem(said, code="no-values"))
    if task["name"] == "classification":
        named, label = data["values"], data["label"]
        values = named or _union(tables, label)
        task["classes"] = max(2, len(values))
        if len(values) < 2:
            one = f"the one value {values[0]}" if values else "no value"
            said = f"column {label} has {one} in enough rows of any member, expected at least two"
            hint = f"to name them yourself, write {label} = a | b"
            wrong.append(FIELDS["label"].problem(f"{said}; {hint}", code="too-few-classes"))
        elif not wrong:
            data["values"], unsure = outcome_last(values, filled.values["positive"])
            if unsure and not named:
                first, last = data["values"]
                field = FIELDS["positive"].label
                warnings.append(f"the outcome is {label} = {last}; if {first} is, write it into {field}")
    if wrong:
        raise FormError(*wrong)
    epochs = draft["training"]["epochs"]
    smallest = pace.set_pace(draft["training"], tables, draft["evaluation"]["name"])
    training = draft["training"]
    if smallest is not None and training["epochs"] >= MANY * epochs:
        warnings.append(
            f"{[*profiles][smallest]} has few rows for its limit on each step: steps have up to "
            f"{training['batch_size']} rows of a member, and {training['epochs']} epochs instead of {epochs} give as "
            "many steps"
        )
    return warnings


def _respelled(filled: Filled, profiles: Mapping[str, Profile]) -> list[Problem]:
    """Return problems of values that members spell differently, with the members."""
    wrong = []
    for field in ("label", "categorical"):
        for name in filled.values[field].names:
            holders: dict[str, list[str]] = {}
            for site, profile in profiles.items():
                for level in profile.levels.get(name, ()):
                    holders.setdefault(level, []).append(site)
            for group in respelled(holders):
                each = " and ".join(f"{level!r} ({_listed(holders[level])})" for level in group)
                said = f"column {name} has values that differ only in how they are written, {each}: write them alike"
                wrong.append(FIELDS[field].problem(f"{said} in every table", code="values-spelled-apart"))
    return wrong


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + ", …" * (len(names) > MAX_NAMED)


def _name_features(filled: Filled, data: dict[str, Any], profiles: Mapping[str, Profile]) -> list[str]:
    """Replace patterns by columns that all members have; return warnings about other columns."""
    first, *others = (profile.columns for profile in profiles.values())
    shared = set(first).intersection(*others)
    everywhere = [name for name in first if name in shared]
    if not everywhere and not filled.whole and not filled.values["features"].names:
        each = "; ".join(f"{site} has {_listed(own.columns[:3]) or 'none'}" for site, own in profiles.items())
        said = f"no column of numbers is in every member's table: {each}: name the inputs, or look at the column names"
        raise FormError(FIELDS["features"].problem(said, code="no-common-column"))
    schema = validate(FreesurferData if data["reader"] == "freesurfer" else CsvData, data)
    resolved = resolve_features(schema, everywhere)
    data["features"] = list(resolved.features)
    if not filled.whole:
        data["features"] += [name for name in data["categorical"] if name not in resolved.named]
    warnings = []
    anywhere = dict.fromkeys(name for profile in profiles.values() for name in profile.columns)
    for site, profile in profiles.items():
        columns = set(profile.columns)
        lacking = [name for name in anywhere if name not in columns]
        if lacking and schema.patterns:
            said = f"its table has no column of numbers called {_listed(lacking)}, which is therefore not an input"
            warnings.append(f"{site}: {said}")
    return warnings


def complete_alone(filled: Filled, profile: Profile, sites: Sequence[str]) -> RunSpec:
    """Return the run that one member's table alone would give, for a trial of that table.

    Args:
        filled: the form.
        profile: the table's.
        sites: the run's sites.

    Raises:
        FormError: the form cannot be run with this table.
    """
    if not filled.whole and filled.values["task"] == "classification":
        (label,), positive = filled.values["label"].names, filled.values["positive"]
        levels = list(profile.levels.get(label, ()))  # others may have further classes
        levels += [positive] * bool(levels and positive and same(levels, positive) is None)
        levels += ["another"] * (len(levels) == 1)
        profile = profile.model_copy(update={"levels": {**profile.levels, label: tuple(levels)}})
    return complete(filled, {sites[0]: profile}, sites)[0]


def complete_unread(filled: Filled, sites: Sequence[str]) -> RunSpec:
    """Return the minimal run of a form without a table: fewest columns, largest steps.

    Args:
        filled: the form.
        sites: the run's sites.

    Raises:
        FormError: the form needs a table's columns.
    """
    if filled.whole:
        return complete(filled, {}, sites)[0]
    label, features, categorical = (filled.values[name].names for name in ("label", "features", "categorical"))
    levels: dict[str, tuple[str, ...]] = dict.fromkeys(categorical, ("a", "b")) | dict.fromkeys(label, ("a",))
    profile = Profile(columns=tuple(features) or ("a",), levels=levels)
    training = {"batch_size": LARGEST_STEP, **filled.draft["training"]}
    return complete_alone(replace(filled, draft=filled.draft | {"training": training}), profile, sites)


def check_opened(filled: Filled, profile: Profile, spec: RunSpec) -> None:
    """Check that a run matches the owner's form, given a member's own table.

    Args:
        filled: the form.
        profile: profile of the member's table.
        spec: the run that the aggregator opens.

    Raises:
        UserError: it does not match.
    """
    run = spec.model_dump(mode="json")
    data = run["data"]
    columns: tuple[str, ...] = ()
    if not filled.whole or any(map(is_pattern, filled.draft["data"].get("features", ()))):
        columns = tuple(name for name in map(literal, data.get("features", ())) if name in profile.columns)
    levels = {name: tuple(values) for name, values in (data.get("categorical") or {}).items()}
    if isinstance(data.get("label"), str):
        levels[data["label"]] = tuple(data.get("values") or ())
    sites = spec.federation.sites
    opened = profile.model_copy(update={"columns": columns, "levels": levels})
    try:
        asked = complete(filled, {sites[0]: opened}, sites)[0].model_dump(mode="json")
    except FormError:
        other = ["data"]
    else:
        if not filled.whole and pace.may_be(filled.draft["training"], run["training"]):
            asked["training"] |= {name: run["training"][name] for name in PACE}
        other = sorted(part for part in asked if asked[part] != run[part])
    if other:
        raise UserError(f"the aggregator's run does not match the form: {', '.join(other)} differ", code="run-differs")


def _union(profiles: Iterable[Profile], column: str) -> list[str]:
    return ordered({level for profile in profiles for level in profile.levels.get(column, ())})
