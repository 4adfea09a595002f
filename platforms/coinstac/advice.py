"""Problems of members, in terms of the form: its users never see a specification's keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rankdad.common.errors import PolicyError, UserError
from rankdad.common.policy import Policy
from rankdad.platforms.coinstac.fields import FIELDS, NEW
from rankdad.platforms.coinstac.form import FormField, Problem

KEY = re.compile(r"\bdata\.([a-z_]+)\b")  # a specification's key in an error's hint
CELL = re.compile(r"column (?P<name>.+?): holds '(?P<value>.*?)', expected one of (?P<levels>[^;]*)")
EMPTY = "leave the cell empty if it means missing"
OUT = "or the owner leaves the column out by a minus sign, under Columns of the inputs"
REMEDIES = {  # by key
    "categorical": f"if the column is categorical, the owner can name it under Categorical columns; {OUT}",
    "missing_values": EMPTY,
    "dates": f"write a number of days or years instead, {OUT}",
    "exclude": OUT.removeprefix("or "),
    "decimal": "write numbers with a point before decimals, and without a mark between thousands",
    "delimiter": "save the table as CSV, with commas between its columns",
    "encoding": "save the table as CSV in UTF-8",
    "clip": "write a number above 0",
    "missing": f"complete it, {OUT}",
}
NAMES_OF_LEVELS = ("categorical_other", "merge", "positive")  # keys that help with an unknown value


def data_problem(error: UserError, field: FormField, values: Mapping[str, Any]) -> Problem:
    """Convert an error of a member's table to a problem of the field for its files.

    Args:
        error: the error, whose hint may name keys of a specification.
        field: the field for files.
        values: the form's values.
    """
    text, whole = error.public_message, str(error)
    key = KEY.search(whole)
    if key is None:
        return field.problem(text, whole, code=error.public_code)
    remedy = details = REMEDIES.get(key[1], "ask the owner, who can say more in a Whole specification")
    if key[1] in NAMES_OF_LEVELS and (cell := CELL.search(whole)):
        place = FIELDS["label" if cell["name"] in values["label"].names else "categorical"].label
        levels = " | ".join(cell["levels"].removesuffix(", …").split(", "))
        remedy = f"write it as in other tables, or the owner names all values, under {place}"
        details = f"{remedy}: {cell['name']} = {levels} | {cell['value']}"
    if error.code_is_public:  # else the remedy would reveal the problem
        text = f"{text}: {remedy}"
    return field.problem(text, f"{_cut(whole)}: {details}", code=error.public_code)


def _cut(sentence: str) -> str:
    """Remove the end of a sentence that names keys of a specification."""
    key = KEY.search(sentence)
    return re.split(r"[;:] (?!.*[;:] )", sentence[: key.start()])[0] if key else sentence


def policy_problem(error: PolicyError, policy: Policy, values: Mapping[str, Any]) -> Problem:
    """Convert a policy's refusal to a problem of the field that would have to change.

    Args:
        error: names the refusing lines of the policy.
        policy: the member's.
        values: the form's values.
    """
    limits, details = set(error.change), error.problem
    if error.field == "method.name":
        said = f"{values['method']} sends more than members' limits allow, unless their own JSON files do"
        return FIELDS["method"].problem(f"{said}: choose rank-dad", details, code="method-refused")
    if limits & {"files", "columns", "group"}:
        said = f"{details}: the owner asks for less, or the member's own JSON file allows it"
        return FIELDS["features"].problem(said, details, code=error.code)
    if "pretrained" in limits:
        said = f"{details}: the owner begins with {NEW}, or the member's own JSON file allows it"
        return FIELDS["start"].problem(said, details, code=error.code)
    if "min_sites" in limits:
        said = f"a model would be trained by fewer members than this member requires, {policy.min_sites}"
        remedy = "more members take part, or the owner chooses another Evaluation"
        return FIELDS["evaluation"].problem(f"{said}: {remedy}", details, code=error.code)
    if "min_rows" in limits:
        said = f"a disclosure would cover fewer rows here than this limit, {policy.min_rows}, requires"
        remedy = "lower it, or the owner chooses a larger Batch size"
        if error.field != "training.batch_size":
            remedy = "lower it, or the owner chooses another Evaluation, or other columns"
        return FIELDS["min_rows"].problem(f"{said}: {remedy}", details, code=error.code)
    if "max_rank" in limits:
        said = f"the owner's Rank is {values['rank']}, and this limit is {policy.max_rank}"
        return FIELDS["max_rank"].problem(f"{said}: raise it, or the owner lowers Rank", details, code="rank-refused")
    said = f"a step has too few rows here: this member requires {policy.rows_per_rank} for each row"
    remedy, code = "choose a larger one, a narrower Network, or a lower Rank", "batch-too-small"
    return FIELDS["batch_size"].problem(f"{said} that it sends: {remedy}", details, code=code)
