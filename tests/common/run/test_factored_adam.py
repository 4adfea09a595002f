"""The factored second moment against a plain implementation, and against what it stands for."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from rankdad.common.projections import Projections
from rankdad.common.run.factored_adam import FactoredAdam, is_factored
from rankdad.common.run.replica import Replica
from tests.conftest import run_spec

LR, BETAS, DECAY = 0.05, (0.8, 0.95), 0.1
FACTORED = {"optimizer": {"name": "adam", "lr": 0.01, "second_moment": "factored"}}


def exact(gradient: Tensor) -> Projections:
    """Projections whose squares are the gradient's own mean squares, as they are in the mean over signs."""
    squared = gradient.reshape(len(gradient), -1) ** 2
    return Projections(-squared.mean(1).sqrt(), squared.mean(0).sqrt())


def _sum(terms: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(terms)).sum(dim=0)


def plain_step(weight: Tensor, gradients: list[Tensor], seen: list[Projections]) -> Tensor:
    """All steps so far from their definition: every running mean is a weighted sum, with weights that add up to one."""
    steps = len(gradients)
    first, second = ([(1 - b) * b ** (steps - 1 - t) / (1 - b**steps) for t in range(steps)] for b in BETAS)
    mean = _sum(w * g for w, g in zip(first, gradients, strict=True))
    if weight.ndim == 1:
        return mean.div(_sum(w * g**2 for w, g in zip(second, gradients, strict=True)).sqrt() + 1e-8)
    rows = _sum(w * s.rows**2 for w, s in zip(second, seen, strict=True))
    columns = _sum(w * s.columns**2 for w, s in zip(second, seen, strict=True))
    v = rows[:, None] * columns[None, :] / (rows.mean() * columns.mean()).sqrt()
    step: Tensor = mean / (torch.sqrt(v.reshape(weight.shape)) + 1e-8)
    return step.div(max(1.0, float((step**2).mean()) ** 0.5))


