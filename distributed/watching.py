"""What of a model may change after a LowRank was made of it, what may not, and backward passes of others."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from rankdad.common.errors import UserError
from rankdad.common.lowrank.layers import has_hooks, is_followed
from rankdad.common.meshes import Part, blocks_of
from rankdad.distributed.options import check_whole


class Watch:
    """The modules and parameters of a model, to detect changes; half a millisecond per step for 1,000 modules.

    Args:
        model: to train.
        owner: class of the object made of it, for errors.
        parts: of divided parameters: in passes, those gathered by `fully_shard` replace the model's own.

    Attributes:
        divided: whether parameters have been divided between ranks since, which is followed.
    """

    def __init__(self, model: nn.Module, owner: str, parts: Mapping[str, Part] = MappingProxyType({})) -> None:
        self._model, self._owner, self.divided = model, owner, False
        self._follows = bool(parts)
        self._own = {id(part.whole): part.own for part in parts.values()}
        self._modules = [
            (module, tuple(module._modules.values()), self._held(module._parameters.values()))
            for module in model.modules()
        ]
        self._parameters = self._named()
        self._shapes = self._sizes()
        self._traits = self._found()

    def changed(self) -> bool:
        """Return whether a parameter was frozen or unfrozen, or a hook added or removed.

        Raises:
            UserError: a parameter was replaced, added or removed, or has another shape or dtype; names it.
        """
        same = all(
            tuple(module._modules.values()) == children and self._held(module._parameters.values()) == held
            for module, children, held in self._modules
        )
        if self._sizes() != self._shapes:
            self._refuse_sizes()
        if not same:
            self._compare()
        return not same or self._found() != self._traits

    def unfrozen(self) -> list[str]:
        """Return the parameters that have been unfrozen."""
        return [
            name
            for (name, parameter), (trained, _) in zip(self._parameters.items(), self._traits, strict=True)
            if parameter.requires_grad and not trained
        ]

    def hooked(self) -> list[str]:
        """Return the parameters that have been hooked."""
        return [
            name
            for (name, parameter), (_, hooked) in zip(self._parameters.items(), self._traits, strict=True)
            if has_hooks(parameter) and not hooked
        ]

    def _held(self, parameters: Iterable[nn.Parameter | None]) -> tuple[int, ...]:
        return tuple(id(self._own.get(id(parameter), parameter)) for parameter in parameters)

    def _named(self) -> dict[str, nn.Parameter]:
        return {name: self._own.get(id(p), p) for name, p in self._model.named_parameters()}

    def _found(self) -> list[tuple[bool, bool]]:
        return [(parameter.requires_grad, has_hooks(parameter)) for parameter in self._parameters.values()]

    def _sizes(self) -> list[tuple[torch.Size, torch.dtype]]:
        return [(parameter.shape, parameter.dtype) for parameter in self._parameters.values()]

    def _refuse_sizes(self) -> NoReturn:
        for (name, parameter), (shape, dtype) in zip(self._parameters.items(), self._shapes, strict=True):
            if (parameter.shape, parameter.dtype) != (shape, dtype):
                was, now = f"{list(shape)} {dtype}", f"{list(parameter.shape)} {parameter.dtype}"
                problem = f"{name} is {now}, and was {was} when the {self._owner} was made: make a new one"
                raise UserError(problem, code="parameter-replaced", field=name)
        raise AssertionError

    def _compare(self) -> None:
        check_whole(self._model, divided=self._follows)
        for block in blocks_of(self._model):  # so that its parameters are the model's, not those of passes
            block.reshard()
        now = self._named()
        for name in {**self._parameters, **now}:
            before, after = self._parameters.get(name), now.get(name)
            made: object = after
            if isinstance(made, DTensor) and before is not None and before.shape == made.shape:
                self.divided = self.divided or after is not before
            elif before is not after:
                kind = "another tensor" if name in now and name in self._parameters else "new"
                raise UserError(
                    f"{name} is {kind if name in now else 'gone'} since the {self._owner} was made, as after "
                    f"load_state_dict(assign=True) or with another module in its place: make a new {self._owner} after "
                    "such a change",
                    code="parameter-replaced",
                    field=name,
                )


class Outer:
    """Keep DistributedDataParallel around a model from exchanging gradients of its own, without weights.

    Args:
        model: of a LowRank.
    """

    def __init__(self, model: nn.Module) -> None:
        found = weakref.WeakSet[DistributedDataParallel]()
        self._close = weakref.finalize(self, _exchange_again, found)
        self._remove = weakref.finalize(self, model.register_forward_hook(_InForward(found), with_kwargs=True).remove)

    def close(self) -> None:
        """Let it exchange again."""
        self._remove()
        self._close()


class _InForward:
    """A model's hook that does not keep its owner alive.

    Args:
        found: the models that no longer exchange.
    """

    def __init__(self, found: weakref.WeakSet[DistributedDataParallel]) -> None:
        self._found = found

    def __call__(self, module: nn.Module, *_: object) -> None:
        """Stop the exchange of a model around this one.

        Raises:
            UserError: it trains other parameters, too.
        """
        if torch.compiler.is_compiling():
            return
        outer = DistributedDataParallel._get_active_ddp_module()
        if outer is None or not outer.require_backward_grad_sync or module not in outer.module.modules():
            return
        own = set(map(id, module.parameters()))
        for name, parameter in outer.module.named_parameters():
            is_ours = id(parameter) in own or is_followed(parameter) or name in outer.parameters_to_ignore
            if parameter.requires_grad and not is_ours:
                problem = f"DistributedDataParallel trains {name}, too, which no LowRank does: make it of both"
                raise UserError(problem, code="ddp-of-more", field=name)
        outer.require_backward_grad_sync = False
        if outer.static_graph:
            outer._static_graph_delay_allreduce_enqueued = True  # or it asks for an exchange after the first pass
        self._found.add(outer)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Make copies and saved models call a no-op of the standard library instead."""
        return getattr, (AbstractContextManager, "__exit__")


