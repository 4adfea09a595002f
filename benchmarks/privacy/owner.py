"""Attacks by an owner with access to results only: two runs that differ by a patient, identifiers as inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.privacy.hospitals import SITES, Hospitals, Refused, document
from benchmarks.privacy.judge import Claim
from benchmarks.privacy.rows import claims_of, is_row
from benchmarks.privacy.tables import BINARY, LABEL, LEVELS, NUMBERS
from rankdad.common.models import build_network
from rankdad.common.spec import RunSpec

HOLDOUT = {"name": "holdout"}
TARGETS = 3  # patients of each site whom the owner asks for
MOVED = 1e-6  # of a weight: less is rounding


def two_runs(hospitals: Hospitals) -> list[Claim]:
    """Claim rows of patients whom the owner leaves out by name: a code of missing values, in a column of identifiers.

    Everybody else is in both runs. Seeds and validation shares differ, too, which is no help where folds are secret.
    """
    claims = list[Claim]()
    for number in range(TARGETS):
        names = [hospitals.names[site][7 + 5 * number] for site in SITES]  # of the first ones some values are missing
        levels = {"categorical": {**_levels(), "pid": names}, "categorical_other": ["pid"], "missing": "drop"}
        data = {"features": [*NUMBERS, *BINARY, *LEVELS, "pid"], **levels}
        left_out = {**data, "missing_values": {"pid": names}}
        found = [
            _table_one(hospitals, document(data=own, seed=seed, evaluation=HOLDOUT, training={"validation": share}))
            for own, seed, share in ((data, 0, 0.2), (left_out, 1, 0.25))
        ]
        claims += _apart(found, dict(zip(SITES, names, strict=True)))
    return claims


def withdrawal(hospitals: Hospitals) -> list[Claim]:
    """Claim rows of patients of whom the owner knows that they have come, or gone, between two equal runs."""
    names = hospitals.names
    come, gone = [names[site][-1] for site in SITES], [names[site][-2] for site in SITES]
    study = document(evaluation=HOLDOUT)
    tables = [_table_one(hospitals, study, without) for without in (come, (), gone)]
    claims = list(_apart(tables[1::-1], dict(zip(SITES, come, strict=True))))
    return claims + list(_apart(tables[1:], dict(zip(SITES, gone, strict=True))))


def identifiers(hospitals: Hospitals) -> list[Claim]:
    """Claim the class of every patient: each has a weight of their own where their identifiers are levels.

    Where most of the weights have stayed where they began, the identifiers were not used, and nothing is claimed.
    """
    names = [name for own in hospitals.names.values() for name in own]
    data = {"features": ["age", "pid"], "categorical": {"pid": names}}
    spec = document(data=data, evaluation=HOLDOUT, training={"epochs": 4, "validation": 0.0, "test": 0.0})
    seen = hospitals.run(spec)
    if isinstance(seen, Refused):
        return []
    begun = dict(build_network(RunSpec.model_validate(seen.spec.model_dump())).named_parameters())
    (weight,) = (name for name in seen.weights if name.endswith("weight"))
    moved = (seen.weights[weight] - begun[weight].detach())[1, 1:] - (seen.weights[weight] - begun[weight].detach())[
        0, 1:
    ]
    if float((moved.abs() > MOVED).double().mean()) < 0.5:
        return []
    return [
        Claim(site, name, LABEL, float(moved[names.index(name)] > 0))
        for site, own in hospitals.names.items()
        for name in own
        if abs(float(moved[names.index(name)])) > MOVED
    ]


def _levels() -> dict[str, list[str]]:
    return {column: list(levels) for column, levels in LEVELS.items()}


def _table_one(
    hospitals: Hospitals, spec: Mapping[str, Any], without: tuple[str, ...] | list[str] = ()
) -> Mapping[str, Any] | None:
    """Return Table 1 of a run, by site; None of one that is refused."""
    seen = hospitals.run(spec, without)
    return None if isinstance(seen, Refused) else seen.summary["table1"]["sites"]


def _apart(tables: list[Mapping[str, Any] | None], names: Mapping[str, str]) -> Iterator[Claim]:
    """Yield differences between two Tables 1, each of a patient known to the owner."""
    if any(table is None for table in tables):
        return
    for site, name in names.items():
        more, less = (_sums(table[site]) for table in tables if table is not None)
        left = more - less
        if left[0] == 1 and is_row(left[3:], 1e-2):
            yield from claims_of(site, name, left[3:], float(left[2]))


def _sums(table: Mapping[str, Any]) -> Tensor:
    """Return rows, patients of each class and sums of columns from a site's Table 1."""
    found = [float(table["rows"]), *map(float, table["label"]["counts"])]
    for column in (*NUMBERS, *BINARY):
        own = table["columns"][column]
        mean = own["mean"]
        found.append(float("nan") if mean is None else mean * (table["rows"] - own["missing"]))
    found += [float(table["columns"][column]["levels"][level]) for column, levels in LEVELS.items() for level in levels]
    return torch.tensor(found, dtype=torch.float64)
