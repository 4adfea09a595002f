"""`LowRank`: backward passes that yield the gradient over all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.device_mesh import DeviceMesh

from rankdad.common.errors import RankdadError, UserError
from rankdad.common.meshes import Division, agreed, check_division, groups_of
from rankdad.common.methods import Method, MethodState
from rankdad.common.methods.dad import Dad
from rankdad.common.methods.rank_dad import RankDad, RankDadMethod
from rankdad.common.seeds import derive
from rankdad.distributed.agreement import Sums, as_rankdad_error, check_group, explain, reaching
from rankdad.distributed.batches import Batches, add_gradients
from rankdad.distributed.checkpoint import fitted, handed_over, identity, restored, saved
from rankdad.distributed.exchange import GATHER_UP_TO, Exact, Node, exchange_of, owners_of
from rankdad.distributed.messages import OVERFLOWS, Layout, Message, Status
from rankdad.distributed.options import (
    Travels,
    agreed_method,
    check_batch,
    choose_routes,
    feedback_of,
    precision_of,
    sparse_parameters,
    travels,
    warn_if_dense,
    wire_of,
)
from rankdad.distributed.portable import Seat, read, write
from rankdad.distributed.sparse_rows import add_sparse, infinite_row, shared, summed
from rankdad.distributed.watching import Outer, PlainBackward, Watch

FEEDBACK = {True: "both", False: "none"}


class LowRank:
    """Low-rank gradients in a custom training loop: `backward(loss)` replaces `loss.backward()`.

    Every rank of a process group trains the same model on its own batches. `backward` captures the factors of each
    linear layer, reduces them to `rank` rows, exchanges and sums these, and leaves the same gradients in `.grad` at
    every rank, bit for bit. Other matrices (convolutions, embeddings, recurrent layers) are reduced from their dense
    gradients; vectors, and matrices that a factor would not make smaller, are sent whole. The rest of the loop does not
    change: optimizer, schedule, clipping, autocast.

    A parameter with a hook on its gradient travels as the hook leaves it, unreduced. The rows of sparse embeddings
    travel unreduced, too, in full precision. Where no rank used a parameter, its `.grad` stays as it was. Parameters
    that are frozen or unfrozen, and hooks that come or go, are followed from step to step, if they are so at all ranks.
    A plain `loss.backward()` of the model is warned of (`plain-backward`): it exchanges nothing.

    All ranks create a LowRank of the same model at the same point. They start from the weights and buffers of rank 0,
    as with DistributedDataParallel. Buffers, such as a batch norm's statistics, are then each rank's own.

    Args:
        model: the module itself, not wrapped; `fully_shard` and `parallelize_module` may divide it, before or after.
            It has hooks on its linear layers until `close`, or until this object is garbage-collected.
        rank: rows of a factor to send; None sends full factors (dAD): the gradients equal those of the pooled batch.
            If this makes no matrix smaller, all gradients are dense, with a warning.
        feedback: where residuals are kept for the next step: "site" for each rank, "aggregator" for the reductions of
            owners, "both" or True, "none" or False.
        wire: number format: float32, float64, bfloat16, float16, int8, and with a rank and feedback int4 or int2; None
            for int8, or with `rank=None` the model's precision, float32 or float64.
        group: the ranks with different batches, as process group or DeviceMesh; None for all ranks.
        gather_up_to: up to this many ranks gather all rows. Of more, each rank reduces all ranks' rows of some
            parameters once more, so that the bytes of a rank stay bounded (`distributed.exchange`).
        seed: of random directions.

    Raises:
        UserError: there is no process group, the model is wrapped, or an option is invalid.
        RankdadError: the ranks disagree on the model or an option, or cannot be reached.

    Example:
        >>> with LowRank(model) as sync:
        ...     for inputs, labels in loader:
        ...         optimizer.zero_grad()
        ...         sync.backward(F.cross_entropy(model(inputs), labels), weight=len(labels))
        ...         optimizer.step()

    Source: arXiv 2102.09631, Algorithm 1, with every rank as a site and as the aggregator.
    """

    def __init__(
        self,
        model: nn.Module,
        rank: int | None = 8,
        feedback: str | bool = "both",
        wire: str | None = None,
        group: dist.ProcessGroup | DeviceMesh | None = None,
        *,
        gather_up_to: int = GATHER_UP_TO,
        seed: int = 0,
    ) -> None:
        check_group(None)
        self._given, self._groups = group, groups_of(model, group)
        check_group(self._groups.data)
        self._model, self._precision, self._gather_up_to = model, precision_of(model), gather_up_to
        self._options: dict[str, object] = {
            "rank": rank,
            "feedback": feedback_of(feedback, FEEDBACK),
            "wire": wire_of(wire, rank, self._precision),
            "gather_up_to": gather_up_to,
            "seed": seed,
        }
        method = agreed_method(self._options, model, self._groups, divided=True)
        self._group = group = self._groups.data
        with torch.no_grad(), reaching("the broadcast of rank 0's weights"):
            self._division = Division(model, group, start=True)
        self._place, self._places = dist.get_rank(group), dist.get_world_size(group)
        self._state, self._node_state, self._step = MethodState(), MethodState(), 0
        self._plain, self._outer = PlainBackward(), Outer(model)
        self._prepare(method)
        warn_if_dense(self._layout.routes, method)
        self._batches = Batches(model, self._layout.routes, self._division, reduced=self._layout.bounded)
        self._problem: RankdadError | None = None  # for the next exchange
        self._cause: Exception | None = None
        self._changed = self._closed = False

    def __enter__(self) -> LowRank:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        return f"LowRank({options}, ranks={self._places}{', closed' * self._closed})"

    def backward(
        self,
        loss: Tensor | Callable[[], object] | None,
        weight: float = 1.0,
        *,
        total: float | None = None,
        exchange: bool = True,
        scaler: GradScaler | None = None,
        retain_graph: bool = False,
    ) -> None:
        """Add the gradient of all ranks' weighted mean loss to `.grad`, the same at every rank.

        Args:
            loss: mean over this rank's batch; ignored if the weight is 0. Or a function that runs passes, such as a
                pipeline's schedule, and scales losses itself; layers are then reduced from their whole gradients.
            weight: of the batch, such as its number of samples. A rank without samples calls this with weight 0. Where
                the model is divided it still passes a loss, because the other ranks' passes wait for its own.
            total: weight of all batches, if losses are sums over batches: `.grad` is then the sum of all gradients,
                divided by this number. For experts, whose gradients are of other ranks' tokens, too.
            exchange: whether to exchange now. False only accumulates for the next exchange, without changing `.grad`:
                several batches count as one, each with its weight. `zero_grad` does not drop them.
            scaler: of float16 training, instead of `scaler.scale(loss)`. If a gradient overflows at one rank, it is
                infinite at all, so that every rank's `scaler.step` skips the step.
            retain_graph: whether another loss uses the same forward pass; it counts as another batch.

        Raises:
            UserError: this object is closed; or the ranks disagree on changes of the model, raised at all ranks.
            RankdadError: a loss or gradient is NaN or infinite, a backward pass raised, a parameter was replaced,
                or the ranks are at different steps: the same error at all ranks, naming the ranks. Or a rank has ended.
        """
        if self._closed:
            raise UserError("this LowRank is closed: make a new one of the model", code="closed")
        self._batches.check_idle()
        if not exchange:
            self._checked(loss, weight, total, scaler)
            self._add(loss, weight, scaler, retain_graph, sums=total is not None, waits=True)
            return
        try:
            scale = self._checked(loss, weight, total, scaler)
            own = self._batches.weight + (0 if self._problem else weight)
            failed, are_sums = bool(self._problem), total is not None
            sums = Sums(own, self._step, self._groups, failed=failed, changed=self._changed, sums=are_sums)
            self._add(loss, weight, scaler, retain_graph, sums=total is not None)
            found = self._total(sums)
            divisor = scale if total is None else scale * total / found
            update, sparse = self._exchanged(found, divisor, overflows=scaler is not None)
        finally:
            self._batches.clear()
            self._problem, self._cause = None, None
        self._plain.reached(update.used)
        add_gradients(self._division.parts, self._layout.routes, update.payload, scale, update.used)
        add_sparse(self._parameters, sparse, scale)
        self._step += 1

    def describe(self) -> list[Travels]:
        """Return how each parameter's gradient is currently sent, as a factor or dense, and its bytes."""
        return travels(self._model, self._layout.routes, self._layout.wire, self._sparse, self._batches.captured)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part of a checkpoint: residuals, directions and the number of steps.

        Raises:
            RankdadError: added batches have not been exchanged yet.
        """
        self._check_exchanged("state_dict")
        kept = {"step": self._step, "site": saved(self._state), "node": saved(self._node_state)}
        return {**identity(self._options, self._group), **kept}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], residuals: str = "own") -> None:
        """Restore this rank's part of a checkpoint.

        Args:
            state: what `state_dict` returned at this rank.
            residuals: "own" for the same rank and number of ranks. After a change of the number, "drop" takes the state
                of any rank and starts without residuals; "merge" takes a list of all earlier ranks' states, in their
                order and the same at every rank, and shares their residuals out, so that nothing is left out.

        Raises:
            UserError: it is of another rank, number of ranks, model or options; or merged residuals have no place.
        """
        own, layout = identity(self._options, self._group), self._layout
        self._state, self._node_state, self._step = restored(state, own, residuals, layout.routes, layout.like)

    def save(self, folder: str | Path) -> None:
        """Write this object's state, without the model's weights, for any mesh; called at all ranks.

        Args:
            folder: new, and the same for all ranks; torch.distributed.checkpoint writes its safetensors there.

        Raises:
            RankdadError: there are files in the folder, or added batches have not been exchanged yet.
        """
        self._check_exchanged("save")
        write(folder, self._seat, self._step, self._options, self._state, self._node_state, self._groups)

    def load(self, folder: str | Path) -> None:
        """Restore the state from `save`; called at all ranks.

        Fewer data-parallel ranks take the residuals of several. Another division of the model rounds differently.

        Raises:
            UserError: there is no such checkpoint, or it is of another model or other options.
        """
        self._step, site, node = read(folder, self._seat, self._options, self._groups)
        self._state, self._node_state = (fitted(each, self._layout.routes) for each in (site, node))

    def close(self) -> None:
        """Remove the hooks from the model; `backward` then raises."""
        for each in (self._batches, self._plain, self._outer, self._division):
            each.close()
        self._closed = True

    def _prepare(self, method: RankDad | Dad) -> None:
        """Choose the routes of the model's current parameters, and drop state that no longer fits."""
        self._division.follow()
        parts = self._division.parts
        self._watch = Watch(self._model, "LowRank", parts)
        self._parameters = {name: part.own for name, part in parts.items() if part.own.requires_grad}
        self._plain.follow(part.whole for part in parts.values() if part.own.requires_grad)
        self._sparse = sparse_parameters(self._model)
        like = torch.zeros((), dtype=self._precision, device=next(iter(self._parameters.values())).device)
        routes, reduced = choose_routes(self._model, method, self._sparse, parts), isinstance(method, RankDad)
        self._layout = Layout(routes, str(self._options["wire"]), like, bounded=reduced)
        self._site: Method = Exact()
        self._node: Method = Exact()  # gathering ranks do not exchange their results, so these have no residual
        gathers = self._places <= self._gather_up_to
        owners = None if gathers else owners_of(routes, self._layout.wire, self._places)
        self._exchange = exchange_of(self._layout, owners, self._group)
        if isinstance(method, RankDad):
            self._site = RankDadMethod(method, routes)
            if not gathers:
                self._node = RankDadMethod(method, self._exchange.own.routes)
        owned = self._exchange.own.routes
        self._state = fitted(handed_over(self._state, self._node_state, owned) if reduced else self._state, routes)
        self._node_state = fitted(self._node_state, owned)

    @property
    def _seat(self) -> Seat:
        return Seat(self._place, self._places, self._layout.routes, self._division.parts, self._layout.like)

    def _check_exchanged(self, caller: str) -> None:
        if self._batches.weight:
            problem = f"{caller}: batches were added with exchange=False and have not been exchanged yet"
            raise RankdadError(problem, code="batches-pending")

    def _checked(self, loss: object, weight: object, total: float | None, scaler: GradScaler | None) -> float:
        """Return the scale of losses; an invalid batch or model is reported in the next exchange."""
        try:
            self._changed = self._watch.changed()
            if self._watch.divided:
                self._divide()
            check_batch(loss, weight, total)
            return 1.0 if scaler is None else scaler.get_scale()
        except Exception as error:
            self._note(error)
            return 1.0

    def _divide(self) -> None:
        """Follow a model that `fully_shard` or `parallelize_module` has divided after this object was made."""
        if self._batches.weight:
            problem = "the model was divided between two batches of one exchange: divide it before the first"
            raise UserError(problem, code="divided-in-step", field="model")
        check_division(self._model, self._group)
        self._division = self._division.again(self._model, self._group)
        self._groups = groups_of(self._model, self._given)
        self._batches.divide(self._division)

    def _add(
        self,
        loss: Tensor | Callable[[], object] | None,
        weight: float,
        scaler: GradScaler | None,
        retain_graph: bool,
        *,
        sums: bool,
        waits: bool = False,
    ) -> None:
        """Run a backward pass; an error is reported to all ranks in the next exchange."""
        if self._problem or not weight:
            if loss is None or not (self._division.divided or callable(loss)):
                return
            weight = 0.0  # the other ranks' passes wait for this one's collectives
        try:
            with self._plain.expected(in_function=callable(loss)):
                self._batches.take(loss, weight, scaler, sums=sums, retain_graph=retain_graph, waits=waits)
        except Exception as error:
            self._note(error)

    def _total(self, begun: Sums) -> float:
        """Return the total weight of all ranks' batches, and follow changes of the model.

        Raises:
            UserError: the ranks disagree on changes of the model.
            RankdadError: a rank has failed, or the ranks do not match.
        """
        total, failed, changed, problem = begun.ended(self._groups)
        if problem is not None:
            self._note(problem)
        if not failed and not total:
            raise RankdadError("no rank has samples in this step: every weight is 0", code="no-samples")
        if failed:
            self._explain()
        if changed:
            self._prepare(agreed_method(self._options, self._model, self._groups, divided=True))
            self._batches.follow(self._layout.routes, self._division)
        return total

    def _exchanged(self, total: float, scale: float, *, overflows: bool) -> tuple[Message, dict[str, Tensor]]:
        """Exchange gradients and update the state; return the update, with sparse gradients apart."""

        def failed(error: Exception) -> Status:
            if overflows and isinstance(error, OVERFLOWS):
                return Status.OVERFLOW
            self._note(error)
            return Status.FAILED

        seed, device = derive(str(self._options["seed"]), "low-rank", self._step), self._layout.like.device
        node = Node(self._node, self._node_state, derive(seed, "node"), failed)
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            weight = self._batches.weight
            status = Status.FAILED if self._problem else Status.FINE
            if status == Status.FINE:
                try:
                    gradients, used = self._batches.payload(self._layout.like, scale)
                    own = self._batches.sparse(self._sparse, self._layout.like, scale)
                    sparse = shared(own, weight / total)
                    step = self._site.step(gradients, weight / total, self._state, derive(seed, self._place))
                    packed = self._exchange.pack(Message(status, weight, next(step), used))
                except Exception as error:  # the other ranks wait for a message
                    status = failed(error)
            if status != Status.FINE:
                packed = self._exchange.pack(Message(status, weight))
            received = self._exchange.received(packed)
            update, node_state = self._exchange.ended(list(map(self._exchange.own.unpack, received)), node)
            with reaching("a step's exchange"):
                update = replace(update, status=Status(*agreed((update.status,), self._groups.others)))
            if update.status == Status.FAILED:
                self._explain()
            if update.status == Status.OVERFLOW:
                infinite = tuple(self._layout.like.new_full(route.matrix, math.inf) for route in self._layout.routes)
                sparse = {name: infinite_row(parameter) for name, parameter in self._sparse.items()}
                return replace(update, payload=infinite, used=frozenset(self._layout.names)), sparse
            # Parameters that no rank used keep their state: no gradient of them is applied.
            unused = {route.name for route in self._layout.routes if update.used.isdisjoint(route.names)}
            self._node_state = node_state.but(self._node_state, unused)
            try:
                step.send(update.payload)
            except StopIteration as stop:
                self._state = stop.value.but(self._state, unused)
            update = replace(update, payload=self._site.gradients([update.payload]))
            return update, summed(sparse, self._sparse, self._layout.like, self._group)

    def _note(self, error: Exception) -> None:
        """Keep the first error until all ranks know it."""
        if not self._problem:
            self._problem, self._cause = as_rankdad_error(error), error

    def _explain(self) -> NoReturn:
        """Raise the errors of all ranks, the same at each."""
        problem = explain(self._problem, self._groups)
        assert problem is not None
        raise problem from self._cause
