"""Compares a table with those of other sites: columns, units, codes and rows that may be mistakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rankdad.common.data.identifiers import (
    ZEROS_LOST,
    lost_zeros,
)
from rankdad.common.data.levels import ordered
from rankdad.common.data.profile import SENTINELS, Column, Profile, Remark
from rankdad.common.errors import visible
from rankdad.common.spec.table_schema import canonical

OF_INPUT = "list all levels in data.categorical, or let data.categorical_other cover the rest"
OF_OUTCOME = "write it as elsewhere, or merge both into one class with data.merge"
TWIN = "if they are of one hospital, keep only one: otherwise patients are both trained on and tested"
FACTOR = 5.0  # ratio of two tables' medians from which units may differ
APART = 2.5  # distance in interquartile ranges from which units may differ, such as °C and °F


def compared(profiles: Mapping[str, Profile], labels: Sequence[str] | None = None) -> dict[str, Profile]:
    """Return the profiles of several sites with remarks on their differences.

    Args:
        profiles: by site.
        labels: columns to predict; None if unknown.
    """
    return {site: _beside(own, {name: one for name, one in profiles.items() if name != site}, labels)
            for site, own in profiles.items()}  # fmt: skip


def _beside(own: Profile, others: Mapping[str, Profile], labels: Sequence[str] | None) -> Profile:
    theirs = [other.by_name for other in others.values()]
    columns, names = list[Column](), dict.fromkeys(name for known in theirs for name in known)
    for column in own.columns:
        elsewhere = [known[column.name] for known in theirs if column.name in known]
        columns.append(replace(column, remarks=column.remarks + _apart(column, elsewhere, len(others), labels)))
    lacking = [name for name in names if name not in own.by_name]
    text = f"it has no column {', '.join(lacking[:10])}{', …' * (len(lacking) > 10)}, which others have"
    told = [Remark("column-missing", text)] if lacking else []
    if twins := [name for name, other in others.items() if other.digest == own.digest]:
        told.append(Remark("table-repeated", f"its rows are those of {', '.join(twins[:5])}: {TWIN}"))
    return replace(own, columns=tuple(columns), remarks=(*own.remarks, *told))


def _far(own: Column, other: Column) -> bool:
    """Return whether two columns differ as different units would."""
    one, two = own.numbers["median"], other.numbers["median"]
    widths = [column.numbers["upper"] - column.numbers["lower"] for column in (own, other)]
    if min(own.distinct, other.distinct) > 10 and abs(one - two) > APART * max(widths) > 0:
        return True
    if other.distinct < 2 or one <= 0 or two <= 0 or max(one / two, two / one) < FACTOR:
        return False
    signs = min(own.numbers["least"], other.numbers["least"]) < 0  # around 0, ratios of medians mean little
    return not signs or abs(one - two) > max(widths)


def _apart(own: Column, others: Sequence[Column], tables: int, labels: Sequence[str] | None) -> tuple[Remark, ...]:
    """Return remarks on how a column differs from those of its name in other tables."""
    if not tables:
        return ()
    if not others:
        return (Remark("column-alone", "no other table has it", own.name),)
    remarks = list[Remark]()

    def say(code: str, text: str, value: str = "") -> None:
        remarks.append(Remark(code, visible(text), own.name, value=value))

    known = [other for other in others if other.kind != "empty"]
    kinds = {other.kind for other in known}
    if own.kind != "empty" and len(kinds) == 1 and own.kind not in kinds:
        say("kinds-differ", f"elsewhere it holds {kinds.pop()}")
    naming = own.kind == "id" or "id" in kinds
    if naming and any(lost_zeros(own.digits, other.digits) for other in known):
        say("identifier-shortened", ZEROS_LOST)
    medians = [other.numbers["median"] for other in known if other.numbers and other.distinct > 1]
    if own.numbers and medians:
        middle, median = float(np.median(medians)), own.numbers["median"]
        never = sum(other.numbers["least"] > 0 for other in known if other.numbers)
        zero = own.distinct == 1 and median == 0 != middle and 2 * never > len(medians)
        reached = [other.numbers["least"] <= median <= other.numbers["largest"] for other in known if other.numbers]
        if zero or (is_stand_in(own) and not any(reached)):
            least, most = (pick(other.numbers[end] for other in known if other.numbers)
                           for pick, end in ((min, "least"), (max, "largest")))  # fmt: skip
            sentence = f"{median:g} in every row, elsewhere from {least:g} to {most:g}"
            say("stand-in", f"{sentence}: if it means missing, list it in data.missing_values", canonical(median))
        elif own.distinct > 10 and 2 * sum(_far(own, other) for other in known if other.numbers) > len(medians):
            sentence = f"its median is {median:g}, elsewhere {middle:g}: are the units the same?"
            say("units-differ", f"{sentence} If not, convert it in this hospital's table")
    codes = next((other.levels for other in known if is_pair(other) and other.levels.keys() != own.levels.keys()), None)
    if is_pair(own) and codes:
        here, there = (", ".join(ordered(levels)) for levels in (own.levels, codes))
        say("codes-differ", f"it holds {here}, elsewhere {there}: is it coded in one way?")
    if own.kind == "levels" and known and all(other.levels for other in known):
        alone = [level for level in own.levels if not any(level in other.levels for other in known)]
        if alone:
            sentence = f"only here: {', '.join(alone[:5])}{', …' * (len(alone) > 5)}"
            advice = OF_OUTCOME if own.name in (labels or ()) else OF_INPUT
            advice = f"of an input, {OF_INPUT}; of an outcome, {OF_OUTCOME}" if labels is None else advice
            say("levels-alone", f"{sentence}; {advice}")
    return tuple(remarks)


def is_pair(column: Column) -> bool:
    """Return whether a column has two whole numbers, such as codes for yes and no, in more than a few rows."""
    coded = column.kind == "number" and column.whole and len(column.levels) == column.distinct == 2
    return coded and column.known >= 20 and not any(float(level) in SENTINELS for level in column.levels)


def is_stand_in(column: Column) -> bool:
    """Return whether all rows of a column hold one number that may be a code for missing."""
    return column.distinct == 1 and column.known >= 10 and column.numbers.get("least") in SENTINELS
