"""Around the block of Lightning: two ranks train for an epoch; afterwards weights are equal."""

import hashlib

import lightning
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import rankdad

# BLOCK


class Module(Digits):  # noqa: F821 (the page's)
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch, _):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

    def on_train_end(self):
        assert isinstance(self.sync, rankdad.LowRank)
        found = b"".join(p.detach().numpy().tobytes() for p in self.net.parameters())
        digests = [None, None]
        dist.all_gather_object(digests, hashlib.sha256(found).hexdigest())
        assert digests[0] == digests[1], digests


data = TensorDataset(torch.randn(96, 64), torch.randint(10, (96,)))
options = {"accelerator": "cpu", "devices": 2, "max_epochs": 1, "gradient_clip_val": 1.0, "logger": False}
lightning.Trainer(strategy="ddp", enable_checkpointing=False, enable_progress_bar=False, **options).fit(
    Module(), DataLoader(data, batch_size=8)
)
