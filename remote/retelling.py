"""Fills the page's curves from a run's tables: an aggregator that was started again has them as before."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from rankdad.page.history import History


def retold(history: History, directory: Path, layers: Sequence[str]) -> float:
    """Add what the tables of a run's directory hold; sites' own losses and times by step are in none of them.

    Returns:
        the loss of the last step; NaN without any.
    """
    loss = math.nan
    for row in _rows(directory / "steps.csv"):
        ranks = [_number(row.get(f"rank:{name}")) for name in layers]
        loss, seconds, reduction = (_number(row.get(name)) for name in ("loss", "seconds", "aggregation_seconds"))
        history.add_step(loss, seconds, reduction, ranks)
    last, epoch = None, dict[str, dict[str, float]]()
    for row in _rows(directory / "metrics.csv"):
        training = row.get("fold"), row.get("candidate")
        if last is not None and training != last:
            if epoch:
                history.add_epoch(epoch)
                epoch = {}
            history.begin_fold()
        last = training
        if row.get("split") != "validation":
            continue
        if row.get("site") == "pooled" and epoch:
            history.add_epoch(epoch)
            epoch = {}
        epoch[row["site"]] = {name: _number(value) for name, value in row.items() if name != "site"}
    if epoch:
        history.add_epoch(epoch)
    at, spectra = "", dict[str, list[float]]()
    for row in _rows(directory / "spectra.csv"):
        if row["step"] != at and spectra:
            history.add_spectra(int(at), spectra)
            spectra = {}
        at = row["step"]
        values = (row[name] for name in row if name[:1] == "s" and name[1:].isdecimal())
        spectra[row["layer"]] = [float(value) for value in values if value]
    if spectra:
        history.add_spectra(int(at), spectra)
    return loss


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            yield from csv.DictReader(file)


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan
