"""Public data sets to be split over simulated sites. Plain arrays: the simulator forks, and runs no torch operation."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from common.documents import Part
from common.errors import DataError, UserError
from local.data.npz import read_arrays
from local.data.reading import Array


@dataclass(frozen=True, eq=False)
class Pool:
    """All samples together: x [samples, …], y [samples], split [samples] (0 train, 1 validation, 2 test) or None."""

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
        arrays = _arrays(path, ("x_train", "y_train", "x_test", "y_test"))
        counts = len(arrays["y_train"].reshape(-1)), len(arrays["y_test"].reshape(-1))
        return Pool(
            np.concatenate([arrays["x_train"], arrays["x_test"]]),
            np.concatenate([arrays["y_train"].reshape(-1), arrays["y_test"].reshape(-1)]),
            np.repeat(np.array([0, 2], np.uint8), counts),
            self.path,
        )


class Npz(Part):
    """A npz file of your own with x, y and optionally split (0 train, 1 validation, 2 test)."""

    name: Literal["npz"]
    path: str
    """The file."""

    def load(self) -> Pool:
        """Read the file."""
        arrays = _arrays(Path(self.path), ("x", "y"))
        split = read_arrays(Path(self.path), ("split",)).get("split")
        return Pool(arrays["x"], arrays["y"].reshape(-1), split, self.path)


class Folders(Part):
    """A folder with a sub-folder for each site, which is read where it is."""

    name: Literal["folders"]
    path: str
    """The folder."""

    def find(self, sites: tuple[str, ...]) -> dict[str, Path]:
        """Return each site's sub-folder, whose name is the site's in letters of either case.

        Raises:
            DataError: the folder cannot be read, or a site has no sub-folder, or two.
        """
        path = Path(self.path).absolute()
        try:
            folders = sorted(entry for entry in path.iterdir() if entry.is_dir())
        except OSError as error:
            raise DataError(path, f"cannot be read: {error.strerror or error}; pass its place with --data") from None
        found: dict[str, Path] = {}
        for site in sites:
            own = [folder for folder in folders if folder.name.lower() == site]
            if len(own) != 1:
                names = ", ".join(folder.name for folder in own or folders) or "nothing"
                raise DataError(path, f"expected one folder for the site {site}, found {names}")
            found[site] = own[0]
        return found


Source = Annotated[Digits | Mnist | Npz | Folders, Field(discriminator="name")]


def _arrays(path: Path, names: tuple[str, ...]) -> dict[str, Array]:
    if not path.exists():
        raise DataError(path, "does not exist; pass the file's place with --data")
    arrays = read_arrays(path, names)
    missing = [name for name in names if name not in arrays or not arrays[name].ndim]
    if missing:
        raise DataError(path, f"has no array {missing[0]}, expected {', '.join(names)}")
    return arrays
