"""Public data sets to be split over simulated sites. Plain arrays: the simulator forks, and runs no torch operation."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from common.errors import DataError, UserError
from common.spec import Part

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Pool:
    """All samples together: x [samples, …], y [samples], split [samples] (0 train, 2 test) or None."""

    x: Array
    y: Array
    split: Array | None
    origin: str


class Digits(Part):
    """The 1,797 handwritten digits, 8 by 8, that come with scikit-learn."""

    name: Literal["digits"]

    def load(self) -> Pool:
        """Read the file that scikit-learn brings, without importing it (which takes a second)."""
        package = importlib.util.find_spec("sklearn")
        if package is None or package.origin is None:
            raise UserError("simulation.source: digits needs scikit-learn: pip install scikit-learn")
        path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        try:
            table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
        except (OSError, ValueError) as error:
            raise DataError(path, f"cannot be read: {error}") from None
        return Pool(table[:, :-1], table[:, -1], None, str(path))


class Mnist(Part):
    """MNIST in one npz file with x_train, y_train, x_test and y_test."""

    name: Literal["mnist"]
    path: str = "../shared/data/mnist.npz"
    """The file."""

    def load(self) -> Pool:
        """Read the file; its own test set stays the test set."""
        path = Path(self.path)
        try:
            with np.load(path, allow_pickle=False) as file:
                parts = [(file[f"x_{part}"], file[f"y_{part}"].reshape(-1)) for part in ("train", "test")]
        except FileNotFoundError:
            raise DataError(path, "does not exist; pass the file's place with --data") from None
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise DataError(path, f"cannot be read: {error}") from None
        split = np.concatenate([np.full(len(y), mark, np.uint8) for (_, y), mark in zip(parts, (0, 2), strict=True)])
        return Pool(np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]), split, str(path))


class Npz(Part):
    """A npz file of your own with x, y and optionally split (0 train, 1 validation, 2 test)."""

    name: Literal["npz"]
    path: str
    """The file."""

    def load(self) -> Pool:
        """Read the file."""
        path = Path(self.path)
        try:
            with np.load(path, allow_pickle=False) as file:
                split = file["split"] if "split" in file.files else None
                return Pool(file["x"], file["y"].reshape(-1), split, str(path))
        except FileNotFoundError:
            raise DataError(path, "does not exist; pass the file's place with --data") from None
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise DataError(path, f"cannot be read: {error}") from None


Source = Annotated[Digits | Mnist | Npz, Field(discriminator="name")]
