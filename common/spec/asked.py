"""What a run requires of a site, known before any data are read: files, columns, fewest sites in a round."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from rankdad.common.spec.data import AnyData, TableData
from rankdad.common.spec.evaluation import LeaveOneSiteOut
from rankdad.common.spec.images import ListedData
from rankdad.common.spec.patterns import Entries, is_pattern, literal
from rankdad.common.spec.series import SeriesData
from rankdad.common.spec.text import TextData
from rankdad.common.spec.written import Tabular

if TYPE_CHECKING:
    from rankdad.common.spec.run import RunSpec

FILES = ("file", "covariates")  # fields of schemas


def files_of(data: AnyData) -> dict[str, tuple[str, ...]]:
    """Return the file names and patterns of a schema by field."""
    named = {name: getattr(data, name) for name in FILES if name in type(data).model_fields}
    if isinstance(data, TextData) and data.tokenizer is not None:
        named["tokenizer.file"] = data.tokenizer.file
    return {
        f"data.{name}": (own,) if isinstance(own, str) else tuple(own) for name, own in named.items() if own is not None
    }


def columns_of(data: AnyData, keep: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the columns that a schema reads, by field.

    Args:
        data: the schema.
        keep: columns whose effect harmonisation keeps.

    Raises:
        SpecError: a pattern is not resolved yet.
    """
    if not isinstance(data, Tabular) or getattr(data, "file", None) == ".":  # sub-folders are its classes
        return {}
    found: dict[str, tuple[str | None, ...]] = {"data.label": data.targets, "data.group": (data.group,)}
    if isinstance(data, TableData):
        found["data.features"] = data.inputs
        found["data.key"] = (data.key,)
        found["data.dates"] = tuple(date.since for date in data.dates.values() if date.start is None)
        found["preparation.harmonise.keep"] = tuple(keep)
    elif isinstance(data, SeriesData):
        found |= {"data.features": data.features, "data.key": (data.key,), "data.time": (data.time,)}
    elif isinstance(data, TextData):
        found |= {"data.column": (data.column,), "data.key": (data.key,)}
    elif isinstance(data, ListedData):
        found |= {"data.key": (data.key,), "data.image": (data.image,)}
    return {field: tuple(filter(None, names)) for field, names in found.items() if any(names)}


def not_listed(listed: Collection[str], asked: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the names and patterns that a policy does not list, each with its field.

    A pattern must be listed literally, because its matches are not known yet.
    """
    allowed, as_written = Entries(listed), frozenset(listed)
    return {
        name: field
        for field, names in asked.items()
        for name in names
        if name not in as_written and (is_pattern(name) or literal(name) not in allowed)
    }


def sites_together(spec: RunSpec) -> dict[str, int]:
    """Return the fewest sites that take part in a round, by the spec's field that determines this number."""
    federation = spec.federation
    ended = sum(not federation.trains(site, spec.training.epochs - 1) for site in federation.sites)
    required = federation.required_sites
    training = required if spec.solver == "exact" else required - ended  # ended sites count towards the quorum
    runs_out = spec.batches == "full" and spec.local_steps != "epoch" and spec.solver != "exact"
    fewest = {
        "federation.sites": len(federation.sites),
        "federation.quorum": required,
        "federation.overrides": training,
        "training.batches": 1 if runs_out else training,  # the site with most rows takes the last steps alone
        "federation.regions": min(len(node.sites) for node in federation.nodes.values()),
        "evaluation.name": training - isinstance(spec.evaluation, LeaveOneSiteOut),
    }
    return {field: max(1, count) for field, count in fewest.items()}
