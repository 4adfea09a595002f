"""Cells that a spreadsheet would take for formulas: names and texts come from whoever wrote the data, or the run."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankdad.common.data.reading import number

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet takes for the beginning of one


def inert_cell(cell: Any) -> Any:
    """Return what is written of a cell: an apostrophe stands before a text that would be taken for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) and np.isnan(number(cell)) else cell


def as_meant(cell: str) -> str:
    """Return the text of a cell that `inert_cell` has written."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(FORMULA) else cell
