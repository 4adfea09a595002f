"""A replica: model and optimizer, equal at every site, because all apply the same gradients in the same order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType

import safetensors.torch
import torch
from torch import Tensor, nn

from rankdad.common.errors import ProtocolError
from rankdad.common.lowrank.capture import FactorCapture
from rankdad.common.lowrank.routes import ALL, Index
from rankdad.common.models import build_model
from rankdad.common.projections import Projections
from rankdad.common.run.factored_adam import FactoredAdam
from rankdad.common.run.optimizer import (
    laid_out_as,
    learning_rate,
    load_moments,
    lr_scale,
    make_optimizer,
    make_outer_optimizer,
    moments_of,
)
from rankdad.common.run.weight_sketch import sketch
from rankdad.common.spec import RunSpec, Training
from rankdad.common.tensors import weights_sha256


class Replica:
    """The model and its optimizer.

    Args:
        spec: the run.
        allowed_factories: model factories that the caller allows.
        device: of the model.
        weights: folder with the files of pretrained weights.
        model: to train; by default the spec's.
    """

    def __init__(
        self,
        spec: RunSpec,
        allowed_factories: Collection[str] = (),
        device: str = "cpu",
        weights: Path | None = None,
        *,
        model: nn.Module | None = None,
    ) -> None:
        built = build_model(spec, allowed_factories, weights).to(device) if model is None else model
        self.model: nn.Module = built
        self._training, self._local = spec.training, spec.local
        self._scale = lr_scale(spec.training, len(spec.federation.sites))
        self.trained: Mapping[str, nn.Parameter] = self._trained()
        self._optimizer = self._make_optimizer()
        # Unwrapped: torch's profiling wrapper takes as long as a small network's step.
        self._take_step = inspect.unwrap(type(self._optimizer).step)
        self.step = 0
        self.steps_per_epoch = 1

    def _trained(self) -> dict[str, nn.Parameter]:
        """Return the parameters that the optimizer updates, by name."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    @property
    def device(self) -> str:
        """Device of the model."""
        return str(next(self.model.parameters()).device)

    def apply(
        self,
        gradients: Mapping[str, Tensor],
        projections: Mapping[str, Projections] | None = None,
        number: int | None = None,
    ) -> None:
        """Clip the aggregated gradients and take one optimizer step at the scheduled learning rate.

        With local steps, the outer optimizer applies the mean of the sites' differences without clipping.

        Args:
            gradients: or differences, by parameter name, each in its parameter's shape.
            projections: of the pooled gradients, for a factored second moment, by parameter name.
            number: of the step, for the schedule; None if all epochs so far had `steps_per_epoch` steps.
        """
        scale = 1.0
        for name, parameter in self.trained.items():
            gradient = gradients.get(name)
            parameter.grad = None if gradient is None else laid_out_as(parameter, gradient)
        if self._local is None:
            if self._training.clip is not None:
                scale = self._training.clip / max(self._clip(self._training.clip), self._training.clip)
            number = self.step if number is None else number
            for group in self._optimizer.param_groups:
                group["lr"] = self._scale * learning_rate(self._training, number, self.steps_per_epoch)
        if isinstance(self._optimizer, FactoredAdam):
            self._optimizer.see({self.trained[name]: own for name, own in (projections or {}).items()}, scale)
        with torch.no_grad():
            self._take_step(self._optimizer)
        for parameter in self.trained.values():
            parameter.grad = None
        self.step += 1

    def _clip(self, most: float) -> float:
        """Limit the norm over all gradients, and return the norm before."""
        return float(nn.utils.clip_grad_norm_(self.trained.values(), most))

    def kept(self, name: str) -> tuple[Index, slice]:
        """Return the rows and columns of a parameter's gradient, as a matrix, that this replica applies: all."""
        return ALL, ALL

    def capture(self, only: Container[str] | None = None) -> FactorCapture:
        """Return a capture of gradients in the model's passes; see `FactorCapture`."""
        return FactorCapture(self.model, only)

    def passes(self, samples: Sequence[int] = (), largest: int = 1) -> AbstractContextManager[None]:
        """Return a context for a step's passes.

        Args:
            samples: of each of the step's batches.
            largest: samples per pass.
        """
        return nullcontext()

    @contextmanager
    def evaluating(self, weights: Mapping[str, Tensor] = MappingProxyType({})) -> Iterator[nn.Module]:
        """Yield the model with these weights, for passes without gradients."""
        own = self.weights() if weights else {}
        if weights:
            self.load(weights)
        yield self.model
        if weights:
            self.load(own)

    def as_it_is(self) -> Callable[[], None]:
        """Return a function that restores what forward passes change: random numbers and buffers."""
        buffers, drawn = {name: buffer.clone() for name, buffer in self.model.named_buffers()}, torch.get_rng_state()
        device = next(self.model.parameters()).device
        there = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

        def go_back() -> None:
            torch.set_rng_state(drawn)
            if there is not None:
                torch.cuda.set_rng_state(there, device)
            with torch.no_grad():
                for name, buffer in self.model.named_buffers():
                    buffer.copy_(buffers[name])

        return go_back

    def restart(self, training: Training, weights: Mapping[str, Tensor]) -> None:
        """Restart from these weights and settings: without moments, at step 0."""
        self.load(weights)
        self._training = training
        self._optimizer = self._make_optimizer()
        self.step = 0

    def _make_optimizer(self) -> torch.optim.Optimizer:
        parameters = list(self.trained.values())
        if self._local is not None:
            return make_outer_optimizer(self._local, parameters)
        return make_optimizer(self._training, parameters)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load weights and buffers; others do not change."""
        self.model.load_state_dict(dict(weights), strict=False)

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of all weights and buffers on the CPU."""
        return copies(self.model.state_dict())

    def parameters(self) -> dict[str, Tensor]:
        """Return copies of the parameters, for an update after a comparison.

        Moments are not replaced: they follow from updates alone, and their author would choose the next step's weights.
        Neither are buffers, which differ between sites until the epoch ends.
        """
        return copies(dict(self.model.named_parameters()))

    def shapes(self) -> Mapping[str, torch.Size]:
        """Return the shapes of whole weights and buffers, by name."""
        return {name: value.shape for name, value in self.model.state_dict().items()}

    def check_parameters(self, named: Mapping[str, Tensor]) -> None:
        """Check that parameters match this model.

        Raises:
            ProtocolError: they do not.
        """
        shapes = self.shapes()
        expected = {name: (value.dtype, shapes[name]) for name, value in self.model.named_parameters()}
        if {name: (value.dtype, value.shape) for name, value in named.items()} != expected:
            raise ProtocolError(
                502, "d.replica: holds other weights than this model has", code="weights-do-not-fit", field="d.replica"
            )

    def sketch(self) -> Tensor:
        """Return the sketch of the parameters; see `common.run.weight_sketch`."""
        return sketch(self.parameters())

    def state(self) -> dict[str, Tensor]:
        """Return copies of weights, buffers and the optimizer's moments by name, on the CPU, without the step."""
        tensors = {f"weights/{name}": value for name, value in self.model.state_dict().items()}
        return copies(tensors | moments_of(self._optimizer, self.trained))

    def load_state(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Restore a state from `state`, after this many steps.

        Raises:
            RuntimeError, KeyError, ValueError: it does not match this model; a fused optimizer would access memory
                beyond a moment that is too small.
        """
        self.step = step
        weights = {name: value for name, value in tensors.items() if name.startswith("weights/")}
        self.model.load_state_dict({name.removeprefix("weights/"): value for name, value in weights.items()})
        load_moments(self._optimizer, self.trained, {n: value for n, value in tensors.items() if n not in weights})

    def gathered(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return whole weights, from those that `weights` has returned; empty at a site's ranks other than 0."""
        return dict(weights)

    def spread(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return this replica's weights or moments by name, in the shapes of whole ones, for a checkpoint."""
        return dict(own)

    def parts(self, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return this replica's parts of weights or moments in the shapes of whole ones: the reverse of `spread`."""
        return dict(whole)

    def blank(self, key: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Return a tensor as from `spread`, to be filled from a checkpoint."""
        return torch.empty(shape, dtype=dtype)

    def digest(self) -> str:
        """Return the sha256 of all weights and buffers."""
        return weights_sha256(self.weights())


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous copies on the CPU, for files and messages."""
    contiguous = torch.contiguous_format
    return {name: value.detach().cpu().clone(memory_format=contiguous) for name, value in tensors.items()}


def pack_parameters(named: Mapping[str, Tensor]) -> bytes:
    """Encode named parameters; empty for none."""
    return safetensors.torch.save(dict(named)) if named else b""


def unpack_parameters(data: bytes) -> dict[str, Tensor]:
    """Decode named parameters; `Replica.check_parameters` checks that they match a model.

    Raises:
        ValueError: the bytes are invalid.
    """
    try:
        return safetensors.torch.load(data) if data else {}
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"holds no weights: {error}") from None
