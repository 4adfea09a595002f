"""A communication hook for DistributedDataParallel: an exchange for each bucket, during the backward pass."""

# No postponed annotations: DistributedDataParallel compares the hook's with its own.

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.amp.grad_scaler import GradScaler
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from rankdad.common.errors import UserError
from rankdad.common.lowrank.factors import Factor, Matrix
from rankdad.common.lowrank.reduction.block import block
from rankdad.common.lowrank.reduction.feedback import minus_matrix
from rankdad.common.lowrank.routes import Route
from rankdad.common.lowrank.wire import is_lossless
from rankdad.common.meshes import Groups
from rankdad.common.methods import Method, MethodState
from rankdad.common.methods.base import all_received
from rankdad.common.methods.dad import Dad
from rankdad.common.methods.rank_dad import (
    COLD_ITERATIONS,
    LAST_CHANCE_ITERATIONS,
    WARM_ITERATIONS,
    RankDad,
    RankDadMethod,
)
from rankdad.common.seeds import derive
from rankdad.distributed.agreement import as_rankdad_error, check_group, explain, reaching
from rankdad.distributed.checkpoint import identity, restored, saved
from rankdad.distributed.exchange import GATHER_UP_TO, Begun, Exact, Gathering, Node, Owners, exchange_of, owners_of
from rankdad.distributed.messages import OVERFLOWS, Layout, Message, Status, joined
from rankdad.distributed.options import (
    Travels,
    agreed_method,
    choose_routes,
    feedback_of,
    method_of,
    precision_of,
    sparse_parameters,
    travels,
    warn_if_dense,
    wire_of,
)
from rankdad.distributed.watching import Reached, Watch

FEEDBACK = {True: "site", False: "none"}
MORE_DIRECTIONS = 4  # tracked from step to step, in addition to those sent


