"""Partitioning of samples among simulated sites."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rankdad.common.documents import Part
from rankdad.common.errors import DataError, SpecError
from rankdad.common.numbers import PositiveFloat
from rankdad.common.seeds import derive
from rankdad.common.sites import SiteName
from rankdad.common.spec import RunSpec
from rankdad.common.spec.table_schema import Column, Level, PositiveInt, canonical
from rankdad.common.spec.tasks import Regression, TaskSpec
from rankdad.simulations.datasets import Dataset, Rows

DRAWS = 200  # attempts to draw proportions that give every site enough samples
BINS = 10


class Iid(Part):
    """Partition at random; `shares` gives sites unequal sizes."""

    name: Literal["iid"] = "iid"
    shares: tuple[PositiveFloat, ...] | None = None
    """Relative size of each site; null gives equal sizes."""

    def split(self, labels: NDArray[Any], sites: int, generator: np.random.Generator) -> list[Rows]:
        """Return each site's rows."""
        shares = np.array(self.shares if self.shares is not None else (1.0,) * sites)
        if len(shares) != sites:
            raise SpecError(
                "simulation.partition.shares",
                f"got {len(shares)} shares, expected one for each of {sites} sites",
                code="shares-differ",
            )
        ends = np.round(np.cumsum(shares / shares.sum()) * len(labels)).astype(int)
        return np.split(generator.permutation(len(labels)), ends[:-1])


class Dirichlet(Part):
    """Partition each class in proportions from a Dirichlet distribution, so that sites differ in their mix of classes.

    For regression, a class is a decile of the label; for multi-label, a set of labels.
    """

    name: Literal["dirichlet"]
    alpha: PositiveFloat
    """Small values give sites few classes, large values similar sites."""
    minimum: PositiveInt = 1
    """Minimum samples of a site; proportions are drawn again until every site has them."""

    def split(self, labels: NDArray[Any], sites: int, generator: np.random.Generator) -> list[Rows]:
        """Return each site's rows."""
        parts: list[list[Rows]] = [[] for _ in range(sites)]
        for label in np.unique(labels):
            rows = generator.permutation(np.flatnonzero(labels == label))
            ends = np.round(np.cumsum(generator.dirichlet([self.alpha] * sites)) * len(rows)).astype(int)
            for part, chosen in zip(parts, np.split(rows, ends[:-1]), strict=True):
                part.append(chosen)
        return [generator.permutation(np.concatenate(part)) for part in parts]


class ByColumn(Part):
    """Give every site the rows of a table with certain values in a column, such as the scanner's name."""

    name: Literal["column"]
    column: Column
    """The column."""
    values: dict[SiteName, Annotated[tuple[Level, ...], Field(min_length=1)]] | None = None
    """Values of each site; other rows are unused. Null: each value is a site's name, in any case; or else there is one
    value for each site, in order."""

    @model_validator(mode="after")
    def _values_belong_to_one_site(self) -> ByColumn:
        owners: dict[str, str] = {}
        for site, values in (self.values or {}).items():
            for value in values:
                if owners.setdefault(value, site) != site:
                    raise ValueError(f"values: {value} belongs to both {owners[value]} and {site}")
        return self

    def split(self, pool: Dataset, sites: tuple[str, ...]) -> list[Rows]:
        """Return each site's rows, in the table's order.

        Raises:
            SpecError: `values` names other sites.
            DataError: the column is missing, or its values do not match the sites.
        """
        cells = np.array([canonical(cell) for cell in pool.cells(self.column)], object)
        held = sorted(set(cells), key=_in_order)
        owned = self._owned(held, sites, pool.origin)
        for value in (value for values in owned for value in values):
            if value not in held:
                raise DataError(
                    pool.origin,
                    f"column {self.column}: no row holds {value!r}, found {_some(held)}",
                    code="value-missing",
                    field=self.column,
                )
        return [np.flatnonzero(np.isin(cells, values)) for values in owned]

    def _owned(self, held: list[str], sites: tuple[str, ...], origin: str) -> list[list[str]]:
        if self.values is not None:
            if set(self.values) != set(sites):
                problem = f"got {', '.join(self.values)}, expected each of run.federation.sites: {', '.join(sites)}"
                raise SpecError("simulation.partition.values", problem, code="partition-impossible")
            return [list(self.values[site]) for site in sites]
        named = [[value for value in held if value.lower() == site] for site in sites]
        if all(named):
            return named
        if len(held) == len(sites):
            return [[value] for value in held]
        problem = f"column {self.column} has {len(held)} values ({_some(held)}), which are not the names of the"
        raise DataError(
            origin,
            f"{problem} {len(sites)} sites: assign them with simulation.partition.values",
            code="partition-impossible",
        )


