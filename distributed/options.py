"""The options of `LowRank` and the hook, checked, and how parameters travel by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from rankdad.common.documents import validate
from rankdad.common.errors import UserError
from rankdad.common.gradients.layers import linear_layers
from rankdad.common.gradients.routes import Route
from rankdad.common.spec import Dad, RankDad
from rankdad.distributed.agreement import agree


def agreed_method(options: Mapping[str, object], model: nn.Module, group: dist.ProcessGroup | None) -> RankDad | Dad:
    """Return what the options ask for, at all ranks the same.

    Raises:
        UserError: an option is none at some rank, or the ranks disagree on one, or on the model.
    """
    problem, method = "", None
    try:
        method = _method_of(model, options)
    except UserError as error:
        problem = str(error)
    agree(options, model, group, problem)
    assert method is not None
    return method


def _method_of(model: nn.Module, options: Mapping[str, object]) -> RankDad | Dad:
    """Return what the options ask for.

    Raises:
        UserError: an option is none; or the model is none, is wrapped, is not yet whole, or has nothing to train.
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"model: got a {type(model).__name__}, expected a torch.nn.Module")
    if isinstance(model, DistributedDataParallel):
        raise UserError("the model is wrapped in DistributedDataParallel: pass model.module, or use low_rank_hook")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("the model has no parameter that is trained")
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in tensors.items():
        if is_lazy(tensor):
            raise UserError(f"{name} has no shape yet: run a batch through the model first")
        if tensor.is_complex() and tensor.requires_grad:
            raise UserError(f"{name} holds complex numbers, which do not travel, expected real ones")
    for name, value in options.items():
        if not isinstance(value, int | str | None) or (name == "gather_up_to" and not isinstance(value, int)):
            raise UserError(f"{name}: got {value!r}, a {type(value).__name__}, expected Python's own int or str")
    given = {name: options[name] for name in ("rank", "feedback", "wire")}
    if given["rank"] is None:
        return validate(Dad, {"name": "dad", "wire": given["wire"]})
    return validate(RankDad, {"name": "rank-dad", **given})


def precision_of(model: nn.Module) -> torch.dtype:
    """Return the precision in which gradients are reduced: that of the model, float32 at least."""
    parameters = model.parameters() if isinstance(model, nn.Module) else ()  # `agreed_method` refuses what is none
    wide = any(parameter.dtype == torch.float64 for parameter in parameters)
    return torch.float64 if wide else torch.float32


def choose_routes(model: nn.Module, method: RankDad | Dad) -> tuple[Route, ...]:
    """Choose how each trained parameter travels: as a factor, or dense where that is smaller.

    With feedback at both ends a layer's bias is a column of its factor, as in a run between sites.
    """
    layers, shapes = linear_layers(model), {n: p.shape for n, p in model.named_parameters() if p.requires_grad}
    routes: list[Route] = []
    for name, shape in shapes.items():
        dense = Route(name, tuple(shape))
        if isinstance(method, Dad):
            out, columns = dense.matrix
            rows = out * columns // (out + columns)  # with more of them the matrix is smaller
            routes.append(replace(dense, up=rows, down=rows) if name in layers and rows else dense)
            continue
        bias = layers[name][1] if name in layers and method.feedback == "both" else None
        route = Route(name, tuple(shape), bias, up=method.rank, down=method.rank)
        is_smaller = len(shape) > 1 and route.size(route.up, method.wire) < route.size(None, method.wire)
        routes.append(route if is_smaller else dense)
    folded = {route.folded for route in routes}
    return tuple(route for route in routes if route.name not in folded)