class LowRankState:
    """The state of `low_rank_hook` between steps.

    All ranks create one of the same model with the same options, before or after the process group: without one, the
    ranks compare them in the first backward pass.

    Args:
        model: to train, wrapped in DistributedDataParallel or not, whole at every rank.
        rank: rows of a factor to send. If this makes no matrix smaller, all gradients are dense, with a warning.
        feedback: whether residuals are added to the next step's gradient; True is "site", False "none".
        wire: number format, as for LowRank.
        group: DistributedDataParallel's process group; None for the default one.
        gather_up_to: up to this many ranks gather all rows; of more, each reduces some parameters, as with LowRank.
        seed: of random directions.
        scaler: the GradScaler of the loss, if any: residuals are then kept unscaled.

    Raises:
        UserError: an option is invalid, the model is not whole, or the ranks disagree on the model or an option.

    Example:
        >>> ddp = DistributedDataParallel(model)
        >>> ddp.register_comm_hook(LowRankState(model), low_rank_hook)
    """

    def __init__(
        self,
        model: nn.Module,
        rank: int = 8,
        feedback: bool | str = True,
        wire: str | None = None,
        group: dist.ProcessGroup | None = None,
        *,
        gather_up_to: int = GATHER_UP_TO,
        seed: int = 0,
        scaler: GradScaler | None = None,
    ) -> None:
        self._model = model.module if isinstance(model, DistributedDataParallel) else model
        self._precision = precision_of(self._model)
        where = feedback_of(feedback, FEEDBACK)
        self._options: dict[str, object] = {
            "rank": rank,
            "feedback": where,
            "wire": wire_of(wire, rank, self._precision),
            "gather_up_to": gather_up_to,
            "seed": seed,
        }
        self._gather_up_to = gather_up_to
        self._group, self._scaler = group, scaler
        self._residuals = dict[str, Tensor]()  # unscaled; changed in place
        self._bases = dict[str, Tensor]()
        self._node_state = MethodState()
        self._step, self._ready = 0, False
        self._exchanges = dict[tuple[str, ...], Gathering | Owners]()  # of buckets, by their parameters
        self._begun: list[Begun] = []  # in this step
        self._failure: Exception | None = None
        if group is not None or (dist.is_available() and dist.is_initialized()):
            self._begin()
        else:
            self._checked(method_of(self._model, self._options))

    def _checked(self, method: RankDad | Dad) -> RankDad:
        """Return the method of the options.

        Raises:
            UserError: the hook does not support it.
        """
        if not isinstance(method, RankDad):
            problem = "rank: got None, expected a number: DistributedDataParallel without a hook is exact"
            raise UserError(problem, code="method-needs-rank", field="rank")
        if self._options["feedback"] not in FEEDBACK.values():
            problem = f'feedback: got {self._options["feedback"]!r}, expected True or "site", or False or "none"'
            raise UserError(f"{problem}: only ranks reduce here", code="feedback-unknown", field="feedback")
        return method

    def _begin(self) -> None:
        """Compare options and model with the other ranks, once there is a process group."""
        if self._ready:
            return
        check_group(self._group)
        self._method = self._checked(agreed_method(self._options, self._model, Groups(self._group)))
        self._place, self._places = dist.get_rank(self._group), dist.get_world_size(self._group)
        parameters = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        self._reached = Reached(parameters)
        self._watch = Watch(self._model, "LowRankState")
        self._names = {parameter: name for name, parameter in parameters.items()}
        self._routes = {route.name: route for route in choose_routes(self._model, self._method)}
        self._like = torch.zeros((), dtype=self._precision, device=next(iter(parameters.values())).device)
        gathers = self._places <= self._gather_up_to
        self._owners = None if gathers else owners_of(tuple(self._routes.values()), self._method.wire, self._places)
        warn_if_dense(tuple(self._routes.values()), self._method)
        self._ready = True

    def reduce(self, bucket: GradBucket) -> Future[Tensor]:
        """Average a bucket; see `low_rank_hook`."""
        self._begin()
        if not bucket.index():
            self._begun, self._failure = [], None
        sparse = bucket.buffer().layout != torch.strided
        group = dist.group.WORLD if self._group is None else self._group
        assert group is not None
        averaging = allreduce_hook(group, bucket) if sparse else self._begin_bucket(bucket)
        if bucket.is_last():
            self._reached.names.clear()
            self._finish()
            self._step += 1
        return averaging

    def _check_model(self, bucket: GradBucket) -> None:
        """Check that DistributedDataParallel still reduces exactly the trained parameters.

        Raises:
            UserError: a parameter was replaced, unfrozen or given a hook since the state was made; names it.
        """
        if bucket.index() or not self._watch.changed():
            return
        for name in self._watch.unfrozen():
            problem = f"{name} was unfrozen after the LowRankState was made, and DistributedDataParallel leaves it out"
            raise UserError(f"{problem}: wrap the model again, and make a new state", code="unfrozen", field=name)
        for name in self._watch.hooked():
            problem = f"{name} has a hook on its gradient that was added after the LowRankState was made"
            raise UserError(f"{problem}: make a new state after hooks", code="hooked-late", field=name)

    def _begin_bucket(self, bucket: GradBucket) -> Future[Tensor]:
        """Reduce a bucket and start its exchange."""
        names = [self._names.get(parameter) for parameter in bucket.parameters()]
        if None in names:
            raise UserError(
                "low_rank_hook: the LowRankState belongs to another model than DistributedDataParallel, or other "
                "parameters were trained then: make it of the same model, after freezing",
                code="another-model",
            )
        exchange = self._exchange(tuple(name for name in names if name is not None))
        routes = exchange.layout.routes
        scale = 1.0 if self._scaler is None else self._scaler.get_scale()
        seed = derive(str(self._options["seed"]), "hook", self._step, self._place)
        meant, found, sent = list[Tensor](), list[Matrix](), tuple[Matrix, ...]()
        with self._as_it_is():
            try:
                self._check_model(bucket)
                meant = [
                    self._meant(each.reshape(route.matrix), route, scale)
                    for each, route in zip(bucket.gradients(), routes, strict=True)
                ]
                found = [
                    self._components(value, route, derive(seed, route.name))
                    for value, route in zip(meant, routes, strict=True)
                ]
                sent = tuple(v.leading(self._method.rank) if isinstance(v, Factor) else v for v in found)
                data = exchange.pack(Message(Status.FINE, 1.0, sent, frozenset(self._reached.names)))
            except OVERFLOWS:
                data = exchange.pack(Message(Status.OVERFLOW, 1.0))
            except Exception as error:  # such as out of memory: raised when all ranks know
                data = exchange.pack(Message(self._failed(error), 1.0))
        work, received = exchange.begin(data)
        device = bucket.buffer().device
        averaging: Future[Tensor] = Future(devices=[] if device.type == "cpu" else [device])
        begun = Begun(
            bucket.buffer(), bucket.gradients(), exchange, scale, meant, found, sent, work, received, averaging
        )
        self._begun.append(begun)
        return averaging

    def _exchange(self, names: tuple[str, ...]) -> Gathering | Owners:
        """Return the exchange of a bucket with these parameters."""
        if names not in self._exchanges:
            routes = tuple(self._routes[name] for name in names)
            layout = Layout(routes, self._method.wire, self._like, bounded=True)
            self._exchanges[names] = exchange_of(layout, self._owners, self._group)
        return self._exchanges[names]

    def _failed(self, error: Exception) -> Status:
        self._failure = self._failure or error
        return Status.FAILED

    def _finish(self) -> None:
        """End a step's exchanges, which no computation overlaps, and write the averages.

        Raises:
            RankdadError: a rank has ended or failed, possibly this one.
        """
        begun, self._begun = self._begun, []
        if not begun:
            return
        for each in begun:
            with reaching("a step's exchange"):
                each.work.wait()
        with self._as_it_is():
            whole = self._exchange(tuple(route.name for each in begun for route in each.exchange.layout.routes))
            messages = ([each.exchange.own.unpack(data) for data in each.received] for each in begun)
            parts = [joined(of_rank) for of_rank in zip(*messages, strict=True)]
            update, node_state = whole.ended(parts, self._node(whole))
            if update.status == Status.FAILED:
                failure, self._failure = self._failure, None
                told = explain(as_rankdad_error(failure) if failure else None, Groups(self._group))
                problem = failure or told
                assert problem is not None
                raise problem
            if update.status == Status.FINE:  # DistributedDataParallel drops averages of unused parameters
                self._node_state = node_state.but(self._node_state, self._routes.keys() - update.used)
            values = iter(update.payload)
            for each in begun:
                self._write(each, [next(values) for _ in each.meant] if update.payload else None, update.used)

    def _node(self, exchange: Gathering | Owners) -> Node:
        """Return this rank's part in combining all ranks' rows."""
        method: Method = Exact()
        if isinstance(exchange, Owners):
            feedback = "none" if self._method.feedback == "none" else "aggregator"
            method = RankDadMethod(self._method.model_copy(update={"feedback": feedback}), exchange.own.routes)
        return Node(
            method, self._node_state, derive(str(self._options["seed"]), "hook", self._step, "node"), self._failed
        )

    def _write(self, begun: Begun, update: Sequence[Matrix] | None, used: frozenset[str]) -> None:
        """Write a bucket's average, or NaN if there is none, and keep what this rank has not sent."""
        if update is None:
            begun.buffer.fill_(math.nan)
        else:
            self._keep(begun, used)
            for each, mean, value in zip(begun.gradients, begun.meant, update, strict=True):
                if isinstance(value, Factor):
                    torch.mm(value.delta.T.mul(begun.scale), value.activation, out=mean)
                else:
                    torch.mul(value, begun.scale, out=mean)
                if mean.data_ptr() != each.data_ptr():
                    each.copy_(mean.view_as(each))
        begun.averaging.set_result(begun.buffer)

    @contextmanager
    def _as_it_is(self) -> Iterator[None]:
        """Disable autocast."""
        with torch.no_grad(), torch.autocast(self._like.device.type, enabled=False):
            yield

    def _meant(self, gradient: Tensor, route: Route, scale: float) -> Tensor:
        """Return gradient plus residual, in the bucket's memory if its precision suffices."""
        meant = gradient.to(self._like)
        if scale != 1:
            meant.div_(scale)
        residual = self._residuals.get(route.name)
        return meant if residual is None else meant.add_(residual, alpha=self._places)

    def _components(self, meant: Tensor, route: Route, seed: int) -> Matrix:
        """Return the leading components, those to send first; the matrix, if it is sent whole.

        Further directions are kept, so that the next step starts without another product.
        """
        if route.up is None:
            return meant
        basis = self._bases.get(route.name)
        warm = WARM_ITERATIONS if self._method.feedback == "site" else LAST_CHANCE_ITERATIONS
        iterations = warm if basis is not None and len(basis) else COLD_ITERATIONS
        return block(meant, route.up + MORE_DIRECTIONS, basis=basis, seed=seed, iterations=iterations, oversampling=0)

    def _keep(self, begun: Begun, used: frozenset[str]) -> None:
        """Store the residuals (this rank's intended minus decoded gradient) and directions of used parameters."""
        share, keeps = 1 / self._places, self._method.feedback != "none"
        rounds = keeps and not is_lossless(self._method.wire, self._like.dtype)
        decoded = all_received(begun.sent, self._method.wire) if rounds else begun.sent
        parts = zip(begun.exchange.layout.routes, begun.meant, begun.found, decoded, strict=True)
        for route, whole, value, part in parts:
            if route.name not in used:
                continue
            if isinstance(value, Factor):
                self._bases[route.name] = value.activation
            if keeps and (route.up is not None or rounds):
                self._residuals[route.name] = minus_matrix(whole, part, share, out=self._residuals.get(route.name))

    def describe(self) -> list[Travels]:
        """Return how each parameter's gradient is sent, reduced or dense, and its bytes.

        Raises:
            UserError: there is no process group yet.
        """
        self._begin()
        sparse = sparse_parameters(self._model)
        routes = tuple(route for name, route in self._routes.items() if name not in sparse)
        return travels(self._model, routes, self._method.wire, sparse)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part of a checkpoint: residuals, directions and the number of steps.

        Raises:
            UserError: there is no process group yet.
        """
        self._begin()
        residuals = {name: residual.clone() for name, residual in self._residuals.items()}
        site, node = saved(MethodState(residuals, self._bases)), saved(self._node_state)
        return {**identity(self._options, self._group), "step": self._step, "site": site, "node": node}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], residuals: str = "own") -> None:
        """Restore this rank's part of a checkpoint; arguments as for LowRank.

        Raises:
            UserError: it is of another rank, number of ranks, model or options; or there is no process group yet.
        """
        self._begin()
        own, routes = identity(self._options, self._group), tuple(self._routes.values())
        kept, self._node_state, self._step = restored(state, own, residuals, routes, self._like)
        whole = {n: v.gradient() if isinstance(v, Factor) else v for n, v in kept.residuals.items()}
        self._residuals = {name: value.clone() for name, value in whole.items()}
        self._bases = dict(kept.bases)


def low_rank_hook(state: LowRankState, bucket: GradBucket) -> Future[Tensor]:
    """Average a bucket's gradients over all ranks, with each rank's matrices reduced to the state's rank.

    Let G be a rank's gradient of a matrix (convolutions and embeddings as [first axis, all others]), and E its
    residual, 0 at the start. Each rank sends R, the leading components of G + E from one step of orthogonal iteration
    (`common.lowrank.reduction.block`), started from its last directions, four more than it sends. It keeps G + E - R,
    rounding of the wire included. With two ranks, or up to `gather_up_to`, every rank applies the mean of all R, of at
    most S times the rank. With more, each matrix has an owner, which reduces that mean to the rank once more and keeps
    what this leaves out: no rank sends more bytes than in PowerSGD's all-reduces. Vectors, and matrices that factors
    would not make smaller, are averaged densely. The mean is over ranks, as in DistributedDataParallel, independent of
    batch sizes.

    The exchange of a bucket starts when the backward pass has filled it, and overlaps with the rest; owners answer
    after the last bucket. PowerSGD approximates the sum of all gradients instead, in two exchanges that depend on each
    other. There is no warm-up: residuals belong to parameters, not to buckets, which change after the first step.

    If a gradient is NaN or infinite at one rank, all are NaN at all ranks, and E does not change; a GradScaler then
    skips the step. Other errors, such as out of memory, are raised at their rank, and named at all others after the
    step's last bucket; so is a rank that has ended. To continue after an error, wrap the model again:
    DistributedDataParallel takes no further step. The state may stay.

    What no rank has used in a step keeps its residual. A parameter with a hook on its gradient is sent as the hook
    leaves it, unreduced. Sparse gradients stay sparse, and are averaged as without this hook.

    Args:
        state: the same object in every step.
        bucket: of DistributedDataParallel.

    Returns:
        The bucket's averaged gradients.

    Raises:
        UserError: the state belongs to another model, or the model has changed since.
        RankdadError: a rank failed or has ended.
    """
    if not isinstance(state, LowRankState):
        raise UserError(f"state: got {state!r}, expected a LowRankState", code="wrong-type", field="state")
    return state.reduce(bucket)
