"""Low-rank gradients, accumulated over parts and saved after each epoch: torchrun --nproc-per-node 2 train.py"""

import argparse
import hashlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import rankdad

PART, PARTS = 32, 2  # samples per backward pass, passes per step

options = argparse.ArgumentParser()
options.add_argument("--epochs", type=int, default=4)
options.add_argument("--output", type=Path, default=Path("result"))
given = options.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()

# Each rank has its own samples, in different numbers.
draw = torch.Generator().manual_seed(1 + rank)
x = torch.randn(400 + 200 * rank, 32, generator=draw)
y = (x[:, :4].square().sum(dim=1) > 3.4).long()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
sync = rankdad.LowRank(model)  # called at all ranks; copies rank 0's weights
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

# One file per rank, because residuals differ between ranks.
given.output.mkdir(parents=True, exist_ok=True)
saved = [int(path.stem.split("-")[1]) for path in given.output.glob(f"rank{rank}-*.pt")]
begin = torch.tensor(max(saved, default=0))
dist.all_reduce(begin, op=dist.ReduceOp.MIN)  # the last epoch that all ranks have saved
if begin:
    kept = torch.load(given.output / f"rank{rank}-{begin}.pt", weights_only=True)
    sync.load_state_dict(kept["sync"])
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    print(f"rank {rank}: continues after epoch {begin}\n", end="", flush=True)

# The exchange is a collective: all ranks take as many steps as the one with most samples.
steps = torch.tensor(-(-len(x) // (PART * PARTS)))
dist.all_reduce(steps, op=dist.ReduceOp.MAX)

for epoch in range(int(begin) + 1, given.epochs + 1):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000 * epoch + rank))
    parts, losses = list(order.split(PART)), torch.zeros(2)
    for _ in range(int(steps)):
        optimizer.zero_grad()
        mine, parts = parts[:PARTS], parts[PARTS:]
        for number, part in enumerate(mine, 1):
            loss = F.cross_entropy(model(x[part]), y[part])
            sync.backward(loss, weight=len(part), exchange=number == len(mine))  # one exchange per step
            losses += torch.tensor([loss.item() * len(part), len(part)])
        if not mine:
            sync.backward(None, weight=0)  # this rank has no samples left
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # the same norm at all ranks
        optimizer.step()

    dist.all_reduce(losses)
    if rank == 0:
        print(f"epoch {epoch}: loss {losses[0] / losses[1]:.4f}\n", end="", flush=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "sync": sync.state_dict()}
    beside = given.output / f"rank{rank}.new"
    torch.save(state, beside)
    beside.replace(given.output / f"rank{rank}-{epoch}.pt")  # atomic

digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()
print(f"rank {rank}: {int(steps)} steps an epoch, weights {digest[:16]}\n", end="", flush=True)
dist.destroy_process_group()
