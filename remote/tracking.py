"""What a run tells programs that collect experiments: a tracker for each that the spec's `record` names.

The aggregator above all writes, into the run's own directory: no spec names an address or a path. Only who operates the
aggregator can have MLflow's go elsewhere, by `MLFLOW_TRACKING_URI`.
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
LIBRARIES = {"tensorboard": "TensorBoard", "mlflow": "MLflow"}  # by their modules, which extras of these names bring
RUN = "rankdad.run"  # a tag of MLflow's, by which an aggregator that was started again finds what it has begun
MAX_BATCH = 500  # metrics in a call; MLflow takes at most 1,000
PATIENCE = 20.0  # seconds at the end for what is still to be sent
MAX_FAILURES = 3  # in a row, after which MLflow is told no more
MLFLOW = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # it would tell its makers of every run
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}

_log = logging.getLogger(__name__)


class Tracker(Protocol):
    """Keeps the values of every epoch, once each, also when the aggregator goes over some again after a restart."""

    def begin(self, run: str, params: Mapping[str, str], state: Any) -> None:
        """Begin, or go on.

        Args:
            run: its id.
            params: what the run is.
            state: see `state`; None if there is none.
        """

    def note(self, training: str, epoch: int, values: Mapping[str, float]) -> None:
        """Keep values of an epoch, counted from 1, of one of the run's trainings: its name, "" if there is but one."""

    def state(self) -> Any:
        """Return as JSON what is needed to go on from here."""

    def close(self, status: str | None = None) -> None:
        """End, for good with the run's status, or else for another process to go on."""


def check_trackers(spec: RunSpec) -> None:
    """Check that the libraries are installed that a spec asks for.

    Raises:
        UserError: one is not.
    """
    for name, library in LIBRARIES.items():
        if getattr(spec.record, name) and find_spec(name) is None:
            raise UserError(
                f"record.{name}: needs {library}, which is not installed: pip install 'rankdad[{name}]'",
                code="not-installed",
                field=f"record.{name}",
            )


def trackers_of(spec: RunSpec, directory: Path) -> dict[str, Tracker]:
    """Return the trackers that a spec asks for, by name; nothing is written yet.

    Raises:
        UserError: a library is not installed, or a server that is to be told does not answer.
    """
    check_trackers(spec)
    found: dict[str, Tracker] = {}
    if spec.record.tensorboard:
        found["tensorboard"] = TensorBoard(directory / "tensorboard")
    if spec.record.mlflow:
        found["mlflow"] = Mlflow(directory / "mlflow", spec.name)
    return found


class TensorBoard:
    """Writes a file of events for each training.

    Args:
        folder: for them.
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
        """Cut off what stands beyond `state`: it is written again."""
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
        """Return how long the files are, by training."""
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
    """Tells MLflow, in a thread of its own: a server that is slow or gone holds up no round.

    Args:
        folder: for MLflow's files, unless `MLFLOW_TRACKING_URI` names another place.
        name: of the experiment, unless `MLFLOW_EXPERIMENT_NAME` says another one.

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
        self._known: dict[str, set[int]] = {}  # epochs that stand there already, by key

    def _tried(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # whatever its stores raise
            raise UserError(
                f"{self._where}: MLflow cannot be told: {self._said(error)}", code="mlflow-unreachable"
            ) from None

    def _said(self, error: Exception) -> str:
        return one_line(error).replace(self._uri, "…")  # in which a password may stand

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
        """Tell MLflow of an epoch, soon."""
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
        except Exception as error:  # the run goes on
            self._failures += 1
            then = "; it is told no more" * (self._failures == MAX_FAILURES)
            _log.warning("%s: MLflow could not be told of an epoch%s: %s", self._where, then, self._said(error))

    def state(self) -> None:
        """Return nothing: what stands there is asked for."""

    def close(self, status: str | None = None) -> None:
        """Tell the rest, and how the run has ended."""
        if self._over:
            return
        self._over = True
        if status is not None and self._run:
            ended = {"completed": "FINISHED", "failed": "FAILED"}.get(status, "KILLED")
            self._do(lambda: self._client.set_terminated(self._run, ended))
        wait(self._asked, PATIENCE)
        self._thread.shutdown(wait=False, cancel_futures=True)