@pytest.mark.parametrize("shape", [(7, 5), (4, 3, 2, 2), (6,), (1, 6), (6, 1)])
def test_steps_are_those_of_a_plain_implementation(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(len(shape))
    parameter = torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
    optimizer = FactoredAdam([parameter], LR, BETAS, DECAY)
    weight, gradients, seen = parameter.detach().clone(), list[Tensor](), list[Projections]()
    for step in range(6):
        gradients.append(torch.randn(shape, generator=generator, dtype=torch.float64) * 10 ** -(step % 3))
        pooled = torch.randn(shape, generator=generator, dtype=torch.float64)  # of which the update says little
        parameter.grad = gradients[-1].clone()
        if is_factored(parameter):
            seen.append(exact(pooled))
            optimizer.see({parameter: seen[-1]})
        optimizer.step()
        if min(shape) == 1:
            flat, flats = weight.flatten(), [gradient.flatten() for gradient in gradients]
            plain = plain_step(flat, flats, seen).reshape(shape)
        else:
            plain = plain_step(weight, gradients, seen)
        weight = weight - LR * DECAY * weight - LR * plain
        assert torch.allclose(parameter, weight, rtol=1e-10, atol=1e-12), step


def test_a_gradient_of_rank_one_is_divided_as_by_adams_own_moment() -> None:
    """Where squares really are an outer product, factored and elementwise are the same."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.nn.Parameter(torch.ones(5, 4, dtype=torch.float64)) for _ in range(2)]
    factored, adam = FactoredAdam([weights[0]], LR, BETAS, 0.0), torch.optim.Adam([weights[1]], LR, BETAS)
    left, right = (torch.randn(n, generator=generator, dtype=torch.float64) for n in (5, 4))
    for step in range(5):
        gradient = torch.outer(left, right) * (-1) ** step * (step + 1)
        for weight, optimizer in zip(weights, (factored, adam), strict=True):
            weight.grad = gradient.clone()
            factored.see({weights[0]: exact(gradient)})
            optimizer.step()
    assert torch.allclose(weights[0], weights[1], rtol=1e-6)


def test_projections_that_tell_of_nothing_make_no_giant_step() -> None:
    """What feedback brings to rows that no site has a gradient for any more: the step is no longer than Adam's is."""
    parameter = torch.nn.Parameter(torch.zeros(8, 6))
    optimizer = FactoredAdam([parameter], 0.1, (0.9, 0.999), 0.0)
    nothing = Projections(torch.zeros(8), torch.zeros(6))
    for own in (nothing, Projections(torch.eye(8)[0] * 1e15, torch.full((6,), 1e15)), nothing):
        before = parameter.detach().clone()
        parameter.grad = torch.ones(8, 6)
        optimizer.see({parameter: own})
        optimizer.step()
        moved = parameter.detach() - before
        assert torch.isfinite(moved).all()
        assert float(moved.square().mean().sqrt()) <= 0.1 * (1 + 1e-6)


def test_projections_that_are_rounding_alone_decide_nothing() -> None:
    """Rows of two classes' last layer add up to 0: with equal signs Gᵀu differs from method to method."""
    generator = torch.Generator().manual_seed(0)
    row = torch.randn(32, generator=generator)
    gradient = torch.stack([row, -row])
    found = list[Tensor]()
    for _ in range(2):
        parameter = torch.nn.Parameter(torch.zeros(2, 32))
        optimizer = FactoredAdam([parameter], LR, BETAS, 0.0)
        parameter.grad = gradient.clone()
        rows = gradient @ torch.ones(32) / 32**0.5
        optimizer.see({parameter: Projections(rows, 1e-7 * torch.randn(32, generator=generator))})
        optimizer.step()
        found.append(parameter.detach())
    assert torch.allclose(found[0], found[1], rtol=1e-5)
    assert float(found[0].square().mean().sqrt()) <= LR * (1 + 1e-6)


def test_a_gradient_that_is_clipped_is_divided_by_squares_of_what_is_left() -> None:
    """Else a step that is clipped to a hundredth would be a hundredth of a learning rate."""
    generator = torch.Generator().manual_seed(0)
    clipped, scaled = (Replica(run_spec(training=FACTORED | {"clip": clip})) for clip in (0.5, 1e6))
    for _ in range(3):
        gradients = {name: torch.randn(p.shape, generator=generator) for name, p in clipped.trained.items()}
        norm = float(torch.cat([gradient.flatten() for gradient in gradients.values()]).norm())
        for replica, scale in ((clipped, 1.0), (scaled, 0.5 / norm)):
            own = {name: scale * gradient for name, gradient in gradients.items()}
            replica.apply(own, {name: exact(gradient) for name, gradient in own.items() if is_factored(gradient)})
    for name, parameter in clipped.trained.items():
        assert torch.allclose(parameter, scaled.trained[name], rtol=1e-4, atol=1e-7), name


def test_moments_are_saved_and_those_of_another_optimizer_are_refused() -> None:
    spec, other = run_spec(training=FACTORED), run_spec()
    replica, plain = Replica(spec), Replica(other)
    named = dict(replica.model.named_parameters())
    gradients = {name: torch.randn(p.shape, generator=torch.Generator().manual_seed(1)) for name, p in named.items()}
    projections = {name: exact(gradient) for name, gradient in gradients.items() if is_factored(gradient)}
    replica.apply(gradients, projections)
    plain.apply(gradients)
    again = Replica(spec)
    again.load_state(replica.state(), 1)
    for each in (replica, again):
        each.apply(gradients, projections)
    assert replica.digest() == again.digest()
    assert sum(value.numel() for name, value in replica.state().items() if name.startswith(("rows/", "columns/"))) == (
        sum(len(own.rows) + len(own.columns) for own in projections.values())
    )
    for state, reader in ((plain.state(), Replica(spec)), (replica.state(), Replica(other))):
        with pytest.raises(ValueError, match="of every trained weight, and nothing else"):
            reader.load_state(state, 1)
    name = next(name for name in replica.state() if name.startswith("rows/"))
    with pytest.raises(ValueError, match=r"rows of .*: got \[3, 3\], expected"):
        again.load_state(replica.state() | {name: torch.zeros(3, 3)}, 1)
