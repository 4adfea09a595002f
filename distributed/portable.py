"""Checkpoints of a LowRank that another mesh, or another number of ranks, can read (torch.distributed.checkpoint).

Every rank writes its residuals under its number among the data-parallel ranks, in the shapes of parameters: parts of
tensor parallel are DTensors; see `common.shards`. All residuals of a parameter add up to what no step has applied yet,
so fewer ranks take those of several, and more ranks begin without.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from rankdad.common import shards
from rankdad.common.collectives import broadcast_bytes
from rankdad.common.errors import DataError, UserError, one_line
from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.routes import Route
from rankdad.common.meshes import Groups, Part, local, wrapped
from rankdad.common.methods import MethodState
from rankdad.distributed.agreement import explain, reaching
from rankdad.distributed.checkpoint import MOST_STEPS

STEP, OPTIONS, PLACES, SAVED = "step", "options", "ranks", "saved/"
SITE, NODE = "site", "node"
MAY_CHANGE = ("gather_up_to",)
MOST_OPTIONS = 1 << 16  # bytes
T = TypeVar("T")


@dataclass(frozen=True)
class Seat:
    """What a rank has of a model.

    Args:
        place: of the rank among those with different batches.
        places: how many these are.
        routes: of the parameters.
        parts: of the parameters at this rank.
        like: a tensor with the dtype and device of states.
    """

    place: int
    places: int
    routes: tuple[Route, ...]
    parts: Mapping[str, Part]
    like: Tensor

    def basis(self, kind: str, route: Route) -> str:
        """Return the key of a parameter's directions: those of a site are equal at all places."""
        whole, division = self.parts[route.name].whole, "whole"
        if isinstance(whole, DTensor):
            mesh = whole.device_mesh
            division = ".".join(f"{mesh.get_local_rank(dim)}-{mesh.size(dim)}" for dim in range(mesh.ndim))
        return f"{kind}/bases/{self.place if kind == NODE else 0}/{route.name}/{division}"


def write(
    folder: str | Path,
    seat: Seat,
    step: int,
    options: Mapping[str, object],
    site: MethodState,
    node: MethodState,
    groups: Groups,
) -> None:
    """Write a checkpoint; called at all ranks.

    Args:
        folder: the same at all ranks.
        seat: of this rank.
        step: number of steps.
        options: of the LowRank.
        site: this rank's state.
        node: its state where it combines several ranks' rows.
        groups: of the ranks.

    Raises:
        UserError: there are files in the folder at some rank, or it cannot be written; the same at all ranks.
    """
    _together(partial(_check_new, Path(folder)), groups)
    with reaching("the checkpoint"):
        token = int.from_bytes(broadcast_bytes(secrets.token_bytes(7)))  # of this save, which may meet another one
        found = written(seat, step, options, site, node)
        found[f"{SAVED}{dist.get_rank()}"] = torch.tensor([token, dist.get_world_size()])
    try:
        with reaching("the checkpoint"):
            shards.write(Path(folder), found)
    except OSError as error:  # at all ranks
        problem = f"{folder}: cannot be written ({one_line(error)}): choose another place"
        raise UserError(problem, code="cannot-write", field="folder") from None


def read(
    folder: str | Path, seat: Seat, options: Mapping[str, object], groups: Groups
) -> tuple[int, MethodState, MethodState]:
    """Return the number of steps and this rank's states of a checkpoint; called at all ranks.

    Raises:
        UserError: there is no such checkpoint, or it is of another model or other options; the same at all ranks.
    """
    tensors = _together(partial(blank, Path(folder), seat), groups)
    try:
        with reaching("the checkpoint"):
            shards.read(Path(folder), tensors)
    except shards.UNREADABLE as error:  # at all ranks
        raise _unreadable(folder, error) from None
    return _together(partial(restored, seat, tensors, options), groups)


def _check_new(folder: Path) -> bool:
    """Return True for a folder without files.

    Raises:
        UserError: there are some, such as parts of a checkpoint of more ranks, which a reader would mix.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        problem = f"{folder}: already there; choose another folder or remove it"
        raise UserError(problem, code="output-exists", field="folder")
    return True


def _together(work: Callable[[], T], groups: Groups) -> T:
    """Return what work returns; a mistake at one rank is raised at all.

    Raises:
        UserError: the work of a rank raised it.
    """
    try:
        found, problem = work(), None
    except UserError as error:
        found, problem = None, error
    told = explain(problem, groups)
    if told is not None:
        raise UserError(str(told), code=told.code, field=told.field)
    assert found is not None
    return found


def _unreadable(folder: str | Path, error: BaseException) -> UserError:
    problem = f"{folder}: no checkpoint of LowRank.save that this rank can read ({one_line(error)}): name its folder"
    return UserError(problem, code="checkpoint-unreadable")


def written(
    seat: Seat, step: int, options: Mapping[str, object], site: MethodState, node: MethodState
) -> dict[str, Tensor]:
    """Return this rank's tensors of a checkpoint, by key."""
    listed = json.dumps({name: value for name, value in sorted(options.items()) if name not in MAY_CHANGE}).encode()
    found = {STEP: torch.tensor(step), PLACES: torch.tensor(seat.places)}
    found[OPTIONS] = torch.frombuffer(bytearray(listed), dtype=torch.uint8)
    for kind, state in ((SITE, site), (NODE, node)):
        for route in seat.routes:
            if (residual := state.residuals.get(route.name)) is not None:
                for name, value in _split(route, residual).items():
                    whole = wrapped(value.contiguous(), seat.parts[name].whole)
                    found[f"{kind}/residuals/{seat.place}/{name}"] = whole
            if (rows := state.bases.get(route.name)) is not None and (kind == NODE or not seat.place):
                found[seat.basis(kind, route)] = rows
    return found


