"""A rank's state between steps, as a dictionary of tensors for `torch.save` and `torch.load(…, weights_only=True)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from rankdad.common.errors import UserError
from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.reduction.feedback import plus
from rankdad.common.lowrank.routes import Route
from rankdad.common.methods import MethodState

MOST_STEPS = 1 << 53  # the range of integers in float64


def identity(options: Mapping[str, object], group: dist.ProcessGroup | None) -> dict[str, object]:
    """Return what a checkpoint of this rank must match."""
    return {"rank": dist.get_rank(group), "ranks": dist.get_world_size(group), "options": dict(options)}


def check_identity(document: Any, own: Mapping[str, object]) -> int:
    """Return the number of steps in a checkpoint.

    Raises:
        UserError: it is of another rank, model or options; names the difference.
    """
    if not isinstance(document, Mapping):
        raise UserError(
            f"load_state_dict: got a {type(document).__name__}, expected what state_dict returned",
            code="checkpoint-malformed",
        )
    for name, value in own.items():
        found = document.get(name)
        if type(found) is not type(value) or found != value:
            remedy = '; or pass residuals="merge" or "drop"' if name in ("rank", "ranks") else ""
            raise UserError(
                f"load_state_dict: {name}: got {found!r}, expected {value!r}{remedy}",
                code="checkpoint-does-not-fit",
                field=name,
            )
    step = document.get("step")
    if type(step) is not int or not 0 <= step < MOST_STEPS:
        raise UserError(
            f"load_state_dict: step: got {step!r:.40}, expected a number of steps",
            code="checkpoint-malformed",
            field="step",
        )
    return step


def restored(
    document: Any, own: Mapping[str, object], residuals: str, routes: tuple[Route, ...], like: Tensor
) -> tuple[MethodState, MethodState, int]:
    """Return the states of a rank at a site and at a node, and the number of steps, from a checkpoint.

    Args:
        document: of the same rank; with residuals "drop" of any rank, with "merge" a list of all earlier ranks'.
        own: `identity` of this rank.
        residuals: "own", "merge" or "drop".
        routes: of the model's parameters.
        like: a tensor with the dtype and device of states.

    Raises:
        UserError: a part is missing, invalid, or of another model or options; or merged residuals have no place.
    """
    if residuals not in ("own", "merge", "drop"):
        problem = f'load_state_dict: residuals: got {residuals!r}, expected "own", "merge" or "drop"'
        raise UserError(problem, code="residuals-unknown", field="residuals")
    if residuals != "merge":
        step = check_identity(document, own if residuals == "own" else {"options": own["options"]})
        site, node = (loaded(document.get(part), routes, like) for part in ("site", "node"))
        return (site, node, step) if residuals == "own" else (MethodState({}, site.bases), MethodState(), step)
    documents = list(document) if isinstance(document, Sequence) else [document]
    steps = {check_identity(each, {"options": own["options"]}) for each in documents}
    if len(steps) > 1 or [each.get("rank") for each in documents] != list(range(documents[0].get("ranks", 0))):
        problem = f"load_state_dict: got {len(documents)} states, expected those of all {documents[0].get('ranks')}"
        problem += " earlier ranks in their order, of the same step"
        raise UserError(problem, code="checkpoint-incomplete", field="residuals")
    rank, ranks = int(str(own["rank"])), int(str(own["ranks"]))
    site = MethodState({}, loaded(documents[rank % len(documents)].get("site"), routes, like).bases)
    for each in documents[rank::ranks]:
        for part in ("site", "node"):
            kept = loaded(each.get(part), routes, like).residuals
            site = MethodState(plus(site.residuals, kept, 1.0), site.bases)
    where = documents[0]["options"]["feedback"]  # the same as this rank's
    if site.residuals and where not in ("site", "both"):
        problem = f'residuals: got "merge", but with feedback {where!r} no rank keeps its own: expected "drop"'
        raise UserError(problem, code="residuals-without-place", field="residuals")
    return site, MethodState(), steps.pop()


def saved(state: MethodState) -> dict[str, Any]:
    """Return a state as dictionaries of tensors; a residual is a matrix, or a pair of factors."""
    residuals = {name: (v.delta, v.activation) if isinstance(v, Factor) else v for name, v in state.residuals.items()}
    return {"residuals": residuals, "bases": dict(state.bases)}


def loaded(document: Any, routes: tuple[Route, ...], like: Tensor) -> MethodState:
    """Restore a state from `saved`.

    Args:
        document: from a checkpoint.
        routes: of the model's parameters.
        like: a tensor with the dtype and device of states.

    Raises:
        UserError: a part is missing, or its shape differs from the model's parameter.
    """
    shapes = {route.name: route.matrix for route in routes}
    try:
        residuals = {name: _matrix(name, value, shapes[name], like) for name, value in document["residuals"].items()}
        bases = {name: _rows(name, value, shapes[name][1], like) for name, value in document["bases"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"load_state_dict: expected what state_dict returned for this model: {error!r}", code="checkpoint-malformed"
        ) from None
    return MethodState(residuals, bases)


def fitted(state: MethodState, routes: tuple[Route, ...]) -> MethodState:
    """Return the part of a state for parameters with a route; residuals gain or lose the column of a bias."""
    widths = {route.name: route.matrix[1] for route in routes if not route.dense or route.name in state.residuals}
    residuals = {name: _as_wide(value, widths[name]) for name, value in state.residuals.items() if name in widths}
    bases = {name: _wide(rows, widths[name]) for name, rows in state.bases.items() if name in widths}
    return MethodState(residuals, bases)


def handed_over(site: MethodState, node: MethodState, owned: tuple[Route, ...]) -> MethodState:
    """Return a rank's state at a site, with the residuals of parameters that another rank owns now."""
    names = {route.name for route in owned}
    moved = {name: value for name, value in node.residuals.items() if name not in names}
    return MethodState(plus(site.residuals, moved, 1.0), site.bases)


