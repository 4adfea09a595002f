"""Which columns of hospitals' tables are inputs, of what kind, and which of their cells stand for missing values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rankdad.common.data.cells import LIMIT
from rankdad.common.data.compared import compared, is_pair, is_stand_in
from rankdad.common.data.levels import ordered
from rankdad.common.data.profile import MAX_LEVELS, Column
from rankdad.common.data.reading import BROKEN, shown, told_together
from rankdad.common.errors import DataError, UserError, counted
from rankdad.common.spec.patterns import escaped
from rankdad.common.spec.table_schema import COLUMN, canonical, spelling
from rankdad.simulations.hospitals import Hospital

MANY_NOTES = 5  # of what looks odd
FEW_VALUES = 10  # whole numbers of a column up to which they may be codes
OFTEN = 5  # rows of each of them, on average
SUSPICIONS = frozenset({"stand-in", "units-differ", "outlier", "may-name-patients"})  # codes of remarks
SURE = frozenset({"table-repeated", "identifier-shortened"})  # are always told
FEWEST_ROWS = 20  # in which a hospital that has no zero says that there are none
RARE = 0.1  # of all rows: zeros that are more may well be measured


@dataclass
class Inputs:
    """What was found of the columns that are inputs.

    Args:
        categorical: levels of those that are, by name.
        missing: cells that stand for missing values, by column.
        gaps: share of the rows that lack a column.
        notes: a sentence for each guess.
    """

    features: list[str] = field(default_factory=list)
    categorical: dict[str, list[str]] = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)
    gaps: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def choose_inputs(found: Sequence[Hospital], names: Iterable[str], categorical: Sequence[str]) -> Inputs:
    """Choose among columns that all hospitals have.

    Args:
        found: the hospitals.
        names: of the columns.
        categorical: those whose numbers are codes.

    Raises:
        DataError: a column of numbers has cells that hold digits and are none.
        UserError: a column has too many values to be categorical.
    """
    chosen, numbers = Inputs(), list[str]()
    for name in names:
        columns = [one.columns[name] for one in found]
        why = None if name in categorical else _no_input(name, found)
        if why:
            chosen.notes.append(f"column {name} is no input: {why}")
            continue
        if name in categorical or any(column.kind == "levels" for column in columns):
            _take_levels(chosen, name, found, forced=name in categorical)
        else:
            numbers.append(name)
        chosen.features.append(name)
    check_read(found, numbers)
    check_codes(found, chosen.features)
    for name in numbers:
        chosen.missing |= missing_cells(name, found, chosen.notes, zeros=True)
    chosen.notes += read_as_missing(chosen.missing)
    chosen.notes += _may_be_codes(found, [name for name in numbers if name not in categorical], chosen.missing)
    for name in chosen.features:
        columns = [one.columns[name] for one in found]
        stand_ins = sum(count_of(column, token) for column in columns for token in chosen.missing.get(name, ()))
        levels = sum(sum(column.others.values()) for column in columns) if name in chosen.categorical else 0
        lacking = sum(column.missing for column in columns) + stand_ins - levels
        chosen.gaps[name] = max(0, lacking) / max(1, sum(one.rows for one in found))
    chosen.notes += _suspicions(found, chosen)
    return chosen


def count_of(column: Column, token: str) -> int:
    """Return how many cells hold a token that is not counted as missing."""
    if token == "0":
        return column.zeros
    alone = column.most if column.levels.keys() == {token} else 0
    return column.others.get(token, 0) or column.stand_ins.get(token, 0) or alone


def check_codes(found: Sequence[Hospital], names: Iterable[str], *, droppable: bool = True) -> None:
    """Check that hospitals give two values the same numbers: 1 may mean no where the other is 2, and yes beside 0.

    Raises:
        DataError: they do not.
    """
    for name in names:
        known = [one for one in found if one.columns[name].numbers]
        pairs = [one for one in known if is_pair(one.columns[name])]
        other = next(
            (one for one in pairs if one.columns[name].levels.keys() != pairs[0].columns[name].levels.keys()), None
        )
        if other is not None and all(one.columns[name].distinct <= 2 for one in known):
            here, there = (", ".join(ordered(one.columns[name].levels)) for one in (other, pairs[0]))
            text = f"column {name} holds {here}, but {there} at {pairs[0].site}: write the same codes everywhere"
            text += f", or leave the column out by --exclude {name}" * droppable
            raise DataError(other.holding(name), text, code="codes-differ", field=name)


def check_read(found: Sequence[Hospital], names: Iterable[str]) -> None:
    """Check that no column of numbers has cells that hold digits and are no numbers: they are values, and not gaps.

    Raises:
        DataError: one does; names the first cell, and the field of the schema that helps.
    """
    bad = [(name, one) for name in names for one in found if one.columns[name].unread]
    if not bad:
        return
    name, hospital = bad[0]
    place, text, why = hospital.columns[name].unread
    others = [other for other in dict.fromkeys(column for column, _ in bad) if other != name]
    also = f" (so do columns {', '.join(others[:10])})" if others else ""
    advice = f"it {why}" if why else f"write it as a number, or leave the column out by --exclude {name}"
    row = re.search(r"\d+", place)
    code, field_ = ("number-ambiguous", "data.decimal") if why else ("number-expected", name)
    if BROKEN.fullmatch(text):
        code, field_ = "formula", name
    raise DataError(
        hospital.holding(name),
        f"holds {shown(text)}, which is no plain number, among numbers{also}: {advice}",
        code=code,
        field=field_,
        place=f"{place}, column {name}" if place else f"column {name}",
        row=int(row[0]) if row else None,
    )


def missing_cells(
    name: str, found: Sequence[Hospital], notes: list[str], *, zeros: bool = False
) -> dict[str, list[str]]:
    """Return what else means that a value of a column of numbers is missing, and note it.

    Args:
        name: of the column.
        found: the hospitals.
        notes: to which sentences are added.
        zeros: whether zeros that cannot be measured values are among it.
    """
    columns = [one.columns[name] for one in found]
    words = ordered({token for column in columns for token in (*column.codes, *column.others)})
    if any(map(LIMIT.fullmatch, words)):
        notes.append(f"column {name}: a limit of detection is better written as a number, at every hospital")
    alone = {token for column in columns if is_stand_in(column) for token in column.levels}
    numbers = [token for token in ordered(alone.union(*(column.stand_ins for column in columns))) if token != "0"]
    numbers = [token for token in numbers if not any(_measures(column, token) for column in columns)]
    numbers += ["0"] if zeros and _zeros_stand_in(columns) else []
    for token in numbers:
        count = sum(count_of(column, token) for column in columns)
        where = ", ".join(one.site for one in found if one.site and count_of(one.columns[name], token))
        text = f"{token} in {counted(count, 'row')}{f' ({where})' * bool(where)}, far from all other values,"
        notes.append(
            f"column {name}: {text} is read as missing (data.missing_values): if it was measured, take it out there"
        )
    return {escaped(name): [*words, *numbers]} if words or numbers else {}


def by_spelling(values: Iterable[str]) -> list[list[str]]:
    """Return values in their order, those together that differ only in how they are written."""
    together: dict[str, list[str]] = {}
    for value in values:
        together.setdefault(spelling(value), []).append(value)
    return list(together.values())


def read_as_missing(missing: dict[str, list[str]]) -> list[str]:
    """Return a note for each word that is read as missing, with its columns."""
    columns: dict[str, list[str]] = {}
    for name, tokens in missing.items():
        for token in tokens:
            if not re.fullmatch(r"-?[0-9.]+", token):
                columns.setdefault(token, []).append(name)
    return [
        f"{shown(token)} is read as missing (data.missing_values) in {', '.join(names[:20])}{', …' * (len(names) > 20)}"
        for token, names in columns.items()
    ]


def _measures(column: Column, token: str) -> bool:
    """Tell whether a hospital's numbers reach one that elsewhere seems to stand for a missing value."""
    known = column.numbers
    return (
        token not in column.stand_ins
        and column.distinct > 1
        and bool(known)
        and known["least"] <= float(token) <= known["largest"]
    )


