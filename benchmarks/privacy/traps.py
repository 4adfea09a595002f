"""What initial weights tell that an attacker has chosen: units that fire for few patients of a batch.

The gradient of a unit that fires for one patient is that patient's row, and its bias says how much of it.
"""

from __future__ import annotations

import hashlib
import itertools
from statistics import NormalDist

import torch
from safetensors.torch import save_file

from benchmarks.privacy.hospitals import SITES, Hospitals, Refused, document
from benchmarks.privacy.judge import Claim
from benchmarks.privacy.rows import PLACES, distinct, named
from benchmarks.privacy.sums import in_steps
from rankdad.common.rounds.step import Step
from rankdad.common.rounds.sums import Sums

UNITS = 3
RARE = 0.05  # of patients, for whom a unit fires
SHARP = 20.0
BATCHES = (8, 9, 10, 12, 16, 24)  # the smallest that a policy allows
FILE = "begun.safetensors"


def traps(hospitals: Hospitals) -> list[Claim]:
    """Claim rows in the gradients of units that fire for a patient's age, height or index of mass beyond a bound."""
    bound = NormalDist().inv_cdf(1 - RARE)
    weights = torch.zeros(UNITS, len(PLACES))
    weights[torch.arange(UNITS), torch.arange(UNITS)] = SHARP
    bias = torch.full((UNITS,), -SHARP * bound)
    begun = {"1.weight": weights, "1.bias": bias}
    begun |= {"3.weight": torch.tensor([[-1.0], [1.0]]).repeat(1, UNITS) / 10, "3.bias": torch.zeros(2)}
    hospitals.folder.mkdir(parents=True, exist_ok=True)
    save_file(begun, hospitals.folder / FILE)
    digest = hashlib.sha256((hospitals.folder / FILE).read_bytes()).hexdigest()
    model = {"name": "mlp", "hidden": [UNITS], "pretrained": {"file": FILE, "sha256": digest}}
    seen = None
    for size in BATCHES:
        training = {"epochs": 5, "optimizer": {"name": "sgd", "lr": 1e-6}, "batch_size": size, "validation": 0.0}
        spec = document(model=model, training=training, evaluation={"name": "holdout"})
        seen = hospitals.run(spec, (), hospitals.folder)
        if not isinstance(seen, Refused):
            break
    if seen is None or isinstance(seen, Refused):
        return []
    totals = {m.body.stage: m.body.values for m in seen.down if isinstance(m.body, Sums)}
    steps = {site: [m.body for m in seen.up[site] if isinstance(m.body, Step)] for site in SITES}
    found = (named(site, distinct(in_steps(seen, own, totals))) for site, own in steps.items())
    return list(itertools.chain(*found))
