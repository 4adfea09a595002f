"""A run's curves for the page: by step and epoch, times of sites, and singular values by layer."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock

import numpy as np

from rankdad.page.curves import Bins, texts

RECENT = 50  # steps in the averages of times
MAX_SPECTRUM = 16  # singular values of a layer
SPECTRUM_BINS = 100
SPECTRUM = [str(number + 1) for number in range(MAX_SPECTRUM)]
STEP = ("loss", "seconds", "reduction")  # curves by step, before those of layers and sites
Seen = tuple[int, int, int]  # of a curve: fold, width of bins, points
TIMES = ("compute", "wire", "waiting")


class History:
    """A run's curves. One thread adds to them; any thread may read.

    Args:
        sites: sites with separate curves, in order.
        layers: layers sent as factors.
        metrics: validation metrics to store.
    """

    def __init__(self, sites: Sequence[str], layers: Sequence[str], metrics: Sequence[str]) -> None:
        self.sites, self.layers, self.metrics = tuple(sites), tuple(layers), tuple(metrics)
        self._lock, self._folds = Lock(), 0
        ranks, losses = (f"rank:{name}" for name in self.layers), (f"loss:{site}" for site in self.sites)
        self.steps = Bins([*STEP, *ranks, *losses])
        self._spectra: dict[str, Bins] = {}
        self._spectrum_steps = Bins(["step"], SPECTRUM_BINS)
        self._times = deque[tuple[float, Mapping[str, tuple[float, float, float]]]](maxlen=RECENT)
        self.begin_fold()

    def begin_fold(self) -> None:
        """Restart the curves by epoch for another model."""
        names = ("train_loss", *self.metrics)
        with self._lock:
            self._folds += 1
            self.epochs = Bins([f"{name}:{site}" for site in ("pooled", *self.sites) for name in names])

    def add_step(
        self,
        loss: float,
        seconds: float,
        reduction: float,
        ranks: Sequence[float],
        losses: Mapping[str, float] | None = None,
        times: Mapping[str, tuple[float, float, float]] | None = None,
    ) -> None:
        """Add an optimizer step.

        Args:
            loss: pooled training loss.
            seconds: from one step's end to the next.
            reduction: seconds of aggregation in it.
            ranks: effective rank of each layer.
            losses: training loss by site, for those that took part.
            times: seconds of computing, transfer and waiting by site.
        """
        own = losses or {}
        with self._lock:
            ranks = [*ranks, *[math.nan] * (len(self.layers) - len(ranks))][: len(self.layers)]
            self.steps.add([loss, seconds, reduction, *ranks, *(own.get(site, math.nan) for site in self.sites)])
            if times:
                self._times.append((reduction, times))

    def add_epoch(self, rows: Mapping[str, Mapping[str, float]]) -> None:
        """Add an epoch: training loss and metrics by site, and `pooled`."""
        names = ("train_loss", *self.metrics)
        with self._lock:
            self.epochs.add(
                [rows.get(site, {}).get(name, math.nan) for site in ("pooled", *self.sites) for name in names]
            )

    def add_spectra(self, step: int, spectra: Mapping[str, Sequence[float]]) -> None:
        """Add the leading singular values of layers."""
        with self._lock:
            self._spectrum_steps.add([step])
            for layer, values in spectra.items():
                kept = self._spectra.setdefault(layer, Bins(SPECTRUM, SPECTRUM_BINS))
                kept.add([*values, *[math.nan] * MAX_SPECTRUM][:MAX_SPECTRUM])

    def times(self) -> dict[str, list[float | None]]:
        """Return mean seconds of recent steps by site: computing, transfer, waiting; and the aggregation under ""."""
        with self._lock:
            recent = list(self._times)
        if not recent:
            return {}
        nothing = (math.nan,) * len(TIMES)
        stacked = np.array([[times.get(site, nothing) for site in self.sites] for _, times in recent])
        counts = np.isfinite(stacked).sum(axis=0)
        sums = np.nansum(stacked, axis=0)
        found: dict[str, list[float | None]] = {
            site: [round(float(value), 6) if count else None for value, count in zip(own, number, strict=True)]
            for site, own, number in zip(self.sites, sums / np.maximum(counts, 1), counts, strict=True)
        }
        return found | {"": [round(sum(reduction for reduction, _ in recent) / len(recent), 6)]}

    def last_seconds(self) -> dict[str, float]:
        """Return the seconds from the start of the last step to each site's contribution."""
        with self._lock:
            last = self._times[-1][1] if self._times else {}
        return {site: compute + wire for site, (compute, wire, _) in last.items()}

    def by_epoch(self, metric: str) -> list[float]:
        """Return a pooled metric by epoch of the present fold, or binned means; NaN if missing."""
        with self._lock:
            means: list[float] = self.epochs.means()[:, self.epochs.columns.index(f"{metric}:pooled")].tolist()
        return means

    def curves(self) -> dict[str, Bins]:
        """Return all curves by name."""
        spectra = {f"spectrum:{layer}": bins for layer, bins in self._spectra.items()}
        return {"steps": self.steps, "epochs": self.epochs, "spectra": self._spectrum_steps, **spectra}

    def patches(self, seen: Mapping[str, Seen]) -> tuple[str, dict[str, Seen]]:
        """Return changes of the curves as JSON, and the new state of what was sent.

        Args:
            seen: state of each curve when it was last sent.
        """
        parts, now = [], dict(seen)
        with self._lock:
            for name, bins in self.curves().items():
                here = self._folds if name == "epochs" else 0, bins.width, bins.points
                if seen.get(name) == here or (not bins.points and name not in seen):
                    continue
                *same, points = seen.get(name, (-1, 0, 0))
                first = max(0, points - 1) // bins.width if same == [*here[:2]] else 0
                now[name] = here
                parts.append(f"{json.dumps(name)}:{_patch(bins, first)}")
        return "{" + ",".join(parts) + "}", now


def _patch(bins: Bins, first: int) -> str:
    """Format the bins from `first` on as JSON, to replace those from there on."""
    values = bins.means(first).T
    used = [place for place, column in enumerate(values) if first or np.isfinite(column).any()]
    columns = ",".join(f"{json.dumps(bins.columns[place])}:{texts(values[place])}" for place in used)
    x = ",".join(map(str, bins.ends(first)))
    return f'{{"first":{first},"x":[{x}],"y":{{{columns}}}}}'


Rows = Callable[[str], Iterable[Mapping[str, str]]]


def rebuild_history(history: History, rows: Rows, layers: Sequence[str]) -> None:
    """Refill the curves from a run's tables, except sites' own losses and times by step.

    Args:
        history: the curves.
        rows: returns the rows of a table: steps, metrics or spectra.
        layers: layers with columns of ranks.
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
