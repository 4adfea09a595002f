"""Jobs: every training, every size and every timed run is one, with a result file of its own.

A job with a result from the same description is not done again, so an interrupted measurement can go on.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from abc import abstractmethod
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter

from benchmarks import archives
from benchmarks.paper.compared_methods import METHODS
from benchmarks.paper.panels import Panel, run_document
from rankdad.common.documents import load_json, validate
from rankdad.common.files import write_json
from rankdad.common.policy import EVERYTHING
from rankdad.common.spec import MethodSpec, RunSpec

VERSION = 1  # of the results' format; another version voids older results


@dataclass(frozen=True)
class Job:
    """One piece of work."""

    alone: ClassVar[bool] = False
    """Whether nothing else may run beside it."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Path of the result in the folder of results, without suffix."""

    @property
    @abstractmethod
    def words(self) -> str:
        """The job in words."""

    @property
    @abstractmethod
    def description(self) -> dict[str, Any]:
        """Everything that the result depends on, as JSON."""

    @abstractmethod
    def perform(self, data: Path) -> dict[str, Any]:
        """Return the result as JSON.

        Args:
            data: folder of the data sets' files.
        """

    @property
    def digest(self) -> str:
        """Digest of the description."""
        document = {"job": type(self).__name__, "version": VERSION, **self.description}
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

    def result(self, output: Path, data: Path | None = None) -> dict[str, Any] | None:
        """Return an earlier result of the same description; None if there is none.

        Args:
            output: folder of results.
            data: folder of the data sets' files, if the result must be of these as well.
        """
        path = self._path(output)
        if not path.exists():
            return None
        document: dict[str, Any] = load_json(path)
        other = data is not None and document.get("data") != self._data_digest(data)
        return None if other or document.get("digest") != self.digest else document["result"]

    def keep(self, output: Path, data: Path, result: dict[str, Any]) -> None:
        """Write a result to its file.

        Args:
            output: folder of results.
            data: folder of the data sets' files that it was made from.
            result: of the job, as JSON.

        Raises:
            UserError: it cannot be written.
        """
        made: dict[str, Any] = {"digest": self.digest, "data": self._data_digest(data), "where": _where()}
        made["description"] = self.description
        write_json(self._path(output), {**made, "result": result})

    def where(self, output: Path) -> str | None:
        """Return in words on which machine the result was made; None if there is none."""
        return None if self.result(output) is None else str(load_json(self._path(output))["where"])

    @property
    def file(self) -> str | None:
        """Name of the data set's file, if there is one."""
        return None

    def _data_digest(self, data: Path) -> str | None:
        if self.file is None:
            return None
        with (data / self.file).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _path(self, output: Path) -> Path:
        return output / "results" / f"{self.place}.json"


@dataclass(frozen=True)
class CurveJob(Job):
    """Train a panel by a method in a fold."""

    panel: Panel
    method: str
    fold: int

    @property
    def place(self) -> str:
        """Path of the result, without suffix."""
        return f"curves/{self.panel.key}/{self.method}/fold-{self.fold + 1}"

    @property
    def file(self) -> str:
        """Name of the data set's file."""
        return self.panel.file

    @property
    def words(self) -> str:
        """The job in words."""
        return f"{self.panel.title}: {METHODS[self.method].label}, fold {self.fold + 1}"

    @property
    def description(self) -> dict[str, Any]:
        """The run, and which samples of the data it takes."""
        method, panel = METHODS[self.method], self.panel
        run = _resolved(run_document(panel, method, self.fold))
        samples = {"source": panel.source, "samples": panel.samples, "every": panel.every}
        return {"run": run, "fold": self.fold, "pooled": method.document is None, **samples}

    def perform(self, data: Path) -> dict[str, Any]:
        """Return the training's figures."""
        from benchmarks.paper.learning_curves import train

        return asdict(
            train(self.panel, METHODS[self.method], self.fold, archives.load(self.panel.source, data / self.panel.file))
        )


@dataclass(frozen=True)
class SizeJob(Job):
    """Measure the bytes of a layer."""

    method: str
    size: int

    @property
    def place(self) -> str:
        """Path of the result, without suffix."""
        return f"sizes/{self.method}/{self.size}"

    @property
    def words(self) -> str:
        """The job in words."""
        return f"bytes of a layer of {self.size}: {METHODS[self.method].label}"

    @property
    def description(self) -> dict[str, Any]:
        """Method and size."""
        method = TypeAdapter[Any](MethodSpec).validate_python(METHODS[self.method].document)
        return {"method": method.model_dump(mode="json"), "size": self.size}

    def perform(self, data: Path) -> dict[str, Any]:
        """Return bytes up and down, by formula and as sent."""
        from benchmarks.paper.sizes import sizes_of

        return {"rows": [asdict(row) for row in sizes_of(self.method, self.description["method"], self.size)]}


@dataclass(frozen=True)
class TimingJob(Job):
    """Time the steps of a panel's run as real processes."""

    alone: ClassVar[bool] = True

    panel: Panel
    method: str
    sites: int
    link: str
    steps: int

    @property
    def place(self) -> str:
        """Path of the result, without suffix."""
        link = self.link.replace(" ", "-").replace("/", "-per-")
        return f"timing/{self.panel.key}/{link}/{self.method}/{self.sites}"

    @property
    def file(self) -> str:
        """Name of the data set's file."""
        return self.panel.file

    @property
    def words(self) -> str:
        """The job in words."""
        return f"seconds of a step, {self.panel.title}: {METHODS[self.method].label}, {self.sites} sites, {self.link}"

    @property
    def description(self) -> dict[str, Any]:
        """The run, its sites and their links."""
        run = run_document(replace(self.panel, epochs=1), METHODS[self.method], 0)
        return {"run": _resolved(run), "sites": self.sites, "link": self.link, "steps": self.steps}

    def perform(self, data: Path) -> dict[str, Any]:
        """Return seconds and bytes of a step."""
        from benchmarks.paper.timing import arrange, measure

        with tempfile.TemporaryDirectory() as folder:
            pool = Path(folder) / "pool.npz"
            archives.write(archives.load(self.panel.source, data / self.panel.file), pool)
            source = {"name": "npz", "path": str(pool)}
            simulation = {"source": source, "policy": EVERYTHING.model_dump(mode="json")}
            document = {"run": self.description["run"], "simulation": simulation}
            return asdict(measure(arrange(document, self.sites, self.link), steps=self.steps))


def _resolved(run: dict[str, Any]) -> dict[str, Any]:
    """Return a run's spec with all defaults written out, so that a changed default voids older results."""
    return validate(RunSpec, run).model_dump(mode="json")


def _where() -> str:
    """Return this machine in words."""
    return f"{os.cpu_count()} processors ({platform.machine()}), torch {version('torch').split('+')[0]}"
