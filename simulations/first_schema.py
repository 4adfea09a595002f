"""A schema guessed from hospitals' tables: what is predicted, from what, whose rows are whose. Every guess is said."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rankdad.common.data.identifiers import MANY_VISITS
from rankdad.common.data.levels import ordered, outcome_of
from rankdad.common.data.profile import MANY_GAPS, MAX_LEVELS, WORDS, Column
from rankdad.common.data.reading import shown, told_together
from rankdad.common.data.tables import no_column
from rankdad.common.errors import DataError, UserError, counted
from rankdad.common.preparation.labels import one_sided
from rankdad.common.spec.patterns import escaped
from rankdad.common.spec.table_schema import spelling
from rankdad.simulations.first_inputs import (
    by_spelling,
    check_codes,
    check_read,
    choose_inputs,
    count_of,
    missing_cells,
    read_as_missing,
)
from rankdad.simulations.hospitals import Consortium, Hospital, named_files

MANY_CLASSES = 10  # values of a label of whole numbers beyond which it is a number
FEWEST = 2  # patients of a hospital: of one, some folds train on nobody and others test nobody
TIMES = frozenset({"time", "survival", "os", "pfs", "dfs", "tte", "t", "followup", "duration", "fu"})
UNITS = frozenset({"days", "months", "years", "weeks"})  # of times, and of much else
EVENTS = frozenset({"event", "status", "censored", "censor", "cens", "censoring", "vital", "e"})
DEATHS = frozenset({"death", "dead", "died", "deceased", "relapse", "progression"})


@dataclass(frozen=True)
class Wishes:
    """What a person says of a first run.

    Args:
        label: name of the column to be predicted.
        positive: rule for a label of numbers, such as "> 0".
        categorical: columns whose numbers are codes.
        exclude: columns that are left out.
    """

    label: str
    positive: str | None = None
    categorical: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class Guess:
    """What was guessed.

    Args:
        data: the schema.
        task: what is predicted.
        notes: a sentence for each guess.
        people: of each hospital, how many patients its rows with a label are of at least.
        rows: of each hospital, how many rows have a label.
    """

    data: dict[str, Any]
    task: dict[str, Any]
    notes: tuple[str, ...]
    people: tuple[int, ...]
    rows: tuple[int, ...]


def guess_schema(consortium: Consortium, wishes: Wishes) -> Guess:
    """Guess a schema.

    Args:
        consortium: the hospitals.
        wishes: what is predicted, and what else is known.

    Raises:
        DataError: the label is not everywhere, or has one value alone; or tables do not belong together.
        UserError: a column that is named does not exist, or cannot be what it is named for.
    """
    found, label = consortium.hospitals, wishes.label
    data, notes = named_files(found)
    data |= consortium.written.model_dump(mode="json", exclude_defaults=True)
    everywhere = [name for name in found[0].columns if all(name in one.columns for one in found)]
    for one in found:
        options = [(label, "--label"), *((name, "--categorical") for name in wishes.categorical)]
        options += [(name, "--exclude") for name in wishes.exclude if not any(name in other.columns for other in found)]
        for name, option in options:
            if name not in one.columns:
                error = no_column(one.place, name, list(one.columns))
                error.code, error.field = "column-missing", option
                raise error
    notes += [
        f"column {name} is no input: {one.site} has no such column"
        for one in found
        for name in dict.fromkeys(name for other in found for name in other.columns)
        if name not in one.columns and name not in wishes.exclude
    ]
    _check_times(found, label, [name for name in everywhere if name not in wishes.exclude], notes)
    task, values, merged = _task(found, label, wishes.positive, notes)
    data |= {"label": label} | ({"values": values} if values else {}) | ({"merge": merged} if merged else {})
    data |= {"positive": wishes.positive} if wishes.positive else {}
    missing: dict[str, list[str]] = {}
    if wishes.positive or not values:
        check_read(found, [label])
        missing = missing_cells(label, found, notes)
        notes += read_as_missing(missing)
    people = _subjects(found, [name for name in everywhere if name != label], data, notes)
    if group := data.get("group"):
        nobody = ordered({word for one in found for word in {**one.columns[group].codes, **one.columns[group].others}})
        missing |= {escaped(group): nobody} if nobody else {}
        notes += [f"column {group}: {shown(word)} names no patient (data.missing_values)" for word in nobody]
    taken = {label, data.get("key"), data.get("group"), *wishes.exclude}
    inputs = choose_inputs(found, [name for name in everywhere if name not in taken], wishes.categorical)
    notes += inputs.notes
    if not inputs.features:
        remarks = [remark for name in everywhere if name != label for remark in found[0].columns[name].remarks]
        texts = "".join(f"; column {one.column} holds {one.text}" for one in remarks if one.code == "free-text")
        problem = f"no column that all hospitals have is a number or categorical{texts}"
        raise DataError(found[0].place, problem, code="no-inputs", field="data.features")
    data["features"] = [escaped(name) for name in inputs.features]
    data |= {"categorical": inputs.categorical} if inputs.categorical else {}
    missing |= inputs.missing
    data |= {"missing_values": missing} if missing else {}
    lacking = {name: share for name, share in inputs.gaps.items() if share > 0}
    unlabelled = [_unlabelled(one.columns[label], missing.get(label, ())) for one in found]
    nameless = [0 if group is None else _unlabelled(one.columns[group], one.columns[group].others) for one in found]
    if lacking or any(unlabelled) or any(nameless):
        data["missing"] = "impute"
        worst = sorted(lacking, key=lacking.__getitem__, reverse=True)[:5]
        some = ", ".join(f"{name} {lacking[name]:.0%}" for name in worst)
        notes.append(f"missing inputs are replaced by the mean of all hospitals: {some or 'none yet'} (data.missing)")
    if indicated := [name for name, share in lacking.items() if share >= MANY_GAPS]:
        data["missing_indicators"] = [escaped(name) for name in indicated]
        text = f"more than {MANY_GAPS:.0%} of the values are missing, so a second input marks the missing ones"
        notes.append(f"{', '.join(indicated)}: {text} (data.missing_indicators)")
    if any(unlabelled):
        notes.append(f"{counted(sum(unlabelled), 'row')} without a value of {label} left out")
    rows = [one.rows - out - none for one, out, none in zip(found, unlabelled, nameless, strict=True)]
    people = [min(some, count) for some, count in zip(people, rows, strict=True)]
    if min(people) < FEWEST:
        where = found[people.index(min(people))]
        what = "row" if "group" not in data else "patient"
        problem = f"has {counted(min(people), what)} with a value of {label}, expected at least {FEWEST}"
        raise DataError(
            where.holding(label), f"{problem}: leave the hospital out", code="rows-too-few", field="--label"
        )
    return Guess(data, task, tuple(notes), tuple(people), tuple(rows))


def _unlabelled(column: Column, tokens: Iterable[str]) -> int:
    """Return how many rows lack a label, or have a token in its place."""
    return column.missing + sum(count_of(column, token) for token in tokens)


def _words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def _check_times(found: Sequence[Hospital], label: str, names: Sequence[str], notes: list[str]) -> None:
    """Check that the label is no time to an event that not every patient has had.

    Raises:
        UserError: it is, and names the column that says so.
    """
    two_valued = [
        name
        for name in names
        if name != label and all(one.columns[name].levels and one.columns[name].distinct <= 2 for one in found)
    ]
    words = _words(label)
    events = EVENTS | DEATHS if words & TIMES else EVENTS if words & UNITS else frozenset()
    number = all(one.columns[label].kind in ("number", "empty") for one in found)
    known = [one.columns[label] for one in found if one.columns[label].numbers]
    if number and known and all(column.numbers["least"] >= 0 and column.distinct > 2 for column in known):
        for name in two_valued:
            if _words(name) & events:
                text = (
                    f"column {label} is a time and {name} says whether the event came: where it did not, the time is "
                    "only known to be longer, which regression would take for the event's own; survival models are "
                    f"not there: predict {name}, or, if every row's time is whole, write init again with "
                    f"--exclude {name}"
                )
                raise UserError(f"--label: {text}", code="label-is-censored", field=name)
    if _words(label) & (EVENTS | DEATHS):
        for name in names:
            columns = [one.columns[name] for one in found]
            if _words(name) & TIMES and name != label and all(column.kind == "number" for column in columns):
                text = "if it is the time to the event, it is known only afterwards: leave it out by"
                notes.append(f"column {name} is an input: {text} --exclude {name}")


def _task(
    found: Sequence[Hospital], label: str, positive: str | None, notes: list[str]
) -> tuple[dict[str, Any], list[str], dict[str, list[str]]]:
    """Return the task, and if it has classes the label's values, and which spellings are one.

    Raises:
        DataError: there is nothing to predict.
        UserError: the rule does not fit.
    """
    columns = [one.columns[label] for one in found]
    numbers = all(column.kind in ("number", "empty") for column in columns)
    words = {word for column in columns for word in column.others}
    few = all(column.kind == "empty" or len(column.levels) == column.distinct for column in columns)
    values = ordered({level for column in columns for level in column.levels}) if few else []
    if numbers and words:
        values = [value for value in values if value not in words]
    if positive is not None:
        for one, column in zip(found, columns, strict=True):
            if column.kind not in ("number", "empty"):
                text = (
                    f"column {label} of {one.holding(label)} holds more than numbers, which a rule is for: "
                    "leave --positive out: the label's values are then the classes"
                )
                raise UserError(f"--positive: {text}", code="rule-needs-numbers", field="--positive")
        return {"name": "classification", "classes": 2}, ["no", "yes"], {}
    whole = all(float(value).is_integer() for value in values) if numbers else True
    if numbers and not (few and (whole or len(values) == 2) and len(values) <= MANY_CLASSES):
        notes.append(f"column {label} is numeric: the task is regression")
        return {"name": "regression"}, [], {}
    place = found[0].holding(label)
    if not values:
        text = f"column {label} has more than {MAX_LEVELS} different values that are no numbers"
        raise DataError(place, text, code="label-unusable", field="--label")
    cases = by_spelling(values)
    if len(cases) == 1:
        also = "".join(
            f"; {word!r} counts as missing: write another word" for word in sorted(words & _either_case(words))
        )
        text = f"column {label} has the one value {values[0]} at every hospital: nothing to predict{also}"
        raise DataError(place, text, code="label-constant", field="--label")
    _check_alike(found, label)
    check_codes(found, [label], droppable=False)
    merged = {own[0]: own for own in cases if len(own) > 1}
    if merged:
        text = "; ".join(map(told_together, merged.values()))
        notes.append(
            f"column {label}: values that differ only in how they are written are one class (data.merge): {text}"
        )
    outcome = outcome_of([own[0] for own in cases]) if len(cases) == 2 else None
    if outcome == cases[0][0]:
        cases = cases[::-1]
    counts = [[sum(column.levels.get(value, 0) for value in own) for own in cases] for column in columns]
    values = [own[0] for own in cases]
    some = ", ".join(f"{value} ({sum(own)} rows)" for value, own in zip(values, zip(*counts, strict=True), strict=True))
    notes.append(f"column {label} has {len(values)} classes: {some}")
    if len(values) == 2:
        doubt = "" if outcome else f" (if it is {values[0]}, write data.values the other way round)"
        notes.append(f"the model predicts the risk of {label} = {values[-1]}{doubt}")
    for one, own in zip(found, counts, strict=True):
        notes += one_sided(own, one.site)
    if len(values) > 2 and numbers:
        notes.append(f'to predict any against none of {label}, run init again with --positive "> {values[0]}"')
    return {"name": "classification", "classes": len(values)}, values, merged


def _check_alike(found: Sequence[Hospital], label: str) -> None:
    """Check that hospitals write the label's values in one way.

    Raises:
        DataError: no value of one is another's.
    """
    known = [(one, {spelling(level) for level in one.columns[label].levels}) for one in found]
    known = [(one, values) for one, values in known if len(values) > 1]
    for one, values in known[1:]:
        first, others = known[0]
        if not values & others:
            here, there = (", ".join(ordered(own.columns[label].levels)[:5]) for own in (one, first))
            text = f"column {label} holds {here}, but {there} at {first.site}: write the outcome in one way"
            raise DataError(one.holding(label), text, code="label-differs", field="--label")


def _either_case(words: Iterable[str]) -> set[str]:
    return {word for word in words if word.lower() in WORDS}


def _subjects(found: Sequence[Hospital], names: Sequence[str], data: dict[str, Any], notes: list[str]) -> list[int]:
    """Find the columns that name rows and patients: the key, of which each has one, and the group, which repeats.

    Returns:
        How many patients every hospital has; its rows where no group tells.
    """
    naming = [name for name in names if all(map(_may_name, columns := [one.columns[name] for one in found]))
              and any(column.kind == "id" for column in columns)]  # fmt: skip
    once = [name for name in naming if all(one.columns[name].most == 1 for one in found)]
    whole = [name for name in once if not any(one.columns[name].missing for one in found)]
    if whole and "key" not in data:
        data["key"] = whole[0]
        notes.append(f"column {whole[0]} identifies the rows: it is the key")
    repeated = {name: sum(one.columns[name].distinct for one in found) for name in naming if name not in once}
    if not repeated:
        return [one.rows for one in found]
    group = min(repeated, key=repeated.__getitem__)  # the coarsest: a patient's stays are his
    most = max(one.columns[group].most for one in found)
    lacking = sum(one.columns[group].missing for one in found)
    without = f"; {counted(lacking, 'row')} without it are left out" if lacking else ""
    notes.append(
        f"column {group} has the same value in up to {most} rows: it is the group; a fold keeps a group{without}"
    )
    told = [told for one in found for told in one.columns[group].remarks if told.code == "identifier-twice-written"]
    notes += [f"column {group}: {one.text}" for one in told]
    data["group"] = group
    return [one.columns[group].distinct for one in found]


def _may_name(column: Column) -> bool:
    """Tell whether a column may name patients, if it does so at another hospital."""
    alike = column.kind in ("text", "number") and column.most <= MANY_VISITS and 2 * column.distinct >= column.known
    return column.kind == "id" or alike
