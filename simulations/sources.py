"""Public data sets, and files of your own, to be dealt out to simulated sites. No torch: the simulator forks."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from rankdad.common.documents import Part
from rankdad.common.errors import DataError, UserError
from rankdad.common.written import Written
from rankdad.local.data.npz import NAMES, read_arrays
from rankdad.simulations.archives import Cifar10, Mnist, Natops, PenDigits, SpokenArabicDigits, Uea, named_arrays
from rankdad.simulations.pools import ArrayPool

if TYPE_CHECKING:
    from rankdad.simulations.tables import TablePool

NUCLEUS = (
    *("radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave points", "symmetry"),
    "fractal dimension",
)


class Digits(Part):
    """The 1,797 handwritten digits, 8 by 8, that come with scikit-learn."""

    name: Literal["digits"]

    def load(self) -> ArrayPool:
        """Read the file that scikit-learn brings, without importing it (which takes a second)."""
        path = _bundled(self.name, "digits.csv.gz")
        table = np.array(_rows(path, ","), np.uint8)
        return ArrayPool(str(path), table[:, :-1], table[:, -1])


class Diabetes(Part):
    """Progression of 442 patients' diabetes after a year, a number, that comes with scikit-learn; unscaled.

    Columns: age, sex (1 or 2), bmi, bp, s1 to s6 and progression.
    """

    name: Literal["diabetes"]

    def load(self) -> TablePool:
        """Read the files that scikit-learn brings."""
        inputs, target = (_bundled(self.name, f"diabetes_{part}.csv.gz") for part in ("data_raw", "target"))
        columns = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6", "progression")
        rows = zip(_rows(inputs, " "), _rows(target, " "), strict=True)
        return _table(inputs, columns, ((*row, f"{float(number):g}") for row, (number,) in rows))


class BreastCancer(Part):
    """Diagnoses of 569 tumours from their cells' nuclei (Wisconsin), that come with scikit-learn.

    Columns: "mean radius" to "mean fractal dimension", "radius error" to "fractal dimension error", "worst radius" to
    "worst fractal dimension", and diagnosis: malignant or benign.
    """

    name: Literal["breast-cancer"]

    def load(self) -> TablePool:
        """Read the file that scikit-learn brings."""
        path = _bundled(self.name, "breast_cancer.csv")
        (_, _, *classes), *rows = _rows(path, ",")
        columns = [form.format(measure) for form in ("mean {}", "{} error", "worst {}") for measure in NUCLEUS]
        return _table(path, (*columns, "diagnosis"), ((*row, classes[int(label)]) for *row, label in rows))


class Npz(Part):
    """A npz file of your own with x, y and optionally split (0 train, 1 validation, 2 test), key, group and length."""

    name: Literal["npz"]
    path: str
    """The file."""

    def load(self) -> ArrayPool:
        """Read the file."""
        arrays = named_arrays(Path(self.path), ("x", "y"))
        others = read_arrays(Path(self.path), [name for name in NAMES if name not in arrays])
        return ArrayPool(self.path, arrays["x"], arrays["y"], others)


class OneTable(Part):
    """A table of your own with a row per sample, whose rows are dealt out with all of their columns."""

    name: Literal["table"]
    path: str
    """The file."""

    def load(self, written: Written | None = None) -> TablePool:
        """Read the file, written as a schema says."""
        from rankdad.simulations.tables import TablePool  # pandas takes half a second, which other sources need not

        path = Path(self.path)
        if not path.exists():
            raise DataError(path, "does not exist; pass the file's place with --data")
        return TablePool.read(path, written)


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


Source = Annotated[
    Digits
    | Mnist
    | PenDigits
    | SpokenArabicDigits
    | Natops
    | Cifar10
    | Uea
    | Npz
    | Diabetes
    | BreastCancer
    | OneTable
    | Folders,
    Field(discriminator="name"),
]
BUNDLED = frozenset({"digits", "diabetes", "breast-cancer"})  # they need no file of the user's


def _bundled(source: str, name: str) -> Path:
    """Return the place of a file that scikit-learn brings, without importing it, which takes a second."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise UserError(f"simulation.source: {source} needs scikit-learn: pip install scikit-learn")
    return Path(package.origin).parent / "datasets" / "data" / name


def _rows(path: Path, delimiter: str) -> list[list[str]]:
    try:
        held = path.read_bytes()
        text = (gzip.decompress(held) if path.suffix == ".gz" else held).decode()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(path, f"cannot be read: {error}") from None
    return list(csv.reader(text.splitlines(), delimiter=delimiter))


def _table(path: Path, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> TablePool:
    from rankdad.simulations.tables import TablePool

    return TablePool.of(path, columns, rows)
