"""Checkpoints of a LowRank that another mesh, or another number of ranks, can read (torch.distributed.checkpoint).

Every rank writes its residuals under its number among the data-parallel ranks, in the shapes of parameters: parts of
tensor parallel are DTensors, which torch divides anew. All residuals of a parameter add up to what no step has applied
yet, so fewer ranks take those of several, and more ranks begin without.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from rankdad.common.errors import UserError
from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.routes import Route
from rankdad.common.methods import MethodState
from rankdad.distributed.meshes import Part, local, wrapped

STEP, OPTIONS = "step", "options"
LAYOUT = ("gather_up_to",)  # options that may change


def written(
    step: int,
    options: Mapping[str, object],
    states: tuple[MethodState, MethodState],
    place: int,
    routes: tuple[Route, ...],
    parts: Mapping[str, Part],
) -> dict[str, Tensor]:
    """Return this rank's tensors of a checkpoint, by key.

    Args:
        step: number of steps.
        options: of the LowRank.
        states: of this rank as a site and as a node.
        place: of this rank among those with different batches.
        routes: of the parameters.
        parts: this rank's parts of them.
    """
    described = json.dumps({name: value for name, value in sorted(options.items()) if name not in LAYOUT}).encode()
    found = {STEP: torch.tensor(step), OPTIONS: torch.frombuffer(bytearray(described), dtype=torch.uint8)}
    for route in routes:
        kept = [matrix for state in states if (matrix := state.residuals.get(route.name)) is not None]
        if kept:
            matrix = sum(map(_matrix, kept[1:]), _matrix(kept[0]))
            for name, value in _split(route, matrix).items():
                found[f"residuals/{place}/{name}"] = _like_passes(value, parts[name])
        if not place and (rows := states[0].bases.get(route.name)) is not None:
            found[_basis(route, parts)] = rows
    return found


def blank(
    folder: Path, place: int, places: int, routes: tuple[Route, ...], parts: Mapping[str, Part], like: Tensor
) -> dict[str, Tensor]:
    """Return tensors to fill from a checkpoint at this rank, by key; arguments as for `written`.

    Raises:
        UserError: there is no such checkpoint, or it is of another model.
    """
    try:
        known = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    except (OSError, EOFError) as error:
        problem = f"{folder}: no checkpoint of LowRank.save that this rank can read ({error})"
        raise UserError(problem, code="checkpoint-unreadable") from None
    sizes = {key: tuple(each.size) for key, each in known.items() if isinstance(each, TensorStorageMetadata)}
    if not {STEP, OPTIONS} <= sizes.keys():
        raise UserError(f"{folder}: got another checkpoint, expected one of LowRank.save", code="checkpoint-malformed")
    found: dict[str, Tensor] = {STEP: torch.tensor(0), OPTIONS: torch.empty(sizes[OPTIONS], dtype=torch.uint8)}
    for key in sizes:
        kind, _, rest = key.partition("/")
        where, _, name = rest.partition("/")
        if kind == "residuals" and int(where) % places == place and name in parts:
            part = parts[name]
            if sizes[key] != tuple(part.whole.shape):
                problem = f"{folder}: {name} has {list(sizes[key])}, expected {list(part.whole.shape)}"
                raise UserError(problem, code="checkpoint-does-not-fit", field=name)
            found[key] = _like_passes(like.new_zeros(part.shape), part)
    for route in routes:
        key = _basis(route, parts)
        if key in sizes and sizes[key][1] == route.matrix[1]:
            found[key] = like.new_zeros(sizes[key])
    return found


def restored(
    tensors: Mapping[str, Tensor], options: Mapping[str, object], routes: tuple[Route, ...], parts: Mapping[str, Part]
) -> tuple[int, MethodState]:
    """Return the number of steps and this rank's state from filled tensors.

    Raises:
        UserError: the checkpoint is of other options, or holds NaN or infinity.
    """
    found = json.loads(bytes(tensors[OPTIONS].tolist()))
    for name, value in found.items():
        if options.get(name) != value:
            problem = f"load: {name}: got {value!r} in the checkpoint, expected {options.get(name)!r}"
            raise UserError(problem, code="checkpoint-does-not-fit", field=name)
    sums = dict[str, Tensor]()
    for key, value in tensors.items():
        if not bool(torch.isfinite(local(value)).all()):
            raise UserError(f"load: {key} holds NaN or infinity", code="not-finite", field=key)
        if key.startswith("residuals/"):
            name = key.split("/", 2)[2]
            sums[name] = sums[name] + local(value) if name in sums else local(value)
    residuals, bases = dict[str, Matrix](), dict[str, Tensor]()
    for route in routes:
        key = _basis(route, parts)
        if key in tensors:
            bases[route.name] = tensors[key]
        if route.name in sums:
            matrix = sums[route.name].reshape(route.matrix[0], -1)
            if route.bias is not None:
                column = sums.get(route.bias)
                matrix = F.pad(matrix, (0, 1)) if column is None else torch.cat([matrix, column[:, None]], dim=1)
            residuals[route.name] = matrix
    return int(tensors[STEP]), MethodState(residuals, bases)


def _basis(route: Route, parts: Mapping[str, Part]) -> str:
    """Return the key of a parameter's directions, which are those of one division of it."""
    whole, seat = parts[route.name].whole, "whole"
    if isinstance(whole, DTensor):
        mesh = whole.device_mesh
        seat = ".".join(f"{mesh.get_local_rank(dim)}-{mesh.size(dim)}" for dim in range(mesh.ndim))
    return f"bases/{seat}/{route.name}"


def _matrix(value: Matrix) -> Tensor:
    return value.gradient() if isinstance(value, Factor) else value


def _split(route: Route, matrix: Tensor) -> dict[str, Tensor]:
    """Return a matrix by parameter, in their shapes."""
    if route.bias is None:
        return {route.name: matrix.reshape(route.shape)}
    return {route.name: matrix[:, :-1].reshape(route.shape), route.bias: matrix[:, -1]}


def _like_passes(value: Tensor, part: Part) -> Tensor:
    """Return a tensor of this rank as a DTensor if the parameter in passes is one."""
    return wrapped(value.contiguous(), cast(Tensor, part.whole))
