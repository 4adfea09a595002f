"""Gradients that are None, sparse or strided stay so beside LowRank and its hook."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from rankdad.distributed.hook import LowRankState, low_rank_hook
from rankdad.distributed.low_rank import LowRank
from tests.distributed.nets import digest, error, loss_of, place
from tests.ranks import run_ranks


class Embedded(nn.Module):
    """A sparse embedding, and a layer that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(50, 16, sparse=True), nn.Linear(16, 3)
        self.unused, self.at_times = nn.Linear(30, 30), nn.Linear(16, 3)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.words(ids).mean(dim=1)
        result: Tensor = self.last(hidden)
        return result + self.at_times(hidden) if bool(ids[0, 0] % 2) else result


def words(step: int) -> list[tuple[Tensor, Tensor]]:
    """Return both ranks' batches, of which the second's uses what the first's does not."""
    generator = torch.Generator().manual_seed(step)
    batches = []
    for rank in range(2):
        ids = torch.randint(50, (6, 4), generator=generator)
        ids[0, 0] = 2 * step + (rank if step % 2 else 0)
        batches.append((ids, torch.randint(3, (6,), generator=generator)))
    return batches


def nothing_and_sparse(rank: int | None, gather_up_to: int) -> tuple[list[bool], float, str, list[bool]]:
    """Return whether gradients are None or sparse as in plain PyTorch, errors, a digest, and which weights decayed."""
    torch.manual_seed(0)
    model = Embedded().double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    sync = LowRank(model, rank=rank, gather_up_to=gather_up_to)
    dense = [parameter for name, parameter in model.named_parameters() if not name.startswith("words")]
    optimizers = [torch.optim.AdamW(dense, weight_decay=0.5), torch.optim.SparseAdam(model.words.parameters())]
    alike, worst, seen = list[bool](), 0.0, dict[str, Tensor]()
    for step in range(4):
        model.zero_grad()
        (sum(F.cross_entropy(model(ids), y) for ids, y in words(step)) / 2).backward()  # type: ignore[union-attr]
        plain = {name: parameter.grad for name, parameter in model.named_parameters()}
        model.zero_grad()
        ids, y = words(step)[place()]
        sync.backward(F.cross_entropy(model(ids), y), weight=len(y))
        for name, parameter in model.named_parameters():
            expected, found = plain[name], parameter.grad
            alike.append((expected is None) == (found is None))
            if expected is not None and found is not None:
                alike.append(expected.layout == found.layout)
                if rank is None or expected.is_sparse:
                    gap = (found.to_dense() - expected.to_dense()).norm() / expected.to_dense().norm()
                    worst = max(worst, float(gap))
        for optimizer in optimizers:
            optimizer.step()
    seen = dict(model.state_dict())
    return alike, worst, digest(seen), [torch.equal(seen[name], value) for name, value in before.items()]


def hook_keeps_sparse() -> tuple[bool, float]:
    torch.manual_seed(0)
    embedding = nn.Embedding(50, 16, sparse=True)
    model = nn.Sequential(embedding, nn.Flatten(), nn.Linear(64, 3)).double()
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(LowRankState(model, rank=2), low_rank_hook)
    (sum(F.cross_entropy(model(ids), y) for ids, y in words(0)) / 2).backward()  # type: ignore[union-attr]
    expected = embedding.weight.grad
    sparse, worst = list[bool](), 0.0
    for _ in range(2):
        model.zero_grad()
        ids, y = words(0)[place()]
        F.cross_entropy(ddp(ids), y).backward()
        found = embedding.weight.grad
        assert expected is not None
        assert found is not None
        sparse.append(found.is_sparse)
        worst = max(worst, float((found.to_dense() - expected.to_dense()).norm()))
    return all(sparse), worst


def strided() -> tuple[bool, float]:
    """Return whether strides are the parameter's, and how far a fused optimizer moves from one beside it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(6 * 9, 3)).double()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    other = copy.deepcopy(model)
    sync = LowRank(model, rank=None)
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.1, fused=True) for each in (model, other)]
    generator = torch.Generator().manual_seed(0)
    batches = [(torch.randn(4, 4, 5, 5, generator=generator).double(), torch.arange(4) % 3) for _ in range(2)]
    for _ in range(2):
        for optimizer in optimizers:
            optimizer.zero_grad()
        (sum(loss_of(other, batch) for batch in batches) / 2).backward()  # type: ignore[union-attr]
        sync.backward(loss_of(model, batches[place()]), weight=4)
        alike = all(p.grad is not None and p.grad.stride() == p.stride() for p in model.parameters())
        for optimizer in optimizers:
            optimizer.step()
    return alike, error(dict(model.state_dict()), dict(other.state_dict()))


def what_stays() -> dict[str, Any]:
    return {
        "none and sparse": [nothing_and_sparse(rank, up_to) for rank in (None, 2) for up_to in (8, 1)],
        "hook": hook_keeps_sparse(),
        "strides": strided(),
    }


@pytest.mark.slow
def test_none_stays_none_sparse_stays_sparse_and_strides_stay() -> None:
    ranks = run_ranks(2, what_stays)
    for found in ranks:
        for alike, worst, _, same in found["none and sparse"]:
            assert all(alike)
            assert worst <= 1e-12
            assert same == [False, False, False, True, True, False, False]  # AdamW would have decayed the unused
        assert found["hook"][0]
        assert found["hook"][1] <= 1e-12
        assert found["strides"][0]
        assert found["strides"][1] <= 1e-9
    assert [each[2] for each in ranks[0]["none and sparse"]] == [each[2] for each in ranks[1]["none and sparse"]]
