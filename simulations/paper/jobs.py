"""What is computed once and kept: every training, every size and every timed run is a job with a file of its own.

A job whose result was made from the same description is not done again: what was cut short goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from abc import abstractmethod
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter

from common.documents import load_json, validate
from common.errors import UserError
from common.policy import EVERYTHING
from common.spec import MethodSpec, RunSpec
from remote.files import write_json
from simulations.archives import Archive
from simulations.paper.methods import METHODS
from simulations.paper.panels import Panel, run_document
from simulations.sources import Source

VERSION = 1  # of what results say; another makes those of before void


@dataclass(frozen=True)
class Job:
    """One piece of work."""

    alone: ClassVar[bool] = False
    """Whether nothing else may run beside it."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the result lies, without its ending."""

    @property
    @abstractmethod
    def words(self) -> str:
        """What a person is told of it."""

    @property
    @abstractmethod
    def description(self) -> dict[str, Any]:
        """What the result follows from, as JSON."""

    @abstractmethod
    def perform(self, data: Path) -> dict[str, Any]:
        """Return the result as JSON.

        Args:
            data: folder of the data sets' files.
        """

    @cached_property
    def digest(self) -> str:
        """Digest of the description."""
        document = {"job": type(self).__name__, "version": VERSION, **self.description}
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

    def result(self, output: Path, data: Path | None = None) -> dict[str, Any] | None:
        """Return what was found before from the same description, if it was.

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
        """Write a result down.

        Args:
            output: folder of results.
            data: folder of the data sets' files that it was made from.
            result: what was found.

        Raises:
            UserError: it cannot be written.
        """
        path = self._path(output)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{path.parent}: cannot be made: {error.strerror}") from None
        made: dict[str, Any] = {"digest": self.digest, "data": self._data_digest(data), "where": _where()}
        made["description"] = self.description
        write_json(path, {**made, "result": result})

    def where(self, output: Path) -> str | None:
        """Return in words where the result was made, if there is one."""
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
        """Where the result lies."""
        return f"curves/{self.panel.key}/{self.method}/fold-{self.fold + 1}"

    @property
    def file(self) -> str:
        """Name of the data set's file."""
        return self.panel.file

    @property
    def words(self) -> str:
        """What a person is told of it."""
        return f"{self.panel.title}: {METHODS[self.method].label}, fold {self.fold + 1}"

    @property
    def description(self) -> dict[str, Any]:
        """The run, and what is taken of the data."""
        method, panel = METHODS[self.method], self.panel
        run = _resolved(run_document(panel, method, self.fold))
        own = {"source": panel.source, "samples": panel.samples, "every": panel.every}
        return {"run": run, "fold": self.fold, "pooled": method.document is None, **own}

    def perform(self, data: Path) -> dict[str, Any]:
        """Return the training's figures."""
        from simulations.paper.curves import train

        return asdict(train(self.panel, METHODS[self.method], self.fold, source(self.panel, data).load()))


@dataclass(frozen=True)
class SizeJob(Job):
    """Measure what a layer takes on the wire."""

    method: str
    size: int

    @property
    def place(self) -> str:
        """Where the result lies."""
        return f"sizes/{self.method}/{self.size}"

    @property
    def words(self) -> str:
        """What a person is told of it."""
        return f"bytes of a layer of {self.size}: {METHODS[self.method].label}"

    @property
    def description(self) -> dict[str, Any]:
        """Method and size."""
        method = TypeAdapter[Any](MethodSpec).validate_python(METHODS[self.method].document)
        return {"method": method.model_dump(mode="json"), "size": self.size}

    def perform(self, data: Path) -> dict[str, Any]:
        """Return bytes up and down, by formula and as sent."""
        from simulations.paper.sizes import sizes_of

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
        """Where the result lies."""
        link = self.link.replace(" ", "-").replace("/", "-per-")
        return f"timing/{self.panel.key}/{link}/{self.method}/{self.sites}"

    @property
    def file(self) -> str:
        """Name of the data set's file."""
        return self.panel.file

    @property
    def words(self) -> str:
        """What a person is told of it."""
        return f"seconds of a step, {self.panel.title}: {METHODS[self.method].label}, {self.sites} sites, {self.link}"

    @property
    def description(self) -> dict[str, Any]:
        """The run, its sites and their links."""
        run = run_document(replace(self.panel, epochs=1), METHODS[self.method], 0)
        return {"run": _resolved(run), "sites": self.sites, "link": self.link, "steps": self.steps}

    def perform(self, data: Path) -> dict[str, Any]:
        """Return seconds and bytes of a step."""
        from simulations.paper.timing import arrange, measure

        source = {"name": self.panel.source, "path": str(data / self.panel.file)}
        simulation = {"source": source, "policy": EVERYTHING.model_dump(mode="json")}
        document = {"run": self.description["run"], "simulation": simulation}
        return asdict(measure(arrange(document, self.sites, self.link), steps=self.steps))


def _resolved(run: dict[str, Any]) -> dict[str, Any]:
    """Return a run's spec with all its defaults: where one of them changes, results of before are void."""
    return validate(RunSpec, run).model_dump(mode="json")


def _where() -> str:
    """Return in words on which machine this is."""
    return f"{os.cpu_count()} processors ({platform.machine()}), torch {version('torch').split('+')[0]}"


def source(panel: Panel, data: Path) -> Archive:
    """Return a panel's data set, in a folder."""
    found = TypeAdapter[Any](Source).validate_python({"name": panel.source, "path": str(data / panel.file)})
    assert isinstance(found, Archive)
    return found
