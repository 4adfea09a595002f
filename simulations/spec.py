"""The file of `rankdad simulate`: the run, and its simulated sites."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypedDict, Unpack

from pydantic import Field, ValidationInfo, field_validator

from rankdad.common.devices import CPU, Device, device_here
from rankdad.common.documents import Part, load_json, replace, validate
from rankdad.common.errors import SpecError
from rankdad.common.loading import Loading
from rankdad.common.policy import Policy
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import CsvData
from rankdad.simulations.partition import ByColumn, Folder, Iid, Partition
from rankdad.simulations.sources import BUNDLED, BreastCancer, Diabetes, Folders, OneTable, Source

TABLES = Diabetes | BreastCancer | OneTable


class SimulationSpec(Part):
    """Sources of the simulated sites' data, and their environment."""

    source: Source
    """Source of the samples."""
    partition: Partition = Field(default=Iid(), validate_default=True)
    """Partition of the samples; `folder` for the source folders."""
    device: Device | Annotated[tuple[Device, ...], Field(min_length=1)] = CPU
    """Device as in a site's file; sites use the devices of a list, such as ["cuda:0", "cuda:1"], in turn."""
    loading: Loading = Loading()
    """Loading of volumes and pictures at every site."""
    weights: str | None = None
    """Folder of the pretrained weights that the run names."""
    policy: Policy = Policy()
    """Policy of every site; missing fields have a hospital's defaults."""
    secret: str = "simulation"
    """Seed of the sites' secrets without the policy's `keyed_folds`; another one changes folds and batches."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """Devices, used by the sites in turn."""
        return (self.device,) if isinstance(self.device, str) else self.device

    def here(self) -> tuple[str, ...]:
        """Resolve the devices on this machine.

        Raises:
            UserError: a device does not exist.
        """
        return tuple(device_here(device, "simulation.device") for device in self.devices)

    @property
    def weights_folder(self) -> Path | None:
        """Folder of the pretrained weights."""
        return None if self.weights is None else Path(self.weights)

    @field_validator("partition")
    @classmethod
    def _fits_the_source(cls, partition: Partition, info: ValidationInfo) -> Partition:
        source = info.data.get("source")
        if source is None:
            return partition
        table = isinstance(source, TABLES)
        if isinstance(source, Folders) != isinstance(partition, Folder) or isinstance(partition, ByColumn) > table:
            expected = "iid, dirichlet or column" if table else "iid or dirichlet"
            expected = '{"name": "folder"}' if isinstance(source, Folders) else expected
            raise ValueError(f"got {partition.name}, expected {expected} for the source {source.name}")
        return partition


class SimulationFile(Part):
    """The file of `rankdad simulate`."""

    run: RunSpec
    """The run, as between real sites."""
    simulation: SimulationSpec
    """The simulated sites."""
    notes: tuple[str, ...] = ()
    """Notes for people, such as guesses of `rankdad init`; they have no effect."""

    @field_validator("simulation")
    @classmethod
    def _source_has_what_is_read(cls, simulation: SimulationSpec, info: ValidationInfo) -> SimulationSpec:
        source = simulation.source
        if "run" not in info.data or isinstance(source, Folders):
            return simulation
        data, reader = info.data["run"].data, "csv" if isinstance(source, TABLES) else "npz"
        if data.reader != reader:
            instead = {"npz": "folders or npz", "csv": "folders or table"}.get(data.reader, "folders")
            raise ValueError(f"source: {source.name} does not fit data.reader {data.reader}: use {instead}")
        if isinstance(data, CsvData) and data.covariates is not None:
            raise ValueError(f"source: {source.name} is one table, but data.covariates is a second: use folders")
        return simulation


class Replacements(TypedDict, total=False):
    """Options that replace a document's values; None and absent change nothing.

    Args:
        sites: number of sites.
        regions: number of regions, to which sites are assigned.
        data: the source's file.
        weights: folder of pretrained weights.
        device: device of the sites.
    """

    sites: int | None
    regions: int | None
    data: Path | None
    weights: Path | None
    device: str | None


def read_simulation(path: Path, assignments: list[str], **options: Unpack[Replacements]) -> SimulationFile:
    """Read a simulation's file, and apply `KEY=JSON` assignments, then options.

    Raises:
        UserError: the file is unreadable, or a field is invalid.
    """
    return validate(SimulationFile, changed(replace(load_json(path), assignments), **options), file=path)


def changed(document: Any, **options: Unpack[Replacements]) -> Any:
    """Apply options to a simulation's document.

    Raises:
        UserError: an option does not fit the document.
    """
    sites, regions, data = options.get("sites"), options.get("regions"), options.get("data")
    weights, device = options.get("weights"), options.get("device")
    source = _found(document, "simulation", "source", "name")
    if sites is not None:
        if source == "folders":
            raise SpecError(
                "--sites",
                "the source 'folders' has its own sites; choose with run.federation.sites",
                code="options-exclude",
            )
        document = _assign(document, ("run", "federation", "sites"), numbered(sites))
    if regions is not None:
        everyone = _found(document, "run", "federation", "sites")
        document = _assign(document, ("run", "federation", "regions"), _dealt(everyone, regions))
    if data is not None:
        if isinstance(source, str) and source in BUNDLED:
            raise SpecError(
                "--data",
                f"the source '{source}' comes with its data and takes no file",
                code="options-exclude",
            )
        document = _assign(document, ("simulation", "source", "path"), str(data))
    if weights is not None:
        document = _assign(document, ("simulation", "weights"), str(weights))
    if device is not None:
        document = _assign(document, ("simulation", "device"), device)
    return document


def numbered(sites: int) -> list[str]:
    """Return names for so many sites."""
    return [f"site-{number + 1:02d}" for number in range(sites)]


def _found(document: Any, *path: str) -> Any:
    """Return the value at a path in an unvalidated document, or None."""
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _dealt(sites: Any, regions: int) -> dict[str, list[Any]]:
    """Divide sites into regions of about equal size.

    Raises:
        SpecError: there are fewer sites than regions.
    """
    sites = sites if isinstance(sites, list) else []
    if regions > len(sites):
        raise SpecError(
            "--regions",
            f"got {regions}, expected at most the number of sites, {len(sites)}",
            code="number-out-of-range",
        )
    ends = [len(sites) * count // regions for count in range(regions + 1)]
    return {f"region-{at + 1}": sites[ends[at] : ends[at + 1]] for at in range(regions)}


def _assign(document: Any, path: tuple[str, ...], value: object) -> Any:
    target = _found(document, *path[:-1])
    if not isinstance(target, dict):
        raise SpecError(".".join(path[:-1]), "is missing", code="missing")
    target[path[-1]] = value
    return document
