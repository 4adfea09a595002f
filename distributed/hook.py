"""A communication hook for those who keep DistributedDataParallel: one exchange for each of its buckets."""

# Annotations are no strings here: DistributedDataParallel compares the hook's with its own.

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.amp.grad_scaler import GradScaler
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from rankdad.common.collectives import device_of
from rankdad.common.errors import RankdadError, UserError
from rankdad.common.gradients.factors import Factor
from rankdad.common.gradients.methods import Contribution, MethodState
from rankdad.common.gradients.methods.base import SiteStep, pooled
from rankdad.common.gradients.methods.rank_dad import RankDadMethod
from rankdad.common.gradients.routes import Payload
from rankdad.common.run.seeds import derive
from rankdad.common.spec import RankDad
from rankdad.distributed.agreement import check_group
from rankdad.distributed.checkpoint import check_identity, identity, loaded, saved
from rankdad.distributed.messages import Layout, Message, Status
from rankdad.distributed.options import agreed_method, choose_routes, precision_of


class LowRankState:
    """What `low_rank_hook` keeps from step to step.

    All ranks make one at the same point, of the same model with the same options.

    Args:
        model: what is trained, wrapped in DistributedDataParallel or not.
        rank: rows of a factor that travel.
        feedback: whether what a reduction leaves out joins the next step's gradient.
        wire: how numbers travel, as of LowRank.
        group: the process group, the same as DistributedDataParallel's.
        seed: of random directions.
        scaler: the GradScaler that scales the loss, if one does: residuals are then kept unscaled.

    Raises:
        UserError: no process group, or an option that is not one; or the ranks disagree on the model or an option.

    Example:
        >>> ddp = DistributedDataParallel(model)
        >>> ddp.register_comm_hook(LowRankState(model, rank=4), low_rank_hook)
    """

    def __init__(
        self,
        model: nn.Module,
        rank: int = 4,
        feedback: bool = True,
        wire: str | None = None,
        group: dist.ProcessGroup | None = None,
        *,
        seed: int = 0,
        scaler: GradScaler | None = None,
    ) -> None:
        check_group(group)
        module = model.module if isinstance(model, DistributedDataParallel) else model
        precision = precision_of(module)
        wire = wire or str(precision).removeprefix("torch.")
        self._options = {"rank": rank, "feedback": "site" if feedback else "none", "wire": wire, "seed": seed}
        method = agreed_method(self._options, module, group)
        if not isinstance(method, RankDad):
            raise UserError("rank: got None, expected a number: DistributedDataParallel without a hook is exact")
        self._method, self._group, self._scaler = method, group, scaler
        parameters = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        self._names = {parameter: name for name, parameter in parameters.items()}
        self._routes = {route.name: route for route in choose_routes(module, method)}
        self._like = torch.zeros((), dtype=precision, device=next(iter(parameters.values())).device)
        self._kept, self._step = MethodState(), 0

    def reduce(self, bucket: GradBucket) -> Future[Tensor]:
        """Do what `low_rank_hook` says."""
        routes = tuple(self._routes[self._names[parameter]] for parameter in bucket.parameters())
        layout = Layout(routes, self._method.wire, self._like, bounded=True)
        place, places = dist.get_rank(self._group), dist.get_world_size(self._group)
        scale = 1.0 if self._scaler is None else self._scaler.get_scale()
        pairs = zip(bucket.gradients(), routes, strict=True)
        method = RankDadMethod(self._method, routes)
        seed = derive(str(self._options["seed"]), "hook", self._step, place)
        self._step += bucket.is_last()
        with torch.no_grad(), torch.autocast(self._like.device.type, enabled=False):
            gradients = tuple(each.reshape(route.matrix).to(self._like) / scale for each, route in pairs)
            step, sent = method.step(gradients, 1 / places, self._kept, seed), Payload()
            try:
                sent = next(step)
                data = layout.pack(Message(Status.FINE, 1.0, sent))
            except (RankdadError, RuntimeError):  # LAPACK's are RuntimeErrors
                data = layout.pack(Message(Status.OVERFLOW, 1.0))
        data = data.to(device_of(self._group))
        gathered = data.new_empty(places, len(data))
        work = dist.all_gather(list(gathered), data, group=self._group, async_op=True)
        assert work is not None

        def finish(future: Future[object]) -> Tensor:
            future.wait()  # raises if a rank is gone
            parts, averaged = [layout.unpack(each) for each in gathered.cpu()], bucket.buffer()
            if any(part.status != Status.FINE for part in parts):
                averaged.fill_(math.nan)
                return averaged
            mean = pooled([Contribution(1.0, part.payload) for part in parts])
            for each, value in zip(bucket.gradients(), mean, strict=True):
                each.copy_((value.gradient() if isinstance(value, Factor) else value).view_as(each)).mul_(scale)
            self._keep(step, sent)
            return averaged

        averaging: Future[Tensor] = work.get_future().then(finish)
        return averaging

    def _keep(self, step: SiteStep, sent: Payload) -> None:
        """Keep a bucket's residuals, and its directions: the next step starts from this rank's own."""
        try:
            step.send(sent)
        except StopIteration as stop:
            new: MethodState = stop.value
            kept = self._kept
            self._kept = MethodState({**kept.residuals, **new.residuals}, {**kept.bases, **new.bases})

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part of a checkpoint: what it keeps for the next steps, and their number."""
        return {**identity(self._options, self._group), "step": self._step, "site": saved(self._kept)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from this rank's part of a checkpoint.

        Raises:
            UserError: it is of another rank, number of ranks, model or options.
        """
        check_identity(state, identity(self._options, self._group))
        self._kept = loaded(state.get("site"), tuple(self._routes.values()), self._like)
        self._step = int(state["step"])


def low_rank_hook(state: LowRankState, bucket: GradBucket) -> Future[Tensor]:
    """Average a bucket's gradients over all ranks, each rank's matrices reduced to the state's rank.

    G is a rank's gradient of a matrix (a convolution's or embedding's is [first axis, all others]), E what the rank has
    left out so far, 0 in the beginning. Each rank sends R, the leading components of G + E as one step of orthogonal
    iteration from its last R's directions finds them (`common.gradients.reduction.block`), and keeps E + G - R, what
    the wire rounds off included. Every rank applies the mean of all R, a matrix of at most S times the rank. Vectors,
    and matrices that factors would not make smaller, are averaged as they are. The mean is over ranks, as
    DistributedDataParallel has it, whatever the batches' sizes.

    What a bucket sends is one all-gather of bytes, which begins when the backward pass has filled the bucket and goes
    on beside it. PowerSGD approximates the sum of all gradients instead, in two exchanges that wait for each other.
    There is no warm-up: residuals belong to parameters, not to buckets, which are laid out anew after the first step.

    If a gradient holds NaN or infinity at one rank, the bucket is NaN at all, as after an all-reduce, and E stays as it
    was; a GradScaler then leaves the step out everywhere. If a rank is gone, the backward pass raises.

    Args:
        state: the same object in every step.
        bucket: of DistributedDataParallel.

    Returns:
        The bucket's averaged gradients, when they have come.
    """
    return state.reduce(bucket)
