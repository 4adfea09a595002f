"""The sites of a simulation: folders, data and configurations."""

from __future__ import annotations

import hmac
import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rankdad.common.data import SiteData, read_site
from rankdad.common.data.identifiers import ZEROS_LOST, digits_of, lost_zeros
from rankdad.common.errors import SpecError
from rankdad.common.files import make_folder
from rankdad.common.policy import FILE
from rankdad.common.privacy.parts import Secret
from rankdad.common.spec import RunSpec
from rankdad.common.spec.patterns import is_pattern
from rankdad.common.spec.written import Written
from rankdad.local.config import SiteConfig
from rankdad.local.privacy.assigning import assigner_of
from rankdad.local.privacy.log import DisclosureLog
from rankdad.simulations.datasets import Dataset
from rankdad.simulations.partition import Folder, partition
from rankdad.simulations.sources import Folders, OneTable
from rankdad.simulations.spec import SimulationFile, SimulationSpec


def write_sites(
    file: SimulationFile,
    folder: Path,
    aggregator: str | Mapping[str, str],
    *,
    allow_factories: tuple[str, ...] = (),
    patience: float = 300.0,
    is_written: bool = False,
    sites: Sequence[str] | None = None,
) -> dict[str, SiteConfig]:
    """Write each site's part of the data under `folder/<site>/data`, and return the sites' configurations.

    Sites' own folders stay where they are. The policy is written next to the data.

    Args:
        file: run and simulation.
        folder: the folder of all sites.
        aggregator: address of the aggregator, or one for each site.
        allow_factories: model factories that all sites permit.
        patience: seconds for which a site retries an aggregator that does not answer.
        is_written: whether the data have been written before.
        sites: the sites to write; all by default.

    Raises:
        DataError: the source cannot be read or partitioned.
    """
    run, simulation, everyone = file.run, file.simulation, file.run.federation.sites
    sites, devices = everyone if sites is None else sites, simulation.devices
    if run.data.reader != "npz":
        importlib.import_module("pandas")  # needed by the sites: imported once before forking
    places = _places(run, simulation, folder, is_written, sites)
    configs: dict[str, SiteConfig] = {}
    for site in sites:
        output = make_folder(folder / site, private=True)
        (output / FILE).write_text(simulation.policy.text(), encoding="utf-8")
        if not simulation.policy.keyed_folds:
            own = hmac.digest(simulation.secret.encode(), site.encode(), "sha256")
            DisclosureLog(output / "privacy", site, Secret(own)).secret  # noqa: B018  # creates the secret's file
        configs[site] = SiteConfig(
            name=site,
            aggregator=aggregator if isinstance(aggregator, str) else aggregator[site],
            data=str(places[site]),
            output=str(output),
            privacy=str(output / "privacy"),
            allow_factories=allow_factories,
            weights=simulation.weights,
            policy=str(output / FILE),
            device=devices[everyone.index(site) % len(devices)],
            loading=simulation.loading,
            patience=patience,
        )
    return configs


def _places(
    run: RunSpec, simulation: SimulationSpec, folder: Path, is_written: bool, sites: Sequence[str]
) -> dict[str, Path]:
    """Return the folder of each site's data, after partitioning a common source."""
    source, how = simulation.source, simulation.partition
    if isinstance(source, Folders) or isinstance(how, Folder):  # the spec has both or none
        assert isinstance(source, Folders)
        return source.find(tuple(sites))
    places = {site: folder / site / "data" for site in run.federation.sites}
    name = run.data.file
    if not isinstance(name, str) or is_pattern(name):
        raise SpecError(
            "run.data.file", f"the source {source.name} gives each site one file, expected its name", code="file-needed"
        )
    if not is_written:
        written = run.data if isinstance(run.data, Written) else None
        pool: Dataset = source.load(written) if isinstance(source, OneTable) else source.load()
        for site, rows in partition(pool, how, run).items():
            make_folder(places[site].parent, private=True)
            make_folder(places[site], private=True)
            pool.write(rows, run, places[site] / name)
    return places


def partitioned_data(
    file: SimulationFile,
    folder: Path,
    allow_factories: tuple[str, ...] = (),
    *,
    is_written: bool = False,
    sites: Sequence[str] | None = None,
) -> dict[str, SiteData]:
    """Partition a simulation's data into a folder, and read them as the sites would: see `write_sites`."""
    configs = write_sites(file, folder, "http://127.0.0.1:0", is_written=is_written, sites=sites)
    everyone = file.run.federation.sites
    return {
        name: read_site(
            file.run,
            Path(config.data),
            everyone.index(name),
            allow_factories,
            config.loading,
            assigner_of(Path(config.privacy), name, file.simulation.policy, file.run),
        )
        for name, config in configs.items()
    }


def identifier_warnings(spec: RunSpec, data: Mapping[str, SiteData]) -> Iterator[str]:
    """Yield a warning for each site whose identifiers lost leading zeros that another site's have."""
    for field in ("key", "group"):
        column = getattr(spec.data, field, None)
        names = {site: own.keys if field == "key" else own.group_names for site, own in data.items()}
        digits = {site: digits_of(own) for site, own in names.items() if column is not None}
        for site, own in digits.items():
            if any(lost_zeros(own, other) for other in digits.values()):
                yield f"{site}: {spec.data.file}, column {column}: {ZEROS_LOST}"
