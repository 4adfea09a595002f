"""Around the blocks of Accelerate: two ranks, a model, a loader; afterwards weights are equal."""

import hashlib

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import rankdad

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(dist.get_rank())
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(96, 64), torch.randint(10, (96,))), batch_size=8)
# BLOCK
if "sync" not in globals():
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            accelerator.backward(F.cross_entropy(model(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
    assert model._comm_hooks if hasattr(model, "_comm_hooks") else True
assert rankdad.__version__
found = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
digests = [None, None]
dist.all_gather_object(digests, hashlib.sha256(found).hexdigest())
assert digests[0] == digests[1], digests
