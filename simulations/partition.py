"""How samples are dealt out to simulated sites."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from common.documents import Part
from common.errors import DataError, SpecError
from common.seeds import derive
from common.spec import PositiveFloat
from local.data.npz import whole_numbers
from simulations.sources import Pool

Rows = NDArray[np.intp]


class Iid(Part):
    """Deal at random; `shares` makes sites of unequal size."""

    name: Literal["iid"] = "iid"
    shares: tuple[PositiveFloat, ...] | None = None
    """Relative size of each site; null makes all equal."""

    def deal(self, labels: NDArray[Any], sites: int, generator: np.random.Generator) -> list[Rows]:
        """Return each site's rows."""
        shares = np.array(self.shares if self.shares is not None else (1.0,) * sites)
        if len(shares) != sites:
            raise SpecError(
                "simulation.partition.shares", f"got {len(shares)} shares, expected one for each of {sites} sites"
            )
        ends = np.round(np.cumsum(shares / shares.sum()) * len(labels)).astype(int)
        return np.split(generator.permutation(len(labels)), ends[:-1])


class Dirichlet(Part):
    """Deal each class in proportions drawn from a Dirichlet distribution: sites differ in their mix of classes."""

    name: Literal["dirichlet"]
    alpha: PositiveFloat
    """Small: a site sees few classes; large: all sites are alike."""

    def deal(self, labels: NDArray[Any], sites: int, generator: np.random.Generator) -> list[Rows]:
        """Return each site's rows."""
        parts: list[list[Rows]] = [[] for _ in range(sites)]
        for label in np.unique(labels):
            rows = generator.permutation(np.flatnonzero(labels == label))
            ends = np.round(np.cumsum(generator.dirichlet([self.alpha] * sites)) * len(rows)).astype(int)
            for part, chosen in zip(parts, np.split(rows, ends[:-1]), strict=True):
                part.append(chosen)
        return [generator.permutation(np.concatenate(part)) for part in parts]


class Folder(Part):
    """Leave every site what is in its own folder: with the source folders, and no other."""

    name: Literal["folder"]


Partition = Annotated[Iid | Dirichlet | Folder, Field(discriminator="name")]


def partition(pool: Pool, how: Iid | Dirichlet, sites: tuple[str, ...], classes: int, seed: int) -> dict[str, Pool]:
    """Deal a pool out to sites; training and test samples separately, where the pool tells them apart.

    Raises:
        DataError: a label or a split mark is out of range or missing, or a site is left without samples.
    """
    labels = whole_numbers(pool.origin, "y (the label)", pool.y, len(pool.x), classes)
    marks = np.zeros(len(labels), np.int64)
    if pool.split is not None:
        marks = whole_numbers(pool.origin, "split", pool.split, len(pool.x), 3)
    generator = np.random.default_rng(derive(seed, "partition"))
    parts: list[list[Rows]] = [[] for _ in sites]
    for mark in np.unique(marks):
        rows = np.flatnonzero(marks == mark)
        for part, chosen in zip(parts, how.deal(labels[rows], len(sites), generator), strict=True):
            part.append(rows[chosen])
    dealt: dict[str, Pool] = {}
    for site, part in zip(sites, parts, strict=True):
        rows = np.concatenate(part) if part else np.empty(0, np.intp)
        if not len(rows):
            raise DataError(
                pool.origin, f"{site} is left without samples: {len(labels)} samples for {len(sites)} sites"
            )
        split = None if pool.split is None else marks[rows].astype(np.uint8)
        dealt[site] = Pool(pool.x[rows], labels[rows], split, pool.origin)
    return dealt
