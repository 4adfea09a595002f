"""A run that has ended: metrics as data frames, the model, and predictions."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from rankdad.common.data import read_samples
from rankdad.common.data.files import Fact
from rankdad.common.data.reading import Reading
from rankdad.common.documents import load_json, validate
from rankdad.common.errors import UserError, counted, visible
from rankdad.common.files import cannot_write, check_file
from rankdad.common.logs import MAX_LINE
from rankdad.common.run.saved import saved_model
from rankdad.common.run.standalone import Standalone
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import decimals, shown
from rankdad.given import Place, write_frame
from rankdad.local.predicted import insert_first, read_predictions, typed
from rankdad.local.prediction import key_name, predict_samples
from rankdad.remote.results.run_results import read_table
from rankdad.remote.results.run_summary import RunSummary
from rankdad.remote.view import compared
from rankdad.settings import TemporaryFolder, settings_kept

NO_RUN = "holds no run, expected the directory of a simulation, of an aggregator or of a site"
DIGITS = 4  # of shown metrics

_log = logging.getLogger(__name__)


class Run:
    """A run that has ended: metrics as data frames, the model, and predictions.

    `rankdad.simulate` and `rankdad.load` return it. Files of its directory are read when they are needed. A temporary
    directory exists as long as this object; to keep it, copy `run.directory`, or pass an `output`.

    Args:
        directory: of the run.
        allow_factories: model factories and readers that may be called.
        folder: a temporary folder to remove with the run.

    Raises:
        UserError: the directory holds no run, or its run has not ended or has failed.
    """

    def __init__(
        self, directory: Path, *, allow_factories: Collection[str] = (), folder: TemporaryFolder | None = None
    ) -> None:
        self.directory: Path = directory
        self._factories, self._folder = tuple(allow_factories), folder
        self._ended = (directory / "summary.json").exists()  # not in a site's directory
        path = directory / ("run.json" if self._ended else "model/model.json")
        if not path.exists():
            raise UserError(f"{directory}: {NO_RUN}", code="no-run")
        check_file(path)
        document = load_json(path)
        run = document if self._ended else document.get("run") if isinstance(document, dict) else None
        self.spec: RunSpec = validate(RunSpec, run, file=path)
        status = self.summary.get("status") if self._ended else "completed"
        if status != "completed":
            why = visible(str(self.summary.get("reason") or ""))
            raise UserError(
                f"{directory}: its run has not been completed: {status}" + f": {why}" * bool(why),
                code="run-not-complete",
            )

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Contents of `summary.json`: metrics, traffic, warnings and the digests of the weights."""
        path = self._file("summary.json")
        document: dict[str, Any] = load_json(path)
        self._checked = validate(RunSummary, document, file=path)
        return document

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """A row per fold, epoch, split and site, and one for all sites pooled, as in `metrics.csv`."""
        return read_table(self._file("metrics.csv"), ())

    @cached_property
    def sites(self) -> pd.DataFrame:
        """A row per site: samples, metrics over all folds with intervals, and the baseline's, as in `sites.csv`."""
        return read_table(self._file("sites.csv"), ())

    @cached_property
    def coefficients(self) -> pd.DataFrame:
        """A row per coefficient of a linear model, for all rows and for each site's, as in `coefficients.csv`."""
        return read_table(self._file("coefficients.csv"), ())

    @cached_property
    def predictions(self) -> pd.DataFrame:
        """A row per test sample, predicted by its fold's model, which was not trained on it.

        The columns are site (in a simulation) and fold, counted from 1, then those of the sites' files: the schema's
        key, or the row counted from the table's header as 1; the group, the label, and the prediction. Columns of the
        data named site or fold are renamed data_site or data_fold.
        """
        places = {site: self.directory / "sites" / site for site in self.spec.federation.sites}
        if not self._ended:
            places = {"": self.directory}
        tables = []
        for site, place in places.items():
            for table in read_predictions(place, self.spec):
                if site:
                    insert_first(table, "site", site)
                tables.append(table)
        if not tables:
            reason = "a site keeps them, in its own directory"
            if (self.directory / "sites").is_dir():
                reason = "no site tests as many samples as its policy requires (min_rows), or no test set is held out"
            raise UserError(f"{self.directory}: holds no predictions: {reason}", code="no-predictions")
        return pd.concat(tables, ignore_index=True)

    @cached_property
    def model(self) -> nn.Module:
        """The trained network in evaluation mode, with the preparation of its inputs and outputs.

        It takes raw rows, as returned by `inputs`, and returns probabilities [n, outputs], or for regression numbers in
        the label's unit. Its attribute `network` is the network alone, for prepared rows.
        """
        with settings_kept():
            return Standalone(saved_model(self.directory, "best", self._factories)).eval()

    def inputs(self, data: pd.DataFrame | Place) -> Tensor:
        """Return raw rows for `model`, [n, ...]: columns in the schema's order and encoding, NaN for missing values.

        Args:
            data: as for `predict`.

        Raises:
            DataError: a row cannot be used; names it.
        """
        with self._read(data) as (reading, _):
            if reading.rows and reading.rows.refused:
                raise reading.rows.refused[min(reading.rows.refused)]
            return torch.from_numpy(reading.inputs)

    def predict(self, data: pd.DataFrame | Place, *, keep: Sequence[str] = ()) -> pd.DataFrame:
        """Predict new samples: classes and probabilities, or numbers, as `rankdad predict` does.

        Warnings are logged: values far from those in training, rows that the model was trained on, refused rows.

        Args:
            data: a DataFrame with the columns of the run's table (labels may be missing), or a path.
            keep: columns of the data to copy next to the predictions, in addition to the schema's key and group.

        Returns:
            A row for each row of the data, with the index of a DataFrame. A row that cannot be used has a reason in the
            column `refused` instead of a prediction. Numeric labels are numbers.

        Raises:
            UserError: no row can be used, or a column is missing; names it.

        Example:
            >>> run.predict(table)[["predicted", "probability_1"]]
        """
        with self._read(data, keep) as (reading, index):
            saved = saved_model(self.directory, "best", self._factories)
            found = predict_samples(saved, reading, self.directory)
        for note in found.notes:
            if not isinstance(note, Fact):
                _log.warning("%s", visible(note, MAX_LINE))
        if found.refused:
            first = found.refused[min(found.refused)].problem
            _log.warning("%d of %d rows refused, the first: %s", len(found.refused), len(found.names), first)
        table, key = found.table, key_name(self.spec)
        for name in {"predicted", "label"} & {*table.columns}:
            table[name] = typed(table[name])
        table = table.set_axis(pd.RangeIndex(len(table)) if index is None else index)
        if index is None or getattr(self.spec.data, "key", None) is not None:
            names = pd.Series(found.names, table.index)
            table.insert(0, key, names if key != "row" else typed(names), allow_duplicates=True)
        return table

    def report(self, path: Place | None = None) -> Path:
        """Write the report of the run, and return its path.

        Args:
            path: of the HTML file; by default `report.html` in the run's directory.

        Raises:
            UserError: the file cannot be written.
        """
        from rankdad.remote.report.run_report import report  # slow to import

        self._file("run.json")
        page, path = report(self.directory), Path(path or self.directory / "report.html")
        try:
            path.write_text(page, encoding="utf-8")
        except OSError as error:
            raise cannot_write(path, error) from None
        return path

    @contextmanager
    def _read(self, data: pd.DataFrame | Place, keep: Sequence[str] = ()) -> Iterator[tuple[Reading, pd.Index | None]]:
        """Read samples to predict; yields a frame's index, too."""
        with settings_kept(), tempfile.TemporaryDirectory() as folder:
            index: pd.Index | None = None
            if isinstance(data, pd.DataFrame):
                path = Path(folder) / "data.csv"
                index = data.index[write_frame(data, self.spec, "data", path)]
            else:
                path = Path(data)
            yield read_samples(self.spec, path, beside=tuple(keep), allowed=self._factories), index

    def _file(self, name: str) -> Path:
        """Return the path of a file in the run's directory.

        Raises:
            UserError: it does not exist.
        """
        path = self.directory / name
        if not path.exists():
            here = (
                "only the run's directory at the aggregator has it, not a site's"
                if not self._ended
                else "does not exist: has it been removed?"
            )
            raise UserError(f"{path}: {here}", code="no-model-there")
        check_file(path)
        return path

    @property
    def _method(self) -> str:
        return str(self.summary.get("method", "")) if self._ended else self.spec.trained_by

    def __repr__(self) -> str:
        figures = ", ".join(f"{label} {value}" for label, value, _ in self._figures()[:2])
        about = f"{self.spec.name}: {self._method}, {counted(len(self.spec.federation.sites), 'site')}"
        return f"<rankdad.Run {about}{', ' * bool(figures)}{figures}, {self.directory}>"

    def _repr_html_(self) -> str:
        """Return the notebook's display: metrics with intervals, traffic, and the weights' digest."""
        rows = [(label, value, interval) for label, value, interval in self._figures()]
        if self._ended:
            summary = self._checked
            fewer = f"{fewer} than full gradients" if summary.steps and (fewer := compared(summary)) else ""
            member = "member" if summary.regions else "site"
            sent = f"{summary.bytes_up_per_site_step / 1000:.1f} KB up per {member} and step"
            digests = set(summary.weights_sha256.values())
            equal = "equal at all sites" if len(digests) == 1 else "different between sites"
            rows += [
                ("steps", f"{summary.steps:,}", f"{summary.seconds:.1f} s"),
                ("traffic", sent, fewer),
                ("weights", f"{next(iter(digests), '')[:16]}…", equal),
            ]
        cells = "".join(
            f"<tr><th style='text-align:left'>{escape(label)}</th><td>{escape(value)}</td><td>{escape(more)}</td></tr>"
            for label, value, more in rows
        )
        sites = counted(len(self.spec.federation.sites), "site")
        head = f"<b>{escape(self.spec.name)}</b>: {escape(self._method)}, {sites}"
        return f"<div>{head}<table>{cells}</table><code>{escape(str(self.directory))}</code></div>"

    def _figures(self) -> list[tuple[str, str, str]]:
        """Return name, value and interval of each test metric as text; none for a site."""
        if not self._ended:
            return []
        test, intervals = self._checked.metrics.test or {}, self._checked.metrics.intervals
        names = sorted(self.spec.task.metrics, key=lambda name: name == "loss")
        found = [(name, value) for name in names if (value := test.get(name)) is not None]
        digits = {name: decimals(name, value, DIGITS) for name, value in found}
        between = {
            name: f"95 %: {intervals[name].low:.{places}f} to {intervals[name].high:.{places}f}"
            for name, places in digits.items()
            if name in intervals
        }
        return [(f"test {shown(name)}", f"{value:.{digits[name]}f}", between.get(name, "")) for name, value in found]
