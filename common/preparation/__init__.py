"""Preparation: standardisation, imputation and harmonisation, fitted over sites without showing a row."""

from __future__ import annotations

from common.preparation.fit import Fit, OwnFit
from common.preparation.preparing import Preparing
from common.preparation.rows import Rows

__all__ = ["Fit", "OwnFit", "Preparing", "Rows"]
