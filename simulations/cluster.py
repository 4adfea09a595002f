"""A lockstep simulation distributed over torchrun's processes, on one machine or several.

Rank 0 has the aggregators and the run's directory. Sites are assigned to ranks in turn. Messages are the same bytes as
between real processes, and so are the weights.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from rankdad.common.data import SiteData
from rankdad.common.documents import load_json, parse_json, validate
from rankdad.common.errors import RunFailedError, UserError
from rankdad.common.files import cannot_write, is_within, make_folder
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tree import TOP
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.run_directory import own_directory
from rankdad.simulations.lockstep import SiteMessage, Trainers, carry, looking_on, predicting, write_results
from rankdad.simulations.resolving import with_columns
from rankdad.simulations.site_folders import partitioned_data, write_sites
from rankdad.simulations.sources import Folders
from rankdad.simulations.spec import SimulationFile
from rankdad.simulations.star import RankEndedError, Star, joined
from rankdad.simulations.tree import Tree

NOWHERE = "http://127.0.0.1:0"  # unused address of the aggregator


def simulate(
    path: Path | None,
    read: Callable[[], SimulationFile],
    place: Callable[[RunSpec], Path],
    allow_factories: tuple[str, ...] = (),
    *,
    json_output: bool = False,
    quiet: bool = False,
) -> tuple[RunSpec, Path, dict[str, Any]] | None:
    """Run this rank's part of a simulation.

    Args:
        path: the simulation's file, required only at rank 0.
        read: reads the file.
        place: returns the run's directory, at rank 0.
        allow_factories: permitted model factories.
        json_output: whether standard output is reserved for the summary.
        quiet: whether to omit lines about epochs.

    Returns:
        At rank 0 the run, its directory and its summary; else None.

    Raises:
        RankdadError: the error of one rank or of the run, at all ranks.
    """
    with joined() as star, ExitStack() as folders:
        file = _agreed(star, path, read)
        star.patience = file.run.federation.timeout or star.patience
        directory = Path(folders.enter_context(TemporaryDirectory())) if star.rank else place(file.run)
        star.agree(lambda: folders.enter_context(own_directory(directory, TOP, new=True)))
        look = folders.enter_context(looking_on(json_output=json_output, quiet=quiet))
        failure = _run(star, file, directory, allow_factories, look)
        if failure:
            site, _, reason = failure.partition(": ")
            raise RunFailedError(site, reason, code="site-failed")
        return None if star.rank else (file.run, directory, load_json(directory / "summary.json"))


def _agreed(star: Star, path: Path | None, read: Callable[[], SimulationFile]) -> SimulationFile:
    """Return rank 0's simulation at all ranks, after comparing it with theirs."""
    own = star.agree(lambda: read() if not star.rank or path is None or path.exists() else None)
    document = star.share(own.model_dump_json() if own else "", str)

    def compared() -> str:
        file = validate(SimulationFile, parse_json(document))
        if own is not None and own != file:
            raise UserError(
                f"{path}: differs from rank 0's simulation: give all ranks the same file and options, or no file",
                code="ranks-disagree",
            )
        return "" if star.rank else with_columns(file).model_dump_json()

    return validate(SimulationFile, parse_json(star.share(star.agree(compared), str)))


def _run(
    star: Star,
    file: SimulationFile,
    directory: Path,
    allow_factories: tuple[str, ...],
    on_round: Callable[[Aggregator], None],
) -> str:
    """Train this rank's sites; return the reason for the end of the run, or ""."""
    spec, simulation = file.run, file.simulation
    torch.set_num_threads(spec.training.threads)
    ranks = dict(zip(spec.federation.sites, cycle((0, *star.others)), strict=False))
    data = _data(star, file, directory / "sites", ranks, allow_factories)
    replica = partial(Replica, spec, allow_factories, weights=simulation.weights_folder)

    trainers = star.agree(  # first, so that a refused run leaves no files
        lambda: Trainers(
            spec,
            make_plan(spec, replica().model),
            data,
            allowed_factories=allow_factories,
            devices=simulation.here(),
            weights=simulation.weights_folder,
            policies=dict.fromkeys(data, simulation.policy),
            tested=predicting(directory, spec, data),
        )
    )
    tree = star.agree(lambda: None if star.rank else Tree(spec, replica, directory))
    failure = _follow(star, trainers) if tree is None else _lead(star, trainers, tree, ranks, on_round)
    star.agree(lambda: write_results(directory, spec, data, trainers.results))
    if star.rank:
        _hand_in(star, directory / "sites", data)
    else:
        _collect(star, directory / "sites")
    return failure