class Folder(Part):
    """Use every site's own folder: for the source folders only."""

    name: Literal["folder"]


Partition = Annotated[Iid | Dirichlet | ByColumn | Folder, Field(discriminator="name")]


def partition(pool: Dataset, how: Iid | Dirichlet | ByColumn, run: RunSpec) -> dict[str, Rows]:
    """Partition rows among the run's sites. At random, training and test samples are partitioned separately.

    Rows of one group, such as a patient, go to one site, with the group's first row.

    Raises:
        DataError: a label or split mark is invalid or missing, or a site has no samples.
    """
    sites, labels = run.federation.sites, pool.labels(run)
    least = how.minimum if isinstance(how, Dirichlet) else 1
    if isinstance(how, ByColumn):
        by_site = how.split(pool, sites)
    else:
        classes, marks, groups = strata(labels, run.task), pool.marks(), pool.groups(run)
        first, members = np.arange(len(labels)), np.arange(len(labels))
        if groups is not None:
            first, members = np.unique(groups, return_index=True, return_inverse=True)[1:]
        generator = np.random.default_rng(derive(run.seed, "partition"))
        for _ in range(DRAWS if isinstance(how, Dirichlet) else 1):
            by_site = _split(how, classes[first], marks[first], len(sites), generator)
            if groups is not None:
                by_site = [np.flatnonzero(np.isin(members, part)) for part in by_site]
            if min(map(len, by_site)) >= least:
                break
    few = min(range(len(sites)), key=lambda site: len(by_site[site]))
    if len(by_site[few]) < least:
        left = f"{sites[few]} is left {f'with {len(by_site[few])}' if len(by_site[few]) else 'without'} samples"
        advice = f"; lower simulation.partition.minimum, {least}, or raise alpha" if least > 1 else ""
        raise DataError(
            pool.origin, f"{left}: {len(labels)} samples for {len(sites)} sites{advice}", code="too-few-samples"
        )
    return dict(zip(sites, by_site, strict=True))


def _split(
    how: Iid | Dirichlet, classes: NDArray[Any], marks: NDArray[Any], sites: int, generator: np.random.Generator
) -> list[Rows]:
    parts: list[list[Rows]] = [[np.empty(0, np.intp)] for _ in range(sites)]
    for mark in np.unique(marks):
        rows = np.flatnonzero(marks == mark)
        for part, chosen in zip(parts, how.split(classes[rows], sites, generator), strict=True):
            part.append(rows[chosen])
    return [np.concatenate(part) for part in parts]


def strata(labels: NDArray[Any], task: TaskSpec) -> NDArray[np.int64]:
    """Return the stratum of each row: its class, decile or set of labels.

    Args:
        labels: the labels; rows without one form a separate stratum.
        task: the prediction task.
    """
    missing = np.isnan(labels).reshape(len(labels), -1).any(axis=1)
    if isinstance(task, Regression):
        known = labels[~missing]
        edges = np.quantile(known, np.arange(1, BINS) / BINS) if len(known) else known
        classes = np.searchsorted(edges, labels, side="right")
    elif labels.ndim == 2:
        classes = np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)
    else:
        classes = np.where(missing, 0, labels)
    return np.where(missing, -1, classes).astype(np.int64)


def _in_order(value: str) -> tuple[float, str]:
    """Sort numbers by value, before texts."""
    try:
        return float(value), value
    except ValueError:
        return math.inf, value


def _some(values: list[str]) -> str:
    return ", ".join(values[:10]) + ", …" * (len(values) > 10)
