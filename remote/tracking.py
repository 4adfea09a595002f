"""Experiment trackers, which the spec's `record` enables at the top aggregator.

They write into the run's directory, as no spec names an address or a path. The aggregator's operator may set
`MLFLOW_TRACKING_URI`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from rankdad.common.errors import UserError, one_line
from rankdad.common.files import cannot_write, make_folder
from rankdad.common.spec import RunSpec

EVENTS = "events.out.tfevents.0.rankdad"
LIBRARIES = {"tensorboard": "TensorBoard", "mlflow": "MLflow"}  # modules, and extras, by name
RUN = "rankdad.run"  # MLflow tag by which a restarted aggregator finds its run
MAX_BATCH = 500  # metrics in a call; MLflow's limit is 1,000
PATIENCE = 20.0  # seconds at the end for pending calls
MAX_FAILURES = 3  # consecutive; then MLflow gets no further calls
MLFLOW = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # it would report every run to its makers
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}

_log = logging.getLogger(__name__)


class Tracker(Protocol):
    """Stores the values of every epoch once, even if the aggregator repeats epochs after a restart."""

    def begin(self, run: str, params: Mapping[str, str], state: Any) -> None:
        """Begin or resume.

        Args:
            run: the run's identity.
            params: the run's parameters.
            state: result of `state` at a checkpoint; None for a new run.
        """

    def note(self, training: str, epoch: int, values: Mapping[str, float]) -> None:
        """Store values of an epoch, from 1, of a training; its name is "" if there is only one."""

    def state(self) -> Any:
        """Return the state for `begin` as JSON."""

    def close(self, status: str | None = None) -> None:
        """Close: finally with the run's status, or without one for another process to resume."""


def check_trackers(spec: RunSpec) -> None:
    """Check that the libraries for a spec's trackers are installed.

    Raises:
        UserError: one is missing.
    """
    for name, library in LIBRARIES.items():
        if getattr(spec.record, name) and find_spec(name) is None:
            raise UserError(
                f"record.{name}: needs {library}, which is not installed: pip install 'rankdad[{name}]'",
                code="not-installed",
                field=f"record.{name}",
            )


def trackers_of(spec: RunSpec, directory: Path) -> dict[str, Tracker]:
    """Create a spec's trackers by name, without writing anything.

    Raises:
        UserError: a library is not installed, or a tracking server does not answer.
    """
    check_trackers(spec)
    found: dict[str, Tracker] = {}
    if spec.record.tensorboard:
        found["tensorboard"] = TensorBoard(directory / "tensorboard")
    if spec.record.mlflow:
        found["mlflow"] = Mlflow(directory / "mlflow", spec.name)
    return found


class TensorBoard:
    """Writes an events file for each training.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary, self._text, self._writer = Event, Summary, text_pb, RecordWriter
        self._folder, self._about, self._sizes = folder, "", dict[str, int]()
        self._training = ""
        self._file: BinaryIO | None = None

    def begin(self, run: str, params: Mapping[str, str], state: Any) -> None:
        """Truncate the files to `state`; later events are written again."""
        make_folder(self._folder)
        self._about = "\n".join(f"- {name}: {value}" for name, value in params.items())
        self._sizes = dict(state or {})
        for path in self._folder.rglob(EVENTS):
            name = path.parent.relative_to(self._folder).as_posix()
            if path.stat().st_size >= self._sizes.get(name, -1) > 0:
                os.truncate(path, self._sizes[name])
            else:
                path.unlink()

    def note(self, training: str, epoch: int, values: Mapping[str, float]) -> None:
        """Write an event."""
        value, summary = self._summary.Value, self._summary
        try:
            file = self._file if training == self._training and self._file else self._open(training)
            self._write(
                file, epoch, summary(value=[value(tag=tag, simple_value=known) for tag, known in values.items()])
            )
            file.flush()
        except OSError as error:
            raise cannot_write(self._folder, error) from None

    def _open(self, training: str) -> BinaryIO:
        self.close()
        path = make_folder(self._folder / training) / EVENTS
        file = self._file = path.open("ab")
        self._training = training
        if not file.tell():
            version = self._event(wall_time=time.time(), file_version="brain.Event:2")
            self._writer(file).write(version.SerializeToString())
            self._write(file, 0, self._text("run", self._about))
        return file

    def _write(self, file: BinaryIO, step: int, summary: Any) -> None:
        self._writer(file).write(self._event(wall_time=time.time(), step=step, summary=summary).SerializeToString())

    def state(self) -> dict[str, int]:
        """Return the files' lengths by training."""
        if self._file is not None:
            self._sizes[Path(self._training).as_posix()] = self._file.tell()
        return dict(self._sizes)

    def close(self, status: str | None = None) -> None:
        """Close the file."""
        if self._file is not None:
            self.state()
            self._file.close()
            self._file = None


