"""Adam with a factored second moment, computed from random projections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, overload

import torch
from torch import Tensor, nn

from rankdad.common.projections import Projections

EPSILON = 1e-8
ROUNDING = 1e-10  # of the mean square: rows that add up to 0, as for two classes, leave only rounding errors
MAX_STEP = 1.0  # root mean square of a matrix's step in learning rates: Adafactor's d


class FactoredAdam(torch.optim.Optimizer):
    """Adam whose second moment of a matrix is an outer product: v = R ⊗ C / √(mean R · mean C).

    R and C are running means of the squared random projections of the pooled gradient. Their expectations over signs
    are its mean squares over rows and columns, independent of what a method leaves out or sends late. Vectors, which
    are not reduced, have Adam's own second moment.

    Source: Kingma and Ba 2015 (arXiv 1412.6980); Shazeer and Stern 2018 (arXiv 1804.04235), Sections 3 and 6.

    Args:
        parameters: of the model.
        lr: learning rate.
        betas: decay of the running means of gradient and square.
        weight_decay: decoupled.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        self._projections: Mapping[Tensor, Projections] = {}
        self._scale = 1.0

    def see(self, projections: Mapping[Tensor, Projections], scale: float = 1.0) -> None:
        """Set the pooled gradient's projections for the next step, by parameter.

        Args:
            projections: of the gradient before it was clipped.
            scale: what clipping multiplied the gradient by.
        """
        self._projections, self._scale = projections, scale

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Any) -> float: ...
    @torch.no_grad()
    def step(self, closure: Any = None) -> float | None:
        """Take one step with the current gradients and projections."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group["lr"], group["betas"], group["weight_decay"])
        self._projections = {}
        return None

    def _update(
        self, parameter: Tensor, gradient: Tensor, lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        state, factored, decay = self.state[parameter], is_factored(parameter), lr * weight_decay
        if not state:
            shapes = moment_shapes(parameter)
            state |= {name: parameter.new_zeros(shape) for name, shape in shapes.items() if name != "exp_avg"}
            state["step"], state["exp_avg"] = torch.zeros(()), torch.zeros_like(parameter)
        state["step"] += 1
        first, second = (1 - beta ** float(state["step"]) for beta in betas)  # bias correction
        mean = state["exp_avg"].lerp_(gradient, 1 - betas[0])
        if factored:
            for name, value in self._projections[parameter]._asdict().items():
                state[name].lerp_((self._scale * value.to(parameter)).square(), 1 - betas[1])
            rows, columns = (state[name] / second for name in ("rows", "columns"))
            least = ROUNDING * torch.maximum(rows.mean(), columns.mean())
            roots = torch.outer(*(_scaled_roots(own.clamp(min=least)) for own in (rows, columns))).view_as(mean)
        else:
            roots = (state["exp_avg_sq"].lerp_(gradient.square(), 1 - betas[1]) / second).sqrt_()
        step = torch.div(mean, roots.add_(EPSILON), out=roots)  # allocates only one large tensor
        if factored:
            lr /= max(1.0, float(torch.linalg.vector_norm(step)) / first / step.numel() ** 0.5 / MAX_STEP)
        if decay:
            parameter.mul_(1 - decay)
        parameter.sub_(step, alpha=lr / first)


def _scaled_roots(means: Tensor) -> Tensor:
    """Return the roots of means, divided by the root of their mean; zeros if all are 0."""
    mean = means.mean(dtype=torch.float64).sqrt().to(means)
    return torch.where(mean > 0, means / mean, 0.0).sqrt()


def is_factored(parameter: Tensor) -> bool:
    """Return whether a parameter's second moment is factored: it is a matrix."""
    return parameter.ndim > 1 and 1 < len(parameter) < parameter.numel()


def moment_shapes(parameter: Tensor) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a parameter's moments by name."""
    shape = tuple(parameter.shape)
    if not is_factored(parameter):
        return {"step": (), "exp_avg": shape, "exp_avg_sq": shape}
    rows = len(parameter)
    return {"step": (), "exp_avg": shape, "rows": (rows,), "columns": (parameter.numel() // rows,)}