def _data(
    star: Star, file: SimulationFile, folder: Path, ranks: Mapping[str, int], allow_factories: tuple[str, ...]
) -> dict[str, SiteData]:
    """Return the data of this rank's sites.

    Rank 0 partitions a common source and sends each rank its sites' parts. Sites' own folders are read by their ranks.
    """
    own, one_file = [site for site, rank in ranks.items() if rank == star.rank], file.run.data.file
    is_partitioned = not isinstance(file.simulation.source, Folders)
    if is_partitioned:
        star.agree(lambda: None if star.rank else write_sites(file, folder, NOWHERE))
        for site in ranks if not star.rank else own:
            part = folder / site / "data" / str(one_file)
            if star.rank:
                part.parent.mkdir(parents=True)
                part.write_bytes(star.receive(0, bytes))
            elif ranks[site]:
                star.send(ranks[site], part.read_bytes())
    return star.agree(lambda: partitioned_data(file, folder, allow_factories, is_written=is_partitioned, sites=own))


def _lead(
    star: Star, trainers: Trainers, tree: Tree, ranks: Mapping[str, int], on_round: Callable[[Aggregator], None]
) -> str:
    """Exchange messages with all ranks' sites; return the reason for the end of the run, or ""."""
    try:
        carry(tree, _Exchange(star, trainers, ranks), on_round)
    finally:
        tree.close()
    failure = tree.top.recorder.progress.reason if tree.top.barrier.failed else ""
    for rank in star.living:
        with suppress(RankEndedError):  # reported when its folders are collected
            star.send(rank, {"end": failure})
    return failure


def _follow(star: Star, trainers: Trainers) -> str:
    """Pass rank 0's answers to this rank's sites; return the reason for the end of the run, or ""."""
    while "end" not in (document := star.receive(0, dict)):
        answers = {site: body for body, sites in document["answers"] for site in sites}
        star.send(0, dict(trainers.advance(answers)))
    return str(document["end"])


class _Exchange:
    """Answers all ranks' sites and yields their contributions in the run's order. A rank's end ends its sites."""

    def __init__(self, star: Star, trainers: Trainers, ranks: Mapping[str, int]) -> None:
        self._star, self._trainers, self._ranks = star, trainers, ranks
        self._departed: dict[str, SiteMessage] = {}  # reasons by site of ended ranks, until reported

    def __call__(self, answers: Mapping[str, bytes | None]) -> Iterator[tuple[str, SiteMessage]]:
        asked, heard = [site for site in self._ranks if site in answers], dict[int, Mapping[str, SiteMessage]]()
        for rank in self._star.living:
            own = [site for site in asked if self._ranks[site] == rank]
            bodies = {answers[site]: None for site in own}
            packed = [(body, [site for site in own if answers[site] is body]) for body in bodies]
            with self._noting_the_end(rank):
                if own:
                    self._star.send(rank, {"answers": packed})
        for site in asked:
            rank = self._ranks[site]
            if not rank:
                yield from self._trainers.advance({site: answers[site]})
                continue
            if rank in self._star.living and rank not in heard:
                with self._noting_the_end(rank):
                    heard[rank] = _received(self._star, rank)
            if site in (theirs := heard.get(rank, {})):
                yield site, theirs[site]
            elif site in self._departed:
                yield site, self._departed.pop(site)

    @contextmanager
    def _noting_the_end(self, rank: int) -> Iterator[None]:
        try:
            yield
        except RankEndedError as error:
            reason = f"its process, {error.name}, {error.what}"
            self._departed |= {site: reason for site, its in self._ranks.items() if its == rank}


def _received(star: Star, rank: int) -> dict[str, SiteMessage]:
    """Receive the contributions of a rank's sites."""
    received = star.receive(rank, dict)
    if not all(isinstance(site, str) and isinstance(value, bytes | int | str) for site, value in received.items()):
        raise star.misunderstood(rank)
    return received


def _hand_in(star: Star, folder: Path, sites: Iterable[str]) -> None:
    """Send the files of this rank's sites to rank 0."""
    kept = [path for site in sites for path in sorted((folder / site).rglob("*")) if path.is_file()]
    for path in kept:
        name = path.relative_to(folder)
        if name.parts[1] != "data":  # rank 0 has it
            star.send(0, [name.as_posix(), path.read_bytes()])
    star.send(0, [])


def _collect(star: Star, folder: Path) -> None:
    """Receive the files of other ranks' sites.

    Raises:
        UserError: the disk is full or broken.
    """
    for rank in star.living:
        try:
            while file := star.receive(rank, list):
                name, content = file
                path = folder / name
                if not is_within(path, folder):
                    raise star.misunderstood(rank)
                make_folder(path.parent)
                path.write_bytes(content)
        except RankEndedError as error:
            print(f"warning: {error}: the folders of its sites are incomplete", file=sys.stderr)
        except OSError as error:
            raise cannot_write(path, error) from None