class Mlflow:
    """Logs to MLflow in a separate thread: a slow or missing server does not delay rounds.

    Args:
        folder: for MLflow's files, unless `MLFLOW_TRACKING_URI` is set.
        name: of the experiment, unless `MLFLOW_EXPERIMENT_NAME` is set.

    Raises:
        UserError: the server does not answer.
    """

    def __init__(self, folder: Path, name: str) -> None:
        for variable, value in MLFLOW.items():
            os.environ.setdefault(variable, value)
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric, self._param = Metric, Param
        there = os.environ.get("MLFLOW_TRACKING_URI")
        self._where, self._uri = "MLFLOW_TRACKING_URI" if there else str(folder), there or folder.resolve().as_uri()
        self._experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or name
        self._client = self._tried(lambda: MlflowClient(tracking_uri=self._uri))
        if there:
            self._tried(lambda: self._client.search_experiments(max_results=1))
        self._thread = ThreadPoolExecutor(1, "mlflow")
        self._asked: list[Future[None]] = []
        self._run, self._again, self._over, self._failures = "", False, False, 0
        self._known: dict[str, set[int]] = {}  # logged epochs by key

    def _tried(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # stores raise errors of any type
            raise UserError(
                f"{self._where}: MLflow cannot be reached: {self._said(error)}", code="mlflow-unreachable"
            ) from None

    def _said(self, error: Exception) -> str:
        return one_line(error).replace(self._uri, "…")  # it may contain a password

    def begin(self, run: str, params: Mapping[str, str], state: Any) -> None:
        """Begin MLflow's run, or find it."""
        self._tried(lambda: self._begin(run, params))

    def _begin(self, run: str, params: Mapping[str, str]) -> None:
        client = self._client
        experiment = client.get_experiment_by_name(self._experiment)
        number = experiment.experiment_id if experiment else client.create_experiment(self._experiment)
        found = client.search_runs([number], filter_string=f"tags.`{RUN}` = '{run}'")
        self._again = bool(found)
        if found:
            self._run = found[0].info.run_id
            client.update_run(self._run, status="RUNNING")
        else:
            self._run = client.create_run(number, run_name=params.get("name"), tags={RUN: run}).info.run_id
        client.log_batch(self._run, params=[self._param(key, value) for key, value in params.items()])

    def note(self, training: str, epoch: int, values: Mapping[str, float]) -> None:
        """Queue an epoch's metrics."""
        keyed = {f"{training}/{key}" if training else key: value for key, value in values.items()}
        self._do(partial(self._tell, keyed, epoch, round(time.time() * 1000)))

    def _tell(self, values: Mapping[str, float], epoch: int, now: int) -> None:
        metrics = [
            self._metric(key, value, now, epoch) for key, value in values.items() if not self._stands(key, epoch)
        ]
        for first in range(0, len(metrics), MAX_BATCH):
            self._client.log_batch(self._run, metrics=metrics[first : first + MAX_BATCH])

    def _stands(self, key: str, epoch: int) -> bool:
        if not self._again:
            return False
        if key not in self._known:
            self._known[key] = {metric.step for metric in self._client.get_metric_history(self._run, key)}
        return epoch in self._known[key]

    def _do(self, call: Callable[[], None]) -> None:
        self._asked = [*(one for one in self._asked if not one.done()), self._thread.submit(self._guarded, call)]

    def _guarded(self, call: Callable[[], None]) -> None:
        if self._failures == MAX_FAILURES:
            return
        try:
            call()
            self._failures = 0
        except Exception as error:  # the run continues
            self._failures += 1
            then = "; giving up on it" * (self._failures == MAX_FAILURES)
            _log.warning("%s: MLflow could not log an epoch%s: %s", self._where, then, self._said(error))

    def state(self) -> None:
        """Return None: MLflow itself knows what was logged."""

    def close(self, status: str | None = None) -> None:
        """Finish pending calls, and set the final status."""
        if self._over:
            return
        self._over = True
        if status is not None and self._run:
            ended = {"completed": "FINISHED", "failed": "FAILED"}.get(status, "KILLED")
            self._do(lambda: self._client.set_terminated(self._run, ended))
        wait(self._asked, PATIENCE)
        self._thread.shutdown(wait=False, cancel_futures=True)