def _zeros_stand_in(columns: Sequence[Column]) -> bool:
    """Tell whether the zeros of a column cannot be measured values.

    They are far from all other values wherever there are others, and there are few, or none at some hospital.
    """
    known = [column for column in columns if column.kind == "number" and column.numbers]
    with_zeros = [column for column in known if column.zeros]
    without = [column for column in known if not column.zeros and numbers_of(column) >= FEWEST_ROWS]
    if not with_zeros or any("0" not in column.stand_ins and column.distinct > 1 for column in with_zeros):
        return False
    if not any("0" in column.stand_ins for column in with_zeros):  # at some hospitals there is nothing but zeros
        apart = [column for column in without if column.distinct > FEW_VALUES and column.zeros == 0]
        return bool(apart) and all(
            0 < column.numbers["upper"] - column.numbers["lower"] <= column.numbers["least"] for column in apart
        )
    return bool(without) or sum(column.zeros for column in known) <= RARE * sum(map(numbers_of, known))


def numbers_of(column: Column) -> int:
    """Return how many numbers a column has."""
    return column.known - sum(column.others.values())


def _take_levels(chosen: Inputs, name: str, found: Sequence[Hospital], *, forced: bool) -> None:
    """Take a column as categorical.

    Raises:
        DataError: two values differ only in how they are written.
        UserError: it has too many values.
    """
    columns = [one.columns[name] for one in found]
    if forced and any(column.distinct > MAX_LEVELS or (column.distinct and not column.levels) for column in columns):
        most = max(column.distinct for column in columns)
        text = f"column {name} has {most} different values at one hospital, expected at most {MAX_LEVELS} levels"
        raise UserError(f"--categorical: {text}: leave it a number", code="levels-too-many", field=name)
    words = [] if forced else [*{word for column in columns for word in column.others}]
    levels = ordered({*(level for column in columns for level in column.levels), *map(canonical, words)})
    twice = next((own for own in by_spelling(levels) if len(own) > 1), None)
    if twice:
        where = next(one for one in reversed(found) if not one.columns[name].levels.keys().isdisjoint(twice))
        text = f"column {name} holds {told_together(twice)}, which differ only in how they are written: write them"
        text = f"{text} in one way, or leave the column out by --exclude {name}"
        raise DataError(where.holding(name), text, code="values-spelled-apart", field=name)
    chosen.categorical[name] = levels
    codes = ordered({code for column in columns for code in column.codes}.difference(levels))
    if codes:
        chosen.missing[escaped(name)] = codes
    chosen.notes += _spellings(name, found)
    if words:
        chosen.notes.append(f"column {name}: {', '.join(sorted(words))} is a level, not a missing value")


