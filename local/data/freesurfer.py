"""FreeSurfer's statistics: one text file per subject, and a table that lists them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd

from common.data import FreesurferData
from common.errors import DataError
from local.data.encoding import encode, number
from local.data.reading import Reading
from local.data.tables import MISSING, Table, check_file, holder, keys_of, nearest, read_table, shown

COLUMNS = ("Index", "SegId", "NVoxels", "Volume_mm3", "StructName")  # of aseg.stats, where it does not say


def read_freesurfer(path: Path, data: FreesurferData, dtype: str, *, training: bool) -> Reading:
    """Read samples from a table and the subjects' files beside it.

    Raises:
        DataError: naming file, row and column of what cannot be used.
    """
    return freesurfer_samples(data, read_table(path), path.parent, dtype, training=training)


def freesurfer_samples(
    data: FreesurferData, covariates: Table, folder: Path, dtype: str, *, training: bool = True
) -> Reading:
    """Read the subjects' files that a table lists, and encode both as samples.

    Args:
        data: the schema.
        covariates: has a row per subject.
        folder: where its file names start, and which they do not leave.
        dtype: of the inputs, such as "float32".
        training: whether the samples are to be trained on; for predictions the label may be missing.

    Raises:
        DataError: naming file, row and column of what cannot be used.
    """
    keys_of(covariates, data.key, lambda text: str(Path(text)))
    names = covariates.texts(data.key)
    for row, name in enumerate(names):
        try:
            inside = (folder / name).resolve().is_relative_to(folder.resolve())
        except (OSError, ValueError, RuntimeError):  # a name too long, one with a NUL, a loop of links
            raise covariates.error(row, data.key, f"{shown(name)} is not a file's name") from None
        if not inside:
            raise covariates.error(row, data.key, f"{shown(name)} leads out of the folder")
    wanted = [data.key, *data.covariate_features]
    if training or data.label in covariates.frame:
        wanted.append(data.label)
    for column in wanted:
        holder((covariates,), column)
    cells = [_regions(folder / name, data.features) for name in names]
    regions = pd.DataFrame(cells, index=pd.Index(names, dtype=object), columns=pd.Index(data.features), dtype=object)
    tables = Table(covariates.source, covariates.frame[wanted]), Table(folder, regions)
    return encode(data, tables, dtype, key=data.key, training=training)


def _regions(file: Path, names: Iterable[str]) -> list[str]:
    """Return the values of some regions and measures in one subject's file, as text."""
    check_file(file)
    try:
        lines = [line.strip(" ") for line in file.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise DataError(file, "is not text in UTF-8") from None
    except OSError as error:
        raise DataError(file, f"cannot be read: {error.strerror or error}") from None
    found: dict[str, set[str]] = {}
    for name, value in _classical(lines) if any(line.startswith("#") for line in lines) else _pairs(file, lines):
        found.setdefault(name, set()).add(value)
    if not found:
        raise DataError(file, "holds no regions: expected aseg.stats, or lines of a name, a tab and a number")
    for name in names:
        if name not in found:
            raise DataError(file, f"has no region or measure {name}{nearest(name, list(found))}")
        if len(found[name]) > 1:
            raise DataError(file, f"has {len(found[name])} different values of {name}")
    return [next(iter(found[name])) for name in names]


def _classical(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield measures, under both of their names, and the table's volumes."""
    columns: tuple[str, ...] = COLUMNS
    for line in lines:
        if line.startswith("# Measure "):
            fields = [field.strip() for field in line.removeprefix("# Measure ").split(",")]
            if len(fields) >= 4:
                yield from ((name, fields[-2]) for name in fields[:2])
        elif line.startswith("# ColHeaders "):
            columns = tuple(line.split()[2:])
        elif line and not line.startswith("#"):
            cells = dict(zip(columns, line.split(), strict=False))
            if "StructName" in cells and "Volume_mm3" in cells:
                yield cells["StructName"], cells["Volume_mm3"]


def _pairs(file: Path, lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield names and values of lines with a tab between them; the first line may be the file's name."""
    held = [(row, line) for row, line in enumerate(lines, 1) if line.strip()]
    for row, line in held:
        name, tab, value = line.partition("\t")
        is_number = bool(tab) and (value.strip().lower() in MISSING or not math.isnan(number(value)))
        if not is_number and row == held[0][0]:
            continue
        if not tab:
            raise DataError(file, f"row {row}: has no tab, expected a name, a tab and a number")
        yield name.strip(), value.strip()
