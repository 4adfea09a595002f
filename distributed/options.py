"""Checks the options of `LowRank` and the hook, and chooses the routes of parameters."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal, NamedTuple, SupportsFloat

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from rankdad.common.documents import validate
from rankdad.common.errors import UserError
from rankdad.common.lowrank.layers import has_hooks, linear_layers
from rankdad.common.lowrank.routes import Route, routed
from rankdad.common.meshes import Groups, Part, check_division, same_rows
from rankdad.common.methods.dad import Dad
from rankdad.common.methods.rank_dad import RankDad
from rankdad.common.protocol.routing import check_wire
from rankdad.distributed.agreement import agree

KINDS: Mapping[str, tuple[type, ...]] = {
    "feedback": (str,),
    "wire": (str,),
    "gather_up_to": (int,),
    "seed": (int,),
}  # of options; others are an int or None
MOST_WEIGHT = 1e300  # of a batch, so that sums are finite


def agreed_method(
    options: Mapping[str, object], model: nn.Module, groups: Groups, *, divided: bool = False
) -> RankDad | Dad:
    """Return the method of the options, after comparing them between all ranks.

    Args:
        options: by name.
        model: to train.
        groups: of the ranks.
        divided: whether parameters may be divided between ranks.

    Raises:
        UserError: an option is invalid at some rank, or the ranks disagree on one, or on the model.
    """
    problem: UserError | None = None
    method: RankDad | Dad | None = None
    try:
        method = method_of(model, options, divided=divided)
        if divided:
            check_division(model, groups.data)
    except UserError as error:
        problem = error
    agree(options, model, groups, problem)
    assert method is not None
    return method


def method_of(model: object, options: Mapping[str, object], *, divided: bool = False) -> RankDad | Dad:
    """Return the method of the options.

    Args:
        model: to train.
        options: by name.
        divided: whether parameters may be divided between ranks.

    Raises:
        UserError: an option is invalid; or the model is no module, is wrapped, is not whole, or has nothing to train.
    """
    if not isinstance(model, nn.Module):
        problem = f"model: got a {type(model).__name__}, expected a torch.nn.Module"
        raise UserError(problem, code="not-a-module", field="model")
    check_whole(model, divided=divided)
    try:
        linear_layers(model)
    except ValueError as error:
        raise UserError(f"a layer of the model: {error}", code="layout-unknown", field="low_rank_layout") from None
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("the model has no parameter that is trained", code="nothing-trained", field="model")
    for name, parameter in model.named_parameters():
        if parameter.is_complex() and parameter.requires_grad:
            problem = f"{name} holds complex numbers, which cannot be exchanged, expected real ones"
            raise UserError(problem, code="complex-parameter", field=name)
    for name, value in options.items():
        if isinstance(value, torch.dtype):
            problem = f'{name}: got {value}, expected its name: "{str(value).removeprefix("torch.")}"'
            raise UserError(problem, code="dtype-not-name", field=name)
        kinds = KINDS.get(name, (int, type(None)))
        if not isinstance(value, kinds) or isinstance(value, bool):
            expected = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
            problem = f"{name}: got {value!r}, a {type(value).__name__}, expected Python's own {expected}"
            raise UserError(problem, code="wrong-type", field=name)
        if name == "gather_up_to" and isinstance(value, int) and value < 1:
            problem = f"{name}: got {value}, expected at least 1"
            raise UserError(problem, code="gather-out-of-range", field=name)
    given = {name: options[name] for name in ("rank", "feedback", "wire")}
    hooked = [name for name, p in model.named_parameters() if p.requires_grad and has_hooks(p)]
    if hooked:
        check_wire(str(given["wire"]), hooked[0], "wire")
    if given["rank"] is None:
        if given["wire"] in ("int4", "int2"):
            problem = f"wire: got {given['wire']}, which needs feedback, but full factors (rank=None) have no residual"
            raise UserError(
                f"{problem}: expected int8 or a wider wire, or a rank", code="wire-needs-rank", field="wire"
            )
        return validate(Dad, {"name": "dad", "wire": given["wire"]})
    return validate(RankDad, {"name": "rank-dad", **given})


def check_batch(loss: object, weight: object, total: float | None) -> None:
    """Check a batch's loss and weight.

    Raises:
        UserError: a number is out of range, or the loss is missing.
    """
    if not isinstance(weight, SupportsFloat) or not 0 <= float(weight) <= MOST_WEIGHT:
        problem = f"weight: got {weight!r}, expected a number of at least 0, at most {MOST_WEIGHT:g}"
        raise UserError(problem, code="weight-out-of-range", field="weight")
    if not (loss is None or isinstance(loss, Tensor) or callable(loss)):
        problem = f"loss: got a {type(loss).__name__}, expected a tensor with its graph, not loss.item()"
        raise UserError(problem, code="wrong-type", field="loss")
    if weight and loss is None:
        problem = f"loss: got None, expected a loss, or weight=0 instead of {float(weight):g}"
        raise UserError(problem, code="loss-missing", field="loss")
    if weight and isinstance(loss, Tensor) and loss.numel() != 1:
        problem = f"loss: got a tensor of shape {tuple(loss.shape)}, expected one number: take its mean"
        raise UserError(problem, code="loss-not-scalar", field="loss")
    if total is not None and not 0 < total <= MOST_WEIGHT:
        problem = f"total: got {total!r}, expected a number above 0, at most {MOST_WEIGHT:g}"
        raise UserError(problem, code="total-out-of-range", field="total")


def check_whole(model: nn.Module, *, divided: bool = False) -> None:
    """Check that every rank has a model's whole parameters and computes their gradients.

    Args:
        model: to train.
        divided: whether parameters may be distributed tensors.

    Raises:
        UserError: a part is wrapped, sharded, on the meta device, or has no shape yet; names it.
    """
    for name, module in model.named_modules():
        place = name or "the model"
        if isinstance(module, DistributedDataParallel):
            problem = f"{place} is wrapped in DistributedDataParallel: pass and call model.module, or use low_rank_hook"
            raise UserError(problem, code="model-wrapped", field=name)
        if isinstance(module, FullyShardedDataParallel):
            problem = f"{place} is sharded by FullyShardedDataParallel: use fully_shard, with LowRank"
            raise UserError(problem, code="model-sharded", field=name)
        if isinstance(module, FSDPModule) and not divided:
            problem = f"{place} is sharded by fully_shard: expected a model that every rank has whole, or use LowRank"
            raise UserError(problem, code="model-sharded", field=name)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if isinstance(tensor, DTensor) and not divided:
            problem = (
                f"{name} is a DTensor, sharded between ranks: expected a whole model at every rank, or use LowRank"
            )
            raise UserError(problem, code="model-sharded", field=name)
        if is_lazy(tensor):
            problem = f"{name} has no shape yet: run a batch through the model first"
            raise UserError(problem, code="parameter-without-shape", field=name)
        if tensor.is_meta:
            problem = f"{name} is on the meta device, without numbers: use model.to_empty and load its weights"
            raise UserError(problem, code="model-on-meta", field=name)


def feedback_of(given: object, kinds: Mapping[bool, str]) -> object:
    """Return the name of a feedback option given as a name, True or False."""
    return kinds[given] if isinstance(given, bool) else given


def wire_of(wire: str | None, rank: object, precision: torch.dtype) -> str:
    """Return the number format: without a given one int8, and of full factors, which have no residual, the model's."""
    return wire or (str(precision).removeprefix("torch.") if rank is None else "int8")