def _no_input(name: str, found: Sequence[Hospital]) -> str | None:
    """Return why a column is no input; None if it may be one."""
    known = {one.called: one.columns[name] for one in found if one.columns[name].kind != "empty"}
    kinds = {column.kind for column in known.values()}
    if not re.fullmatch(COLUMN, name):
        return "a spec cannot hold its name"
    if not kinds:
        return "it is empty everywhere"
    if kinds == {"date"}:
        first = min((column.dates[0] for column in known.values() if column.dates), default="2000-01-01")
        offer = f'"dates": {{"{name}": {{"since": "{first}"}}}}'
        return f"it holds dates; to make it one, name it in data.features and add to data {offer}"
    for remark in (one for column in known.values() for one in column.remarks if one.code == "free-text"):
        return f"it holds {remark.text}"
    if "id" in kinds:
        return "it names rows"
    if "text" in kinds:
        return f"it holds more than {MAX_LEVELS} different texts"
    if len(kinds) > 1:
        places = ", ".join(f"{column.kind} at {site}" for site, column in known.items())
        return f"it holds {places}: make them alike"
    levels = {level for column in known.values() for level in (*column.levels, *column.others)}
    if kinds == {"levels"}:
        if len(levels) > MAX_LEVELS:
            return f"it has {len(levels)} levels"
        return None if len(levels) > 1 else "it is constant"
    spread = {column.numbers[end] for column in known.values() if column.numbers for end in ("least", "largest")}
    unread = any(column.unread for column in known.values())  # and may be numbers yet
    return None if len(spread) > 1 or unread else "it is constant"


def _may_be_codes(found: Sequence[Hospital], names: Iterable[str], missing: dict[str, list[str]]) -> list[str]:
    """Return a note on columns of few whole numbers, which may be codes."""
    few = dict[str, str]()
    for name in names:
        columns = [one.columns[name] for one in found if one.columns[name].kind == "number"]
        out = {*missing.get(escaped(name), ()), *(token for column in columns for token in column.others)}
        values = ordered({level for column in columns for level in column.levels} - out)
        often = sum(map(numbers_of, columns)) >= OFTEN * len(values)
        if all(column.whole and column.levels for column in columns) and 2 < len(values) <= FEW_VALUES and often:
            few[name] = f"{name} ({', '.join(values)})"
    if not few:
        return []
    text = "columns with few whole numbers are treated as amounts"
    return [f"{text}: {'; '.join(few.values())}; if they are codes, run init again with --categorical {','.join(few)}"]


def _spellings(name: str, found: Sequence[Hospital]) -> list[str]:
    """Return what is to be said of levels that one of several hospitals has alone."""
    levels = {one.site: set(one.columns[name].levels) for one in found if one.columns[name].levels}
    alone = {
        site: ordered(own.difference(*(other for name, other in levels.items() if name != site)))
        for site, own in levels.items()
    }
    some = [f"{', '.join(own[:5])} at {site}" for site, own in alone.items() if own]
    if len(levels) < 2 or not some:
        return []
    return [f"column {name}: levels at one hospital alone: {'; '.join(some[:5])}: are they written in one way?"]


def _suspicions(found: Sequence[Hospital], chosen: Inputs) -> list[str]:
    """Return what describe says of tables, identifiers, zeros, units, outliers and stand-ins for missing numbers."""
    beside = compared({one.site: one.profile for one in found})
    sure = [
        f"{site}: {f'column {remark.column}: ' * bool(remark.column)}{remark.text}"
        for site, own in beside.items()
        for remark in (*own.remarks, *(remark for column in own.columns for remark in column.remarks))
        if remark.code in SURE
    ]
    odd = [
        f"{site}: column {column.name}: {remark.text}" if site else f"column {column.name}: {remark.text}"
        for site, own in beside.items()
        for column in own.columns
        for remark in column.remarks
        if column.name in chosen.features and remark.code in SUSPICIONS
        if remark.value not in chosen.missing.get(escaped(column.name), ())
    ]
    more = [f"{len(odd) - MANY_NOTES} more columns look odd somewhere: rankdad describe shows them"]
    return sure + odd[:MANY_NOTES] + more * (len(odd) > MANY_NOTES)