def _as_wide(value: Matrix, width: int) -> Matrix:
    if isinstance(value, Tensor):
        return _wide(value, width)
    return Factor(value.delta, _wide(value.activation, width))


def _wide(rows: Tensor, width: int) -> Tensor:
    """Return rows without their last column, or with another column of zeros."""
    return rows if rows.shape[1] == width else F.pad(rows, (0, width - rows.shape[1]))


def _matrix(name: str, value: Any, shape: tuple[int, int], like: Tensor) -> Matrix:
    if isinstance(value, Tensor):
        if tuple(value.shape) != shape:
            raise _of_another(name, value, shape)
        return _numbers(name, value, like)
    delta, activation = (_rows(name, part, width, like) for part, width in zip(value, shape, strict=True))
    if len(delta) != len(activation):
        raise _of_another(name, activation, (len(delta), shape[1]))
    return Factor(delta, activation)


def _rows(name: str, value: Tensor, width: int, like: Tensor) -> Tensor:
    if value.dim() != 2 or value.shape[1] != width:
        raise _of_another(name, value, ("any", width))
    return _numbers(name, value, like)


def _numbers(name: str, value: Tensor, like: Tensor) -> Tensor:
    plain = value.layout == torch.strided and value.is_floating_point() and not value.is_meta
    if not plain or not bool(value.isfinite().all()):
        raise UserError(
            f"load_state_dict: {name} holds no numbers, or NaN or infinity, in the checkpoint",
            code="not-finite",
            field=name,
        )
    return value.detach().to(like)


def _of_another(name: str, value: Tensor, expected: tuple[object, ...]) -> UserError:
    return UserError(
        f"load_state_dict: {name} has {list(value.shape)} in the checkpoint, expected {list(expected)}",
        code="checkpoint-does-not-fit",
        field=name,
    )
