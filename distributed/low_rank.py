"""`LowRank`: a backward pass whose gradients are those of all ranks together."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, NoReturn, SupportsFloat

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from rankdad.common.collectives import device_of
from rankdad.common.errors import NonFiniteError, RankdadError, UserError
from rankdad.common.lowrank.wire import finite
from rankdad.common.methods import Method, MethodState
from rankdad.common.methods.dad import Dad
from rankdad.common.methods.rank_dad import RankDad, RankDadMethod
from rankdad.common.run.seeds import derive
from rankdad.distributed.agreement import as_rankdad_error, check_group, explain, reaching, share_weights
from rankdad.distributed.batches import Batches, add_gradients
from rankdad.distributed.checkpoint import check_identity, fitted, identity, loaded, saved
from rankdad.distributed.exchange import Exact, Node, gather, tree
from rankdad.distributed.messages import OVERFLOWS, Layout, Message, Status
from rankdad.distributed.options import (
    Travels,
    agreed_method,
    choose_routes,
    feedback_of,
    precision_of,
    sparse_parameters,
    travels,
    warn_if_dense,
)
from rankdad.distributed.sparse_rows import infinite_row, summed
from rankdad.distributed.watching import PlainBackward, Watch

GATHER_UP_TO = 8  # ranks: seven messages received against three, in one exchange against six that wait for each other
MOST_WEIGHT = 1e300  # of a batch, so that the sum of all is finite
FEEDBACK = {True: "both", False: "none"}
STEPS = 1000  # step numbers are compared modulo this, so that their squares' sums are exact


class LowRank:
    """Low-rank gradients in a training loop of one's own: `backward(loss)` in place of `loss.backward()`.

    Every rank of a process group trains the same model on batches of its own. `backward` captures each linear layer's
    factors, reduces them to `rank` rows, exchanges these, adds up what all ranks sent, and leaves the same
    gradients in `.grad` at every rank, bit for bit. Other matrices (convolutions, embeddings, recurrent layers) are
    reduced from their dense gradients; vectors, and what a factor would not make smaller, travel as they are. The rest
    of the loop stays as it is: optimizer, schedule, clipping, autocast.

    A parameter with a hook on its gradient travels as the hook leaves it, unreduced. The rows of sparse embeddings
    travel unreduced, too, in full precision. Where no rank used a parameter, its `.grad` stays as it was. Parameters
    that are frozen or unfrozen, and hooks that come or go, are followed from step to step, if they are so at all ranks.
    A plain `loss.backward()` of the model is warned of (`plain-backward`): it exchanges nothing.

    All ranks make a LowRank of the same model at the same point. They start from the weights and buffers of rank 0,
    as with DistributedDataParallel. Buffers, such as a batch norm's statistics, are each rank's own from then on.

    Args:
        model: the module itself, not wrapped, and whole at every rank. Hooks on its linear layers stay until `close`,
            or until nothing refers to this object any more.
        rank: rows of a factor that travel; None sends full factors (dAD): the gradients are those of the pooled batch.
            Where it makes no matrix smaller, all travels dense, with a warning.
        feedback: where what a reduction leaves out is kept for the next step: "site" at each rank, "aggregator" in the
            reductions of a tree, "both" or True, "none" or False.
        wire: how numbers travel: float32, float64, bfloat16, float16, int8, and with a rank and feedback int4 or int2;
            None is the precision of the model, float32 or float64.
        group: the process group; None is the default one.
        gather_up_to: so many ranks gather one another's rows; more reduce them along a tree (`distributed.exchange`).
        seed: of random directions.

    Raises:
        UserError: no process group, a wrapped model, or an option that is not one.
        RankdadError: the ranks disagree on the model or an option, or cannot be reached.

    Example:
        >>> with LowRank(model, rank=4) as sync:
        ...     for inputs, labels in loader:
        ...         optimizer.zero_grad()
        ...         sync.backward(F.cross_entropy(model(inputs), labels), weight=len(labels))
        ...         optimizer.step()

    Source: arXiv 2102.09631, Algorithm 1, with every rank as a site and as the aggregator.
    """

    def __init__(
        self,
        model: nn.Module,
        rank: int | None = 4,
        feedback: str | bool = "both",
        wire: str | None = None,
        group: dist.ProcessGroup | None = None,
        *,
        gather_up_to: int = GATHER_UP_TO,
        seed: int = 0,
    ) -> None:
        check_group(group)
        self._model, self._precision = model, precision_of(model)
        self._gather_up_to = gather_up_to
        self._options: dict[str, object] = {
            "rank": rank,
            "feedback": feedback_of(feedback, FEEDBACK),
            "wire": wire or str(self._precision).removeprefix("torch."),
            "gather_up_to": gather_up_to,
            "seed": seed,
        }
        method = agreed_method(self._options, model, group)
        share_weights(model, group)
        self._group, self._place, self._places = group, dist.get_rank(group), dist.get_world_size(group)
        self._state, self._node_state, self._step = MethodState(), MethodState(), 0
        self._plain = PlainBackward()
        self._prepare(method)
        warn_if_dense(self._layout.routes, method)
        self._batches = Batches(model, self._layout.routes)
        self._problem: RankdadError | None = None  # what all ranks hear of in the next exchange
        self._cause: Exception | None = None
        self._changed = self._closed = False

    def __enter__(self) -> LowRank:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        return f"LowRank({options}, ranks={self._places}{', closed' * self._closed})"

    def backward(
        self,
        loss: Tensor | None,
        weight: float = 1.0,
        *,
        exchange: bool = True,
        scaler: GradScaler | None = None,
        retain_graph: bool = False,
    ) -> None:
        """Add the gradient of all ranks' weighted mean loss to `.grad`, the same at every rank.

        Args:
            loss: the mean over this rank's batch. It is not looked at where the weight is 0.
            weight: of the batch, such as its number of samples. A rank without samples has 0, and takes part.
            exchange: False only adds to what the next exchange sends, and leaves `.grad` as it is: several batches
                count as one, each with its weight. `zero_grad` does not take them back.
            scaler: of a training in float16, in place of `scaler.scale(loss)`. Where a gradient overflows at one rank
                it is infinite at all, so that every rank's `scaler.step` leaves the step out.
            retain_graph: for another loss of the same forward pass, which counts as another batch.

        Raises:
            UserError: it is closed; or, at all ranks, they disagree on what has changed in the model.
            RankdadError: a loss or gradient is NaN or infinite, a backward pass raised, a parameter has been replaced,
                or the ranks are at different steps: the same sentence at all ranks, naming those that it is about. Or a
                rank is gone.
        """
        if self._closed:
            raise UserError("this LowRank is closed: make another one of the model", code="closed")
        if not exchange:
            self._checked(loss, weight, scaler)
            self._add(loss, weight, scaler, retain_graph)
            return
        try:
            scale = self._checked(loss, weight, scaler)
            sums = self._sum_up(0 if self._problem else weight)
            self._add(loss, weight, scaler, retain_graph)
            update, sparse = self._exchanged(self._total(sums), scale, overflows=scaler is not None)
        finally:
            self._batches.clear()
            self._problem, self._cause = None, None
        add_gradients(self._parameters, self._layout.routes, update.payload, scale, update.used)
        for name, gradient in sparse.items():
            own, scaled = self._parameters[name], gradient if scale == 1 else gradient * scale
            own.grad = scaled if own.grad is None else own.grad + scaled
        self._step += 1

    def describe(self) -> list[Travels]:
        """Return how each parameter's gradient travels, as things stand: as a factor or dense, and its bytes."""
        return travels(self._model, self._layout.routes, self._layout.wire, self._sparse, captured=True)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part of a checkpoint: what it keeps for the next steps, and their number.

        Raises:
            RankdadError: batches were added that no exchange has sent.
        """
        if self._batches.weight:
            problem = "state_dict: batches were added with exchange=False that no exchange has sent yet"
            raise RankdadError(problem, code="batches-pending")
        kept = {"step": self._step, "site": saved(self._state), "node": saved(self._node_state)}
        return {**identity(self._options, self._group), **kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from this rank's part of a checkpoint.

        Raises:
            UserError: it is of another rank, number of ranks, model or options.
        """
        step = check_identity(state, identity(self._options, self._group))
        parts = (loaded(state.get(part), self._layout.routes, self._layout.like) for part in ("site", "node"))
        (self._state, self._node_state), self._step = parts, step

    def close(self) -> None:
        """Remove the hooks from the model; `backward` raises from then on."""
        self._batches.close()
        self._plain.close()
        self._closed = True

    def _prepare(self, method: RankDad | Dad) -> None:
        """Choose how the model's parameters travel, as they are now; of what is kept goes what no longer fits."""
        self._watch = Watch(self._model, "LowRank")
        self._parameters = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        self._plain.follow(self._parameters.values())
        self._sparse = sparse_parameters(self._model)
        like = torch.zeros((), dtype=self._precision, device=next(iter(self._parameters.values())).device)
        routes, reduced = choose_routes(self._model, method, self._sparse), isinstance(method, RankDad)
        self._layout = Layout(routes, str(self._options["wire"]), like, bounded=reduced)
        self._site: Method = Exact()
        self._node: Method = Exact()
        if isinstance(method, RankDad):
            # Where ranks gather, what they make of all rows does not travel: nothing of it is left out.
            self._site = RankDadMethod(method, routes)
            self._node = Exact() if self._gathers else RankDadMethod(method, routes)
        self._state, self._node_state = (fitted(each, routes) for each in (self._state, self._node_state))

    @property
    def _gathers(self) -> bool:
        return self._places <= self._gather_up_to

    def _checked(self, loss: Tensor | None, weight: object, scaler: GradScaler | None) -> float:
        """Return by what losses are multiplied; what is wrong with batch or model is told in the next exchange."""
        try:
            self._changed = self._watch.changed()
            if not isinstance(weight, SupportsFloat) or not 0 <= float(weight) <= MOST_WEIGHT:
                problem = f"weight: got {weight!r}, expected a number of at least 0, at most {MOST_WEIGHT:g}"
                raise UserError(problem, code="weight-out-of-range", field="weight")
            if weight and loss is None:
                problem = f"loss: got None, expected a loss, or weight=0 instead of {float(weight):g}"
                raise UserError(problem, code="loss-missing", field="loss")
            return 1.0 if scaler is None else scaler.get_scale()
        except Exception as error:
            self._note(error)
            return 1.0

    def _add(self, loss: Tensor | None, weight: float, scaler: GradScaler | None, retain_graph: bool) -> None:
        """Run a backward pass; what is wrong is told to all ranks in the next exchange."""
        if self._problem or not weight:
            return
        try:
            assert loss is not None
            with self._plain.expected():
                self._batches.add(loss if scaler is None else scaler.scale(loss), weight, retain_graph=retain_graph)
            if scaler is None and not bool(torch.isfinite(loss.detach())):
                raise NonFiniteError("the loss")
        except Exception as error:
            self._note(error)

    def _sum_up(self, weight: float) -> tuple[Tensor, dist.Work]:
        """Begin to add up all ranks' weights, while the backward pass goes on."""
        number = self._step % STEPS
        own = self._batches.weight + weight
        sums = torch.tensor([own, bool(self._problem), number, number**2, self._changed], dtype=torch.float64)
        sums = sums.to(device_of(self._group))
        with reaching("a step's exchange"):
            work = dist.all_reduce(sums, group=self._group, async_op=True)
        assert work is not None
        return sums, work

    def _total(self, begun: tuple[Tensor, dist.Work]) -> float:
        """Return the weight of all ranks' batches; follow what has changed in the model.

        Raises:
            UserError: the ranks disagree on what has changed.
            RankdadError: something is wrong at a rank, or with all together.
        """
        sums, work = begun
        with reaching("a step's exchange"):
            work.wait()
        total, failed, steps, squares, changed = sums.tolist()
        if steps**2 != squares * self._places:  # equal only if all numbers are
            problem = f"it is at step {self._step}, and not all are: load_state_dict at every rank"
            self._note(RankdadError(problem, code="steps-differ"))
            failed = 1
        if not failed and not total:
            raise RankdadError("no rank has samples in this step: every weight is 0", code="no-samples")
        if failed:
            self._explain()
        if changed:
            self._prepare(agreed_method(self._options, self._model, self._group))
            self._batches.follow(self._layout.routes)
        return float(total)

    def _exchanged(self, total: float, scale: float, *, overflows: bool) -> tuple[Message, dict[str, Tensor]]:
        """Return the update of all ranks, that of sparse gradients apart, and keep what the next step needs."""

        def failed(error: Exception) -> Status:
            if overflows and isinstance(error, OVERFLOWS):
                return Status.OVERFLOW
            self._note(error)
            return Status.FAILED

        seed, device = derive(str(self._options["seed"]), "low-rank", self._step), self._layout.like.device
        seed_here = seed if self._gathers else derive(seed, "node", self._place)
        node = Node(self._node, self._node_state, total, seed_here, failed)
        along = gather if self._gathers else tree
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            weight = self._batches.weight
            status = Status.FAILED if self._problem else Status.FINE
            step = None
            if status == Status.FINE:
                try:
                    gradients, used = self._batches.payload(self._layout.like, scale)
                    sparse = self._own_sparse(weight / total, scale)
                    step = self._site.step(gradients, weight / total, self._state, derive(seed, self._place))
                    message = self._layout.pack(Message(status, weight, next(step), used))
                except Exception as error:  # the other ranks wait for a message
                    status = failed(error)
            if status != Status.FINE:
                message = self._layout.pack(Message(status, weight))
            update, node_state = along(message, self._layout, node, self._group)
            if update.status == Status.FAILED:
                self._explain()
            if update.status == Status.OVERFLOW:
                infinite = tuple(self._layout.like.new_full(route.matrix, math.inf) for route in self._layout.routes)
                sparse = {name: infinite_row(parameter) for name, parameter in self._sparse.items()}
                return replace(update, payload=infinite, used=frozenset(self._layout.names)), sparse
            assert step is not None
            # What no rank used in this step keeps what it has: nothing of it is applied.
            unused = {route.name for route in self._layout.routes if update.used.isdisjoint(route.names)}
            self._node_state = _but(node_state, self._node_state, unused)
            try:
                step.send(update.payload)
            except StopIteration as stop:
                self._state = _but(stop.value, self._state, unused)
            gradients = self._site.gradients([update.payload])
            return replace(update, payload=gradients), summed(sparse, self._sparse, self._layout.like, self._group)

    def _own_sparse(self, share: float, scale: float) -> dict[str, Tensor]:
        """Return this rank's part of the sparse gradients.

        Raises:
            NonFiniteError: one holds NaN or infinity.
        """
        own = self._batches.sparse(self._sparse, self._layout.like, scale)
        for name, gradient in own.items():
            if not finite(gradient.values()):
                raise NonFiniteError(f"the gradient of {name}")
        return {name: gradient * share for name, gradient in own.items()}

    def _note(self, error: Exception) -> None:
        """Keep the first error until all ranks hear of it."""
        if self._problem:
            return
        self._problem, self._cause = as_rankdad_error(error), error

    def _explain(self) -> NoReturn:
        """Raise what is wrong at every rank, the same at all."""
        raise explain(self._problem, self._group) from self._cause


def _but(state: MethodState, before: MethodState, names: Collection[str]) -> MethodState:
    """Return a state, of these parameters as it was before."""
    if not names:
        return state

    def mixed(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in new.items() if name not in names}
        return kept | {name: value for name, value in old.items() if name in names}

    return MethodState(mixed(state.residuals, before.residuals), mixed(state.bases, before.bases))