def blank(folder: Path, seat: Seat) -> dict[str, Tensor]:
    """Return tensors to fill from a checkpoint at this rank, by key.

    Raises:
        UserError: there is no such checkpoint, or it is of another model.
    """
    try:
        sizes = {key: tuple(each.size) for key, each in shards.sizes(folder).items()}
    except (DataError, *shards.UNREADABLE) as error:
        raise _unreadable(folder, error) from None
    saved = [key for key in sizes if key.startswith(SAVED)]
    fits = {sizes.get(STEP), sizes.get(PLACES)} == {()} and {sizes[key] for key in saved} == {(2,)}
    if not fits or not 0 <= math.prod(sizes.get(OPTIONS, (-1,))) <= MOST_OPTIONS:
        problem = f"{folder}: got another checkpoint, expected one of LowRank.save: name its folder"
        raise UserError(problem, code="checkpoint-malformed")
    found = {STEP: torch.tensor(0), PLACES: torch.tensor(0)}
    found[OPTIONS] = torch.empty(sizes[OPTIONS], dtype=torch.uint8)
    found |= {key: torch.zeros(2, dtype=torch.int64) for key in saved}
    for key, size in sizes.items():
        kind, _, rest = key.partition("/residuals/")
        place, _, name = rest.partition("/")
        if not place.isdecimal() or int(place) % seat.places != seat.place or name not in seat.parts:
            continue
        part = seat.parts[name]
        if size != tuple(part.whole.shape):
            problem = f"{folder}: {name} has {list(size)}, expected {list(part.whole.shape)}: load that of this model"
            raise UserError(problem, code="checkpoint-does-not-fit", field=name)
        found[key] = wrapped(seat.like.new_zeros(part.shape), part.whole)
    for route in seat.routes:
        for kind in (SITE, NODE):
            key = seat.basis(kind, route)
            if key in sizes and sizes[key][1:] == route.matrix[1:] and sizes[key][0] <= max(route.matrix):
                found[key] = seat.like.new_zeros(sizes[key])
    return found


def restored(
    seat: Seat, tensors: Mapping[str, Tensor], options: Mapping[str, object]
) -> tuple[int, MethodState, MethodState]:
    """Return the number of steps, and this rank's states as a site and as a node, from filled tensors.

    With another number of ranks, a node's residuals become the site's.

    Raises:
        UserError: the checkpoint is of other options, holds NaN or infinity, or options that cannot be read.
    """
    step, places = int(tensors[STEP]), int(tensors[PLACES])
    saves = [value.tolist() for key, value in tensors.items() if key.startswith(SAVED)]
    if any(save != [saves[0][0], len(saves)] for save in saves):
        problem = "load: got files of several checkpoints, or not all of one, expected those of one LowRank.save"
        raise UserError(problem, code="checkpoint-incomplete")
    try:
        known = dict(json.loads(bytes(tensors[OPTIONS].tolist())))
    except (ValueError, TypeError, RecursionError):
        known = {}
    if not (known and 0 <= step < MOST_STEPS and places > 0):
        raise UserError(
            "load: got options, ranks or a step of no checkpoint of LowRank.save", code="checkpoint-malformed"
        )
    for name, value in known.items():
        if options.get(name) != value:
            problem = f"load: {name}: got {value!r} in the checkpoint, expected {options.get(name)!r}"
            raise UserError(problem, code="checkpoint-does-not-fit", field=name)
    same = places == seat.places
    sums: dict[str, dict[str, Tensor]] = {SITE: {}, NODE: {}}
    for key, value in tensors.items():
        if not bool(torch.isfinite(local(value)).all()):
            raise UserError(f"load: {key} holds NaN or infinity", code="not-finite", field=key)
        kind, _, rest = key.partition("/residuals/")
        if rest:
            into, name = sums[kind if same else SITE], rest.partition("/")[2]
            into[name] = into[name] + local(value) if name in into else local(value)
    states = []
    for kind in (SITE, NODE):
        keys = {route.name: seat.basis(kind, route) for route in seat.routes if kind == SITE or same}
        bases = {name: tensors[key] for name, key in keys.items() if key in tensors}
        joined = {route.name: _joined(route, sums[kind]) for route in seat.routes if route.name in sums[kind]}
        states.append(MethodState(joined, bases))
    site, node = states
    return step, site, node


def _split(route: Route, residual: Matrix) -> dict[str, Tensor]:
    """Return a residual by parameter, in their shapes."""
    matrix = residual.gradient() if isinstance(residual, Factor) else residual
    if route.bias is None:
        return {route.name: matrix.reshape(route.shape)}
    return {route.name: matrix[:, :-1].reshape(route.shape), route.bias: matrix[:, -1]}


def _joined(route: Route, parameters: Mapping[str, Tensor]) -> Matrix:
    """Return a residual as a matrix, from those of its parameters."""
    matrix = parameters[route.name].reshape(route.matrix[0], -1)
    if route.bias is None:
        return matrix
    column = parameters.get(route.bias)
    return F.pad(matrix, (0, 1)) if column is None else torch.cat([matrix, column[:, None]], dim=1)
