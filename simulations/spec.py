"""A file for `rankdad simulate`: the run, and how its sites are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypedDict, Unpack

from pydantic import Field, ValidationInfo, field_validator

from rankdad.common.data.loading import Loading
from rankdad.common.devices import CPU, Device, device_here
from rankdad.common.documents import Part, load_json, replace, validate
from rankdad.common.errors import SpecError
from rankdad.common.policy import Policy
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import CsvData
from rankdad.simulations.faults import RelaySpec
from rankdad.simulations.partition import ByColumn, Folder, Iid, Partition
from rankdad.simulations.sources import BUNDLED, BreastCancer, Diabetes, Folders, OneTable, Source

TABLES = Diabetes | BreastCancer | OneTable


class SimulationSpec(Part):
    """How simulated sites come by their data."""

    source: Source
    """Where the samples come from."""
    partition: Partition = Field(default=Iid(), validate_default=True)
    """How they are dealt out: folder with the source folders."""
    device: Device | Annotated[tuple[Device, ...], Field(min_length=1)] = CPU
    """Where the sites train, as in a site's file; of a list, such as ["cuda:0", "cuda:1"], sites take turns."""
    loading: Loading = Loading()
    """How every site reads volumes and pictures."""
    weights: str | None = None
    """Folder of the pretrained weights that the run names."""
    policy: Policy = Policy()
    """What may leave every site, and what else it takes: what is not named is as in a hospital's own default."""
    secret: str = "simulation"
    """What the sites' secrets follow from where the policy has no `keyed_folds`: with another one, patients are dealt
    out anew."""
    relay: RelaySpec | None = None
    """What stands between sites and aggregator, slow and faulty; null connects them directly."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """Where the sites train: each in turn has one of these."""
        return (self.device,) if isinstance(self.device, str) else self.device

    def here(self) -> tuple[str, ...]:
        """Return the devices that these are on this machine.

        Raises:
            UserError: there is no such device.
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
    """What `rankdad simulate` reads."""

    run: RunSpec
    """The run, as it would be between real sites."""
    simulation: SimulationSpec
    """What takes the place of the sites' own data."""
    notes: tuple[str, ...] = ()
    """What a person should know of it, such as what `rankdad init` has guessed; nothing follows from it."""

    @field_validator("simulation")
    @classmethod
    def _source_has_what_is_read(cls, simulation: SimulationSpec, info: ValidationInfo) -> SimulationSpec:
        source = simulation.source
        if "run" not in info.data or isinstance(source, Folders):
            return simulation
        data, reader = info.data["run"].data, "csv" if isinstance(source, TABLES) else "npz"
        if data.reader != reader:
            instead = {"npz": "folders or npz", "csv": "folders or table"}.get(data.reader, "folders")
            raise ValueError(f"source: {source.name} has nothing for data.reader {data.reader}: take {instead}")
        if isinstance(data, CsvData) and data.covariates is not None:
            raise ValueError(f"source: {source.name} is one table, but data.covariates is a second: take folders")
        return simulation


class Replacements(TypedDict, total=False):
    """What options put in the place of a document's own values; None and absent change nothing.

    Args:
        sites: number of sites.
        regions: number of regions that the sites are dealt out to.
        data: the source's file.
        relay: file of a relay.
        weights: folder of pretrained weights.
        device: where the sites train.
    """

    sites: int | None
    regions: int | None
    data: Path | None
    relay: Path | None
    weights: Path | None
    device: str | None


def read_simulation(path: Path, assignments: list[str], **options: Unpack[Replacements]) -> SimulationFile:
    """Read a file for the simulator, with `KEY=JSON` assignments and then options in the place of its own values.

    Raises:
        UserError: unreadable file, or a wrong field.
    """
    return validate(SimulationFile, changed(replace(load_json(path), assignments), **options), file=path)


def changed(document: Any, **options: Unpack[Replacements]) -> Any:
    """Return a document for the simulator with what options put in the place of its own.

    Raises:
        UserError: an option does not go with the document, or the relay's file is wrong.
    """
    sites, regions, data = options.get("sites"), options.get("regions"), options.get("data")
    relay, weights, device = options.get("relay"), options.get("weights"), options.get("device")
    source = _found(document, "simulation", "source", "name")
    if sites is not None:
        if source == "folders":
            raise SpecError(
                "--sites",
                "the source 'folders' has its own sites; run.federation.sites chooses",
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
    if relay is not None:
        validate(RelaySpec, load_json(relay), file=relay)  # so that errors name its own file
        document = _assign(document, ("simulation", "relay"), load_json(relay))
    return document


def numbered(sites: int) -> list[str]:
    """Return the names of so many sites."""
    return [f"site-{number + 1:02d}" for number in range(sites)]


def _found(document: Any, *path: str) -> Any:
    """Return what stands at a path in a document, before anything else is known of it; None if nothing does."""
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _dealt(sites: Any, regions: int) -> dict[str, list[Any]]:
    """Return regions of equally many sites, one more or less.

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