def precision_of(model: nn.Module) -> torch.dtype:
    """Return the dtype of reductions: the model's, at least float32."""
    parameters = model.parameters() if isinstance(model, nn.Module) else ()  # `agreed_method` refuses others
    wide = any(parameter.dtype == torch.float64 for parameter in parameters)
    return torch.float64 if wide else torch.float32


def sparse_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trained parameters with sparse gradients: those of untied embeddings with `sparse=True`."""
    named = dict(model.named_parameters(remove_duplicate=False))
    sparse = {
        module.weight
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad
    }
    once = {p for p in sparse if sum(p is other for other in named.values()) == 1}
    return {name: parameter for name, parameter in named.items() if parameter in once}


def choose_routes(
    model: nn.Module,
    method: RankDad | Dad,
    without: Collection[str] = (),
    parts: Mapping[str, Part] = MappingProxyType({}),
) -> tuple[Route, ...]:
    """Choose a route for each trained parameter: as a factor, or dense if that is smaller or there is a hook.

    With feedback at both ends, a layer's bias is a column of its factor, as in a run between sites.

    Args:
        model: to train.
        method: of the ranks.
        without: names of parameters without a route.
        parts: this rank's parts of the parameters, if they are divided.
    """
    layers = linear_layers(model)
    for name, (layer, bias) in layers.items():
        if bias is not None and not same_rows(layer.weight, layer.bias):
            layers[name] = layer, None

    def route(name: str, parameter: nn.Parameter) -> Route:
        dense = Route(name, tuple(parts[name].shape if name in parts else parameter.shape))
        if (
            has_hooks(parameter) or parameter.dim() < 2
        ):  # what a hook has made, such as a mask's zeros, no reduction keeps
            return dense
        if isinstance(method, RankDad):
            return method.route(dense, layers[name][1] if name in layers else None, None, 1)
        out, columns = dense.matrix
        rows = out * columns // (out + columns)  # with more rows, the matrix is smaller
        return replace(dense, up=rows, down=rows) if name in layers and rows else dense

    trained = model.named_parameters()
    return routed(route(name, p) for name, p in trained if p.requires_grad and name not in without)


class Travels(NamedTuple):
    """The route of one parameter's gradient.

    Args:
        name: of the parameter, and of a bias that is a column of its matrix.
        shape: of the parameter.
        how: "factor" of a layer's rows, "reduced" from its dense gradient, "dense", or "sparse" rows.
        rows: of a factor, at most; None for others.
        bytes: of one rank's part of a step, at most; None for sparse rows.
    """

    name: str
    shape: tuple[int, ...]
    how: Literal["factor", "reduced", "dense", "sparse"]
    rows: int | None
    bytes: int | None


def travels(
    model: nn.Module, routes: tuple[Route, ...], wire: str, sparse: Collection[str], captured: Collection[str] = ()
) -> list[Travels]:
    """Return the routes of a model's trained parameters; captured layers send their own rows."""
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    found = list[Travels]()
    for route in routes:
        how: Literal["factor", "reduced", "dense"] = "factor" if route.name in captured else "reduced"
        name, size = " + ".join(route.names), route.size(route.up, wire)
        found.append(Travels(name, route.shape, "dense" if route.up is None else how, route.up, size))
    return found + [Travels(name, shapes[name], "sparse", None, None) for name in sparse]


def warn_if_dense(routes: tuple[Route, ...], method: RankDad | Dad) -> None:
    """Warn of a rank that makes no matrix smaller."""
    if isinstance(method, RankDad) and all(route.dense for route in routes):
        warnings.warn(f"rank {method.rank} makes no layer smaller: all gradients are dense", stacklevel=3)
