"""Around the block of divided models: four ranks, a model, a batch; afterwards the state is that of the checkpoint."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

import rankdad

RANKS = 4
dist.init_process_group("gloo")
assert dist.get_world_size() == RANKS
torch.manual_seed(dist.get_rank() // 2)  # of the batch: ranks of tensor parallel share one
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
inputs, labels = torch.randn(16, 64), torch.randint(10, (16,))
for used in (init_device_mesh, fully_shard, ColwiseParallel, RowwiseParallel, parallelize_module, F, rankdad):
    assert used
# BLOCK
found = globals()["sync"]
before = found.state_dict()
found.load("checkpoint")
after = found.state_dict()
assert before["step"] == after["step"] == 1
for name, residual in before["site"]["residuals"].items():
    assert torch.equal(residual, after["site"]["residuals"][name]), name
assert all(p.grad is not None and p.grad.full_tensor().abs().sum() > 0 for p in model.parameters())
assert os.path.isdir("checkpoint")  # noqa: PTH112
dist.destroy_process_group()