def _exchange_again(found: Iterable[DistributedDataParallel]) -> None:
    for outer in found:
        outer.require_backward_grad_sync = True
        if outer.static_graph:
            outer._static_graph_delay_allreduce_enqueued = False


class PlainBackward:
    """Warn, once, of a `loss.backward()` that puts one rank's gradient into `.grad`.

    `torch.autograd.grad`, copies of the model and other models are left alone. A LowRank's own pass leaves nothing in
    the model of another, as a generator's would in its discriminator.
    """

    _passes = 0  # of any LowRank under way, also in other threads: hooks may run in threads of autograd's own
    _open: ClassVar[weakref.WeakSet[PlainBackward]] = weakref.WeakSet()

    def __init__(self) -> None:
        self._said = self._idle = self.in_function = False
        self.followed, self.exchanges = list[nn.Parameter](), 0
        self._remove: Callable[[], object] = _nothing

    def follow(self, parameters: Iterable[nn.Parameter]) -> None:
        """Look at these parameters from now on, and at no others."""
        self.close()
        look, self.followed = _Look(self), list(parameters)
        handles = [parameter.register_post_accumulate_grad_hook(look) for parameter in self.followed]
        self._remove = weakref.finalize(self, _remove_all, handles)
        self._open.add(self)

    def close(self) -> None:
        """Look at no parameter any more."""
        self._remove()
        self._open.discard(self)

    @contextmanager
    def expected(self, *, in_function: bool) -> Iterator[None]:
        """Let a LowRank's own pass go by; in a function, those of others are its own, too."""
        PlainBackward._passes += 1
        self.in_function = in_function
        try:
            with _apart([one for one in self._open if one is not self and not one.in_function]):
                yield
        finally:
            PlainBackward._passes -= 1
            self.in_function = False

    def met(self) -> None:
        """Say that a gradient has come into `.grad`, unless it is our own pass."""
        if self._passes or self._said:
            return
        self._said = True
        warnings.warn(
            "loss.backward() put this rank's gradient alone into .grad: nothing was exchanged, and the ranks' weights "
            "come apart. Call backward(loss) of the LowRank instead, or torch.autograd.grad for a gradient of your own "
            "[plain-backward]",
            stacklevel=6,  # of the line with loss.backward()
        )

    def reached(self, names: Collection[str]) -> None:
        """Note an exchange, and warn, once, of a LowRank's own pass that reached no parameter at any rank."""
        self.exchanges += 1
        if names or self._idle:
            return
        self._idle = True
        warnings.warn(
            "no rank's loss reaches a parameter of this LowRank's model, and nothing was exchanged: is it the loss of "
            "another model, such as a copy? [loss-of-another-model]",
            stacklevel=3,  # of the line with backward(loss)
        )


@contextmanager
def _apart(others: Sequence[PlainBackward]) -> Iterator[None]:
    """Let passes leave `.grad` of other LowRanks' parameters as it is, but for what these exchange meanwhile."""
    before = [(one, one.exchanges, [(each, each.grad) for each in one.followed]) for one in others]
    try:
        for _, _, gradients in before:
            for parameter, _ in gradients:
                parameter.grad = None
        yield
    finally:
        for one, exchanges, gradients in before:
            for parameter, kept in gradients:
                own = None if one.exchanges == exchanges else parameter.grad
                parameter.grad = kept if own is None else own if kept is None else kept + own


class _Look:
    """A parameter's hook that does not keep its owner alive."""

    only_looks = True

    def __init__(self, owner: PlainBackward) -> None:
        self._owner = weakref.ref(owner)

    @property
    def has_own_passes(self) -> bool:
        """Whether a pass of another LowRank leaves the parameter alone."""
        owner = self._owner()
        return owner is not None and not owner.in_function

    def __call__(self, parameter: Tensor) -> None:
        owner = self._owner()
        if owner is not None:
            owner.met()


class Reached:
    """The parameters that have received a gradient, as DistributedDataParallel notes them for its own passes.

    Args:
        parameters: by name.

    Attributes:
        names: of those parameters, until the caller clears it.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.names = set[str]()
        handles = [p.register_post_accumulate_grad_hook(_Note(self.names, name)) for name, p in parameters.items()]
        self._remove = weakref.finalize(self, _remove_all, handles)


class _Note:
    """A parameter's hook that notes its name."""

    only_looks = True

    def __init__(self, names: set[str], name: str) -> None:
        self._names, self._name = names, name

    def __call__(self, _: Tensor) -> None:
        self._names.add(self._name)


def _nothing() -> None:
    """Remove nothing."""


def _remove_all(handles: Iterable[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
