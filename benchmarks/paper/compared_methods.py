"""The methods that are compared, with their names in figures and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Family = Literal[
    "pooled", "exact", "ours", "rows", "int8", "published", "authors", "powersgd", "powersgd-plain", "top-rows"
]


@dataclass(frozen=True)
class ComparedMethod:
    """One curve of a figure.

    Args:
        key: its name in tables.
        label: its name in figures and text.
        family: methods of one family differ in their rank alone.
        document: `run.method`; None trains on all sites' data together.
        rank: rows of a factor on the wire; None where there is no such number.
    """

    key: str
    label: str
    family: Family
    document: Mapping[str, Any] | None
    rank: int | None = None


def _ranked(key: str, label: str, family: Family, rank: int, document: Mapping[str, Any]) -> ComparedMethod:
    return ComparedMethod(f"{key}-{rank}", f"{label}, r={rank}", family, {**document, "rank": rank}, rank)


def _methods() -> list[ComparedMethod]:
    methods = [
        ComparedMethod("pooled", "pooled", "pooled", None),
        ComparedMethod("dsgd", "dSGD", "exact", {"name": "dsgd"}),
        ComparedMethod(
            "dsgd-per-tensor", "dSGD, a collective per tensor", "exact", {"name": "dsgd", "exchanges": "per-tensor"}
        ),
        ComparedMethod("dad", "dAD", "exact", {"name": "dad"}),
        ComparedMethod("edad", "edAD", "exact", {"name": "edad"}),
        ComparedMethod("top-rows", "top 3 rows", "top-rows", {"name": "top-rows", "rows": 3}),
    ]
    for rank in (1, 2, 4, 8, 10, 16):
        rows = {"name": "rank-dad", "feedback": "both"}
        ours = {**rows, "residual": "dense"}
        methods += [
            _ranked("rank-dad", "rank-dAD with feedback", "ours", rank, ours),
            _ranked("rank-dad-rows", "rank-dAD with feedback in rows", "rows", rank, rows),
            _ranked("rank-dad-int8", "rank-dAD with feedback, int8", "int8", rank, {**ours, "wire": "int8"}),
            _ranked("published", "rank-dAD, converged", "published", rank, {"name": "rank-dad", "preset": "converged"}),
            _ranked("powersgd", "PowerSGD with feedback", "powersgd", rank, {"name": "powersgd"}),
            _ranked("powersgd-plain", "PowerSGD", "powersgd-plain", rank, {"name": "powersgd", "feedback": False}),
        ]
    return [*methods, _ranked("authors", "rank-dAD, authors' code", "authors", 10, {"name": "authors"})]


METHODS: Mapping[str, ComparedMethod] = {method.key: method for method in _methods()}
