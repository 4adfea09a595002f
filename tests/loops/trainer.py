"""Around the block of the Hugging Face Trainer: two ranks train for some steps; afterwards weights are equal."""

import hashlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from transformers import Trainer, TrainingArguments

import rankdad

# BLOCK


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x, labels):
        out = self.net(x)
        return {"loss": F.cross_entropy(out, labels), "logits": out}


data = [{"x": torch.randn(64), "labels": torch.tensor(number % 10)} for number in range(64)]
options = TrainingArguments(
    "out", max_steps=4, gradient_accumulation_steps=2, use_cpu=True, report_to=[], save_strategy="no"
)
trainer = LowRankTrainer(model=Net(), args=options, train_dataset=data)  # noqa: F821 (the page's)
trainer.train()
assert isinstance(trainer, Trainer)
assert isinstance(trainer.state_of_hook, rankdad.LowRankState)
found = b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters())
digests = [None, None]
dist.all_gather_object(digests, hashlib.sha256(found).hexdigest())
assert digests[0] == digests[1], digests
