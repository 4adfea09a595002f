"""Low-rank gradients in a training loop of one's own: torchrun --nproc-per-node 2 docs/tutorials/low_rank.py"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import rankdad

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)  # each rank draws batches of its own; the weights are rank 0's

images, labels = load_digits(return_X_y=True)
x, y = torch.from_numpy(images).float() / 16, torch.from_numpy(labels)
x, y = x[rank::ranks], y[rank::ranks]  # what this rank has

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
sync = rankdad.LowRank(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for _ in range(5):
    for batch in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        sync.backward(F.cross_entropy(model(x[batch]), y[batch]), weight=len(batch))  # in place of loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

accuracy, total = (model(x).argmax(dim=1) == y).float().mean(), sum(p.sum() for p in model.parameters())
print(f"rank {rank}: accuracy {accuracy:.3f}, weights add up to {total:.6f}\n", end="", flush=True)
dist.destroy_process_group()
