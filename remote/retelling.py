"""Fills the page's curves from a run's rows: an aggregator that was started again has them as before."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from rankdad.page.history import History

Rows = Callable[[str], Iterable[Mapping[str, str]]]


def retold(history: History, rows: Rows, layers: Sequence[str]) -> None:
    """Add what the rows of a run hold; sites' own losses and times by step are in none of them.

    Args:
        history: to add to.
        rows: returns those of a table: steps, metrics or spectra.
        layers: whose ranks are in it.
    """
    for row in rows("steps"):
        ranks = [_number(row.get(f"rank:{name}")) for name in layers]
        loss, seconds, reduction = (_number(row.get(name)) for name in ("loss", "seconds", "aggregation_seconds"))
        history.add_step(loss, seconds, reduction, ranks)
    last, epoch = None, dict[str, dict[str, float]]()
    for row in rows("metrics"):
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
    for row in rows("spectra"):
        if row["step"] != at and spectra:
            history.add_spectra(int(at), spectra)
            spectra = {}
        at = row["step"]
        values = (row[name] for name in row if name[:1] == "s" and name[1:].isdecimal())
        spectra[row["layer"]] = [float(value) for value in values if value]
    if spectra:
        history.add_spectra(int(at), spectra)


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan
