"""Compares options and models between ranks, and raises an error of one rank at all of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rankdad.common.collectives import all_gather_bytes, broadcast_bytes, device_of
from rankdad.common.errors import RankdadError, UserError, one_line
from rankdad.common.lowrank.layers import has_hooks
from rankdad.common.meshes import Groups, agreed, ranks_of

STEPS = 1000  # step numbers are compared modulo this, so that sums of squares are exact
MAX_LISTED = 4  # ranks named in an error


def check_group(group: dist.ProcessGroup | None) -> None:
    """Check that the process group can exchange gradients.

    Raises:
        UserError: there is no process group, this process is not in it, or nccl has no GPU.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise UserError(
            'no process group: call torch.distributed.init_process_group("gloo") first, in a script that '
            "`torchrun --nproc-per-node N` starts",
            code="no-process-group",
        )
    if dist.get_rank(group) < 0:
        raise UserError(
            "this process is not a rank of the process group: only its ranks make a LowRank", code="not-a-rank"
        )
    if "nccl" in dist.get_backend(group) and not torch.cuda.is_available():
        raise UserError(
            "the process group is one of nccl, which needs a GPU, and PyTorch finds none here: use gloo",
            code="nccl-without-gpu",
        )


def agree(options: Mapping[str, object], model: nn.Module, groups: Groups, problem: UserError | None = None) -> None:
    """Compare options and the model's parameters between all ranks.

    Args:
        options: by name.
        model: parameters and buffers are compared by name, shape and dtype, and by whether they are trained or hooked.
        groups: of the ranks; models are compared between those with different batches.
        problem: an error in this rank's options or model, which are then not compared.

    Raises:
        UserError: names a difference and its rank; the same error at all ranks.
    """
    parameters = [] if problem else _listed(model)
    listed = json.dumps(parameters).encode()
    own = {"problem": _told(problem), **({} if problem else options), "model": hashlib.sha256(listed).hexdigest()}
    with reaching("the comparison of options"):
        near = [json.loads(each) for each in all_gather_bytes(json.dumps(own).encode(), groups.data)]
        found = _everywhere(near, groups)
    if any(each["problem"] for each in found.values()):
        raise _named({rank: each["problem"] for rank, each in found.items()}, UserError)
    for name, first in near[0].items():
        others = [rank for rank, each in found.items() if each[name] != first]
        if others and name != "model":
            raise UserError(
                f"the ranks disagree on {name}: {first!r} at rank 0, {found[others[0]][name]!r} at {_ranks(others)}",
                code="ranks-disagree",
                field=name,
            )
    differs = ""
    if any(each["model"] != near[0]["model"] for each in near):
        with reaching("the comparison of models"):
            expected = json.loads(broadcast_bytes(listed, groups.data))
        differs = _difference(parameters, expected)
    if groups.others or differs or any(each["model"] != near[0]["model"] for each in near):
        told = explain(UserError(differs, code="ranks-disagree", field="model") if differs else None, groups)
        if told is not None:
            raise UserError(f"the ranks disagree on the model: {told}", code="ranks-disagree", field="model")


def _listed(model: nn.Module) -> list[str]:
    """Return a line for each trained parameter, then for each frozen parameter and buffer."""
    named = [(f"{name} (with a hook)" if has_hooks(p) else name, p) for name, p in model.named_parameters()]
    trained = [(name, p) for name, p in named if p.requires_grad]
    frozen = [(f"frozen {name}", p) for name, p in named if not p.requires_grad]
    buffers = [(f"buffer {name}", b) for name, b in model.named_buffers()]
    return [f"{name} {list(value.shape)} {value.dtype}" for name, value in (*trained, *frozen, *buffers)]


def _difference(own: list[str], expected: list[str]) -> str:
    """Return the first difference from rank 0's parameters; "" if there is none."""
    for number, (mine, first) in enumerate(zip(own, expected, strict=False)):
        if mine != first:
            return f"parameter {number + 1} is {mine}, at rank 0 {first}"
    return f"{len(own)} parameters, at rank 0 {len(expected)}" if len(own) != len(expected) else ""


def explain(problem: RankdadError | None, groups: Groups) -> RankdadError | None:
    """Exchange errors between all ranks, and return them as one error, the same at all ranks; None if there is none."""
    with reaching("the exchange of what went wrong"):
        told = all_gather_bytes(json.dumps(_told(problem)).encode(), groups.data)
        found = _everywhere([json.loads(each) for each in told], groups)
    return _named(found, RankdadError) if any(found.values()) else None


def _everywhere(told: Sequence[Any], groups: Groups) -> dict[int, Any]:
    """Return what the ranks of all groups told, by rank, given what those of the data-parallel group did.

    Ranks are numbered in the data-parallel group if there is no other, else in the default group.
    """
    ranks = ranks_of(groups.data) if groups.others else range(len(told))
    found = dict(zip(ranks, told, strict=True))
    for group in groups.others:
        parts = all_gather_bytes(json.dumps(list(found.items())).encode(), group)
        found = dict(sorted(tuple(each) for part in parts for each in json.loads(part)))
    return found


def as_rankdad_error(error: Exception) -> RankdadError:
    """Return an error without private details, for the other ranks."""
    return error if isinstance(error, RankdadError) else RankdadError(one_line(error), code="rank-failed")


def _told(problem: RankdadError | None) -> list[str]:
    return [str(problem), problem.code, problem.field] if problem else []


def _named(problems: Mapping[int, Sequence[str]], kind: type[RankdadError]) -> RankdadError:
    """Combine errors of several ranks, with the code and field of the first."""
    named = [f"rank {rank}: {each[0]}" for rank, each in problems.items() if each]
    more = f"; and {len(named) - MAX_LISTED} more" if len(named) > MAX_LISTED else ""
    _, code, field = next(each for each in problems.values() if each)
    return kind("; ".join(named[:MAX_LISTED]) + more, code=code, field=field)


def mixed() -> UserError:
    """Return the error about sums and means in one exchange."""
    problem = "total: batches of one exchange mix sums and means: pass it for all of them, or for none"
    return UserError(problem, code="sums-and-means", field="total")


class Sums:
    """The sums over all ranks that begin a step, collected during its backward pass.

    Args:
        weight: of this rank's batches.
        step: its number.
        groups: of ranks.
        failed: whether this rank has an error.
        changed: whether its model has changed.
        sums: whether its losses are sums.
    """

    def __init__(self, weight: float, step: int, groups: Groups, *, failed: bool, changed: bool, sums: bool) -> None:
        number, trains = step % STEPS, weight > 0
        own = [weight, failed, number, number**2, changed, trains, trains and sums]
        self._step, self._sums = step, torch.tensor(own, dtype=torch.float64)
        self._sums = self._sums.to(device_of(groups.data))
        with reaching("a step's exchange"):
            self._work = dist.all_reduce(self._sums, group=groups.data, async_op=True)

    def ended(self, groups: Groups) -> tuple[float, bool, bool, RankdadError | None]:
        """Return the total weight, whether a rank has failed or changed, and what does not match between ranks."""
        assert self._work is not None
        with reaching("a step's exchange"):
            self._work.wait()
            total, failures, steps, squares, changes, trained, sums = self._sums.tolist()
            problem: RankdadError | None = None
            if steps**2 != squares * dist.get_world_size(groups.data):  # equal only if all steps are
                text = f"it is at step {self._step}, other ranks are not: call load_state_dict at every rank"
                problem = RankdadError(text, code="steps-differ")
            elif 0 < sums < trained:
                problem = mixed()
            failed, changed = agreed((int(failures > 0 or problem is not None), int(changes > 0)), groups.others)
        return total, bool(failed), bool(changed), problem


@contextlib.contextmanager
def reaching(what: str) -> Iterator[None]:
    """Explain an error of torch.distributed within a `with`.

    Raises:
        RankdadError: another rank was not reached.
    """
    try:
        yield
    except RuntimeError as error:
        raise RankdadError(
            f"{what} failed: another rank has ended, or did not arrive within the process group's timeout, which "
            f"init_process_group sets: {one_line(error)}",
            code="rank-gone",
        ) from error


def _ranks(ranks: list[int]) -> str:
    listed = ", ".join(map(str, ranks[:MAX_LISTED])) + ("…" if len(ranks) > MAX_LISTED else "")
    return f"rank{'s' * (len(ranks) > 1)} {listed}"
