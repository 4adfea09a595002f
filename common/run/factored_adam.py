"""Adam with a factored second moment, of squares that the gradient applied does not tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, overload

import torch
from torch import Tensor, nn

from rankdad.common.gradients.squares import Squares

EPSILON = 1e-8
MAX_STEP = 1.0  # root mean square of a matrix's step in learning rates: Adafactor's d


class FactoredAdam(torch.optim.Optimizer):
    """Adam whose second moment of a matrix is an outer product: v = s · (R / mean R) ⊗ (C / mean C).

    R and C are running means of the sites' mean squares over rows and columns, s that of the mean square of what is
    applied: the sites say how v is spread, the update how large it is. Vectors, which nothing reduces, have Adam's own.

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
        self._squares: Mapping[Tensor, Squares] = {}

    def see(self, squares: Mapping[Tensor, Squares]) -> None:
        """Take note of the means for the next step, by parameter."""
        self._squares = squares

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Any) -> float: ...
    @torch.no_grad()
    def step(self, closure: Any = None) -> float | None:
        """Take one step with the gradients that are there and the means that were seen."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group["lr"], group["betas"], group["weight_decay"])
        self._squares = {}
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
        first, second = (1 - beta ** float(state["step"]) for beta in betas)  # what the means are still short of
        mean = state["exp_avg"].lerp_(gradient, 1 - betas[0])
        if factored:
            size = torch.linalg.vector_norm(gradient).square() / gradient.numel()
            for name, value in {**self._squares[parameter]._asdict(), "size": size}.items():
                state[name].lerp_(value.to(parameter), 1 - betas[1])
            rows, columns = (_spread(state[name]) for name in ("rows", "columns"))
            roots = torch.outer(rows * (state["size"] / second).sqrt(), columns).view_as(mean)
        else:
            roots = (state["exp_avg_sq"].lerp_(gradient.square(), 1 - betas[1]) / second).sqrt_()
        step = torch.div(mean, roots.add_(EPSILON), out=roots)  # one large tensor is made, and no other
        if factored:
            lr /= max(1.0, float(torch.linalg.vector_norm(step)) / first / step.numel() ** 0.5 / MAX_STEP)
        if decay:
            parameter.mul_(1 - decay)
        parameter.sub_(step, alpha=lr / first)


def _spread(means: Tensor) -> Tensor:
    """Return the root of means over their mean; ones where all are 0."""
    mean = means.mean(dtype=torch.float64).to(means)
    return torch.where(mean > 0, means / mean, 1.0).sqrt()


def is_factored(parameter: Tensor) -> bool:
    """Tell whether a parameter's second moment is factored: one that is a matrix."""
    return parameter.ndim > 1 and 1 < len(parameter) < parameter.numel()


def moment_shapes(parameter: Tensor) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a parameter's moments by name."""
    shape = tuple(parameter.shape)
    if not is_factored(parameter):
        return {"step": (), "exp_avg": shape, "exp_avg_sq": shape}
    rows = len(parameter)
    return {"step": (), "exp_avg": shape, "size": (), "rows": (rows,), "columns": (parameter.numel() // rows,)}
