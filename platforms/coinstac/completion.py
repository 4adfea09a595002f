"""From a draft to the run: what it lacks is taken from what all members' tables say."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rankdad.common.documents import problems, validate
from rankdad.common.errors import SpecError, UserError
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import CsvData, FreesurferData, resolve_features
from rankdad.common.spec.patterns import is_pattern, literal
from rankdad.local.data.profile import ordered
from rankdad.platforms.coinstac.fields import FIELDS
from rankdad.platforms.coinstac.form import FormError
from rankdad.platforms.coinstac.inputs import Filled, with_sites
from rankdad.platforms.coinstac.table_profile import Profile

BATCH = 32  # rows of the largest member in a step
SPARE = 1.3  # rows of the smallest member in a step over what its policy asks for: splits are not exact
MAX_NAMED = 10  # columns in a warning


def complete(filled: Filled, profiles: Mapping[str, Profile], sites: Sequence[str]) -> tuple[RunSpec, list[str]]:
    """Return the run that a form asks for, and what the owner should be told.

    Args:
        filled: the form.
        profiles: of the members' tables, by site.
        sites: of the run, in its order.

    Raises:
        FormError: the form cannot be run with these tables.
    """
    draft = copy.deepcopy(filled.draft)
    if not filled.whole:
        _collect(draft, list(profiles.values()))
    warnings: list[str] = []
    if not filled.whole or any(profile.columns for profile in profiles.values()):
        try:
            warnings = _name_features(filled, draft["data"], profiles)
        except SpecError as error:
            raise FormError(filled.refused(error)) from None
    run = with_sites(draft, sites)
    wrong = [filled.problem(*problem) for problem in problems(RunSpec, run)]
    if wrong:
        raise FormError(*wrong)
    return validate(RunSpec, run), warnings


def _collect(draft: dict[str, Any], profiles: Sequence[Profile]) -> None:
    """Put values of columns and the size of a batch where the form's fields leave them open."""
    data, task, wrong = draft["data"], draft["task"], []
    for name, levels in data["categorical"].items():
        data["categorical"][name] = levels or _union(profiles, name)
        if not data["categorical"][name]:
            said = f"column {name} has no value in enough rows of any member; to name its values, write {name} = a | b"
            wrong.append(FIELDS["categorical"].problem(said))
    if task["name"] == "classification":
        values = data["values"] = data["values"] or _union(profiles, data["label"])
        task["classes"] = max(2, len(values))
        if len(values) < 2:
            one = f"the one value {values[0]}" if values else "no value"
            said = f"column {data['label']} has {one} in enough rows of any member, expected at least two"
            hint = "to name them yourself, write diagnosis = benign | malignant"
            wrong.append(FIELDS["label"].problem(f"{said}; {hint}"))
    if wrong:
        raise FormError(*wrong)
    draft["training"]["batch_size"] = _batch_size(profiles, draft["evaluation"]["name"])


def _name_features(filled: Filled, data: dict[str, Any], profiles: Mapping[str, Profile]) -> list[str]:
    """Put the columns that all members have where patterns stand for them, and return warnings of the others."""
    first, *others = (profile.columns for profile in profiles.values())
    shared = set(first).intersection(*others)
    everywhere = [name for name in first if name in shared]
    if not everywhere and not filled.whole and not filled.values["features"].names:
        said = "no column of numbers is in every member's table: name the inputs, or look at the column names"
        raise FormError(FIELDS["features"].problem(said))
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
            some = ", ".join(lacking[:MAX_NAMED]) + ", …" * (len(lacking) > MAX_NAMED)
            warnings.append(f"{site}: its table has no column of numbers called {some}, so it is no input for anyone")
    return warnings


def complete_alone(filled: Filled, profile: Profile, sites: Sequence[str]) -> RunSpec:
    """Return the run as one member's table alone would make it, to try that table by.

    Args:
        filled: the form.
        profile: of the table.
        sites: of the run.

    Raises:
        FormError: the form cannot be run with this table.
    """
    (label,) = ("",) if filled.whole else filled.values["label"].names
    if len(profile.levels.get(label, ())) == 1:  # others may have another class
        profile = profile.model_copy(update={"levels": {**profile.levels, label: (*profile.levels[label], "another")}})
    return complete(filled, {sites[0]: profile}, sites)[0]


def check_opened(filled: Filled, profile: Profile, spec: RunSpec) -> None:
    """Check that a run is the one that the owner's form asks for, filled in from tables with columns as this one's.

    Args:
        filled: the form.
        profile: of the member's own table.
        spec: the run that the aggregator opens.

    Raises:
        UserError: it is another.
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
        if not filled.whole:
            asked["training"]["batch_size"] = run["training"]["batch_size"]
        other = sorted(part for part in asked if asked[part] != run[part])
    if other:
        raise UserError(
            f"the aggregator opens another run than the form asks for: {', '.join(other)} differ", code="run-differs"
        )


def _union(profiles: Iterable[Profile], column: str) -> list[str]:
    return ordered({level for profile in profiles for level in profile.levels.get(column, ())})


def _batch_size(profiles: Sequence[Profile], evaluation: str) -> int:
    """Return so many rows of the largest member in a step that the smallest one's share is as large as it asks for."""
    share = 0.85 * (1.0 if evaluation == "leave-one-site-out" else 0.8)  # what is neither tested nor validated
    largest = max(1.0, *(share * profile.rows for profile in profiles))
    max_steps = min(share * profile.rows / (SPARE * profile.min_rows) for profile in profiles)
    return math.ceil(largest / max(1, min(math.ceil(largest / BATCH), math.floor(max_steps))))
