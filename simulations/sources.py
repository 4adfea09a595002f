"""Sources of samples: scikit-learn's data sets and user's files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from rankdad.common.data.files import places_of_sites
from rankdad.common.data.npz import NAMES, read_arrays
from rankdad.common.data.reading import Array
from rankdad.common.documents import Part
from rankdad.common.errors import DataError, SpecError, UserError
from rankdad.common.sites import SiteName
from rankdad.common.spec.table_schema import canonical
from rankdad.common.spec.written import Written
from rankdad.simulations.datasets import ArrayDataset

if TYPE_CHECKING:
    from pandas import DataFrame

    from rankdad.simulations.table_dataset import TableDataset


class Digits(Part):
    """The 1,797 handwritten digits, 8 by 8, in scikit-learn."""

    name: Literal["digits"]

    def load(self) -> ArrayDataset:
        """Load the arrays."""
        digits = _scikit_learn(self.name).load_digits()
        return ArrayDataset("scikit-learn's digits", digits.data.astype(np.uint8), digits.target.astype(np.uint8))


class Diabetes(Part):
    """Progression of 442 patients' diabetes after a year, a number, in scikit-learn; unscaled.

    Columns: age, sex (1 or 2), bmi, bp, s1 to s6 and progression.
    """

    name: Literal["diabetes"]

    def load(self) -> TableDataset:
        """Load the table."""
        frame = _scikit_learn(self.name).load_diabetes(as_frame=True, scaled=False).frame
        return _table("scikit-learn's diabetes", frame.rename(columns={"target": "progression"}))


class BreastCancer(Part):
    """Diagnoses of 569 tumours from their cells' nuclei (Wisconsin), in scikit-learn.

    Columns: "mean radius" to "mean fractal dimension", "radius error" to "fractal dimension error", "worst radius" to
    "worst fractal dimension", and diagnosis: malignant or benign.
    """

    name: Literal["breast-cancer"]

    def load(self) -> TableDataset:
        """Load the table."""
        cancer = _scikit_learn(self.name).load_breast_cancer(as_frame=True)
        return _table("scikit-learn's breast-cancer", cancer.data.assign(diagnosis=cancer.target_names[cancer.target]))


class Npz(Part):
    """A npz file with x, y and optionally split (0 train, 1 validation, 2 test), key, group and length."""

    name: Literal["npz"]
    path: str
    """The file."""

    def load(self) -> ArrayDataset:
        """Read the file."""
        arrays = named_arrays(Path(self.path), ("x", "y"))
        others = read_arrays(Path(self.path), [name for name in NAMES if name not in arrays])
        return ArrayDataset(self.path, arrays["x"], arrays["y"], others)


class OneTable(Part):
    """A table with a row per sample, whose rows are partitioned with all their columns."""

    name: Literal["table"]
    path: str
    """The file."""

    def load(self, written: Written | None = None) -> TableDataset:
        """Read the file in the schema's format."""
        from rankdad.common.data.table_files import read_table
        from rankdad.simulations.table_dataset import TableDataset

        path = Path(self.path)
        if not path.exists():
            raise DataError(path, "does not exist; pass the file with --data", code="file-missing")
        return TableDataset(read_table(path, written))


class Folders(Part):
    """A folder with a sub-folder, or a table, for each site, which is read in place."""

    name: Literal["folders"]
    path: str | dict[SiteName, str]
    """The folder, or the path of each site's data by name."""

    def find(self, sites: tuple[str, ...]) -> dict[str, Path]:
        """Return the path of each site's data by name: see `places_of_sites`.

        Raises:
            SpecError: a site's path is missing.
            DataError: the folder cannot be read, or a site has no data in it, or several.
        """
        if not isinstance(self.path, str):
            missing = [site for site in sites if site not in self.path]
            if missing:
                named = ", ".join(self.path) or "nothing"
                raise SpecError(
                    "simulation.source.path", f"names {named}, expected the site {missing[0]} too", code="site-missing"
                )
            return {site: Path(self.path[site]).absolute() for site in sites}
        whole = Path(self.path).absolute()
        if not whole.is_dir():
            problem = "is not a folder" if whole.exists() else "does not exist"
            raise DataError(whole, f"{problem}; pass the folder with --data", code="folder-unreadable", field="--data")
        places = places_of_sites(whole, sites)
        for site in sites:
            if site not in places:
                names = ", ".join(sorted(one.name for one in whole.iterdir())) or "nothing"
                problem = f"expected a folder, or a table, for the site {site}, found {names}"
                raise DataError(whole, problem, code="site-without-data", field="federation.sites")
        return {site: places[site] for site in sites}


Source = Annotated[
    Digits | Npz | Diabetes | BreastCancer | OneTable | Folders,
    Field(discriminator="name"),
]
BUNDLED = frozenset({"digits", "diabetes", "breast-cancer"})  # sources without a file


def named_arrays(path: Path, names: Sequence[str]) -> dict[str, Array]:
    """Read required arrays of a npz file.

    Raises:
        DataError: the file is missing, not a npz file, or lacks an array.
    """
    if not path.exists():
        raise DataError(path, "does not exist; pass the file with --data", code="file-missing")
    arrays = read_arrays(path, names)
    missing = [name for name in names if name not in arrays or not arrays[name].ndim]
    if missing:
        raise DataError(path, f"has no array {missing[0]}, expected {', '.join(names)}", code="array-missing")
    return arrays


def _scikit_learn(source: str) -> Any:
    """Import scikit-learn's data sets, which takes a second."""
    try:
        from sklearn import datasets
    except ImportError:
        raise UserError(
            f"simulation.source: {source} needs scikit-learn: pip install 'rankdad[demo]'",
            code="not-installed",
            field="simulation.source",
        ) from None
    return datasets


def _table(origin: str, frame: DataFrame) -> TableDataset:
    """Create a table of texts as in a file: 59, not 59.0."""
    from rankdad.common.data.tables import Table
    from rankdad.simulations.table_dataset import TableDataset

    return TableDataset(Table(origin, frame.astype(object).map(canonical)))
