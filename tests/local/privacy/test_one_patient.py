"""Specs that made a patient stand alone in what left: under the default policy nobody does, without its rules one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from rankdad.common.data import read_site
from rankdad.common.models import build_model
from rankdad.common.policy import EVERYTHING, Policy
from rankdad.common.privacy.parts import Secret
from rankdad.common.protocol.plan import make_plan
from rankdad.local.admission import admitted
from rankdad.local.privacy.assigning import assigner_of
from tests.conftest import run_spec

COUNT = 60
DATA: dict[str, Any] = {
    "reader": "csv",
    "file": "a.csv",
    "key": "id",
    "features": ["age"],
    "label": "mrs",
    "positive": "> 2",
    "values": ["no", "yes"],
}
ASKED: dict[str, dict[str, Any]] = {
    "S4: identifiers as levels": {"features": ["age", "pid"], "categorical": {"pid": [f"p{n}" for n in range(COUNT)]}},
    "S7: a bound beyond which one is": {"clip": {"age": [0, 79]}},
    "S8: a label rule that one alone meets": {"positive": "> 4"},
}


@pytest.mark.parametrize("attack", ASKED)
@pytest.mark.parametrize("policy", [Policy(), EVERYTHING.model_copy(update={"keyed_folds": True})], ids=["on", "off"])
def test_no_level_bound_or_class_has_one_patient(tmp_path: Path, attack: str, policy: Policy) -> None:
    """p0 alone is older than 79, and has an mrs of 5."""
    rows = [f"p{n},p{n},{20 + n % 50 if n else 90},{5 if not n else 3 * (n % 2)}" for n in range(COUNT)]
    (tmp_path / "a.csv").write_text("\n".join(["id,pid,age,mrs", *rows]))
    spec = run_spec(
        task={"name": "classification", "classes": 2},
        data=DATA | ASKED[attack],
        evaluation={"name": "holdout"},
        model={"name": "mlp", "hidden": [4]},
        training={"batch_size": 16},
        method={"name": "rank-dad", "rank": 2},
    )
    assigner = assigner_of(tmp_path / "privacy", "alpha", policy, spec, None, Secret(b"s" * 32))
    data = read_site(spec, tmp_path, 0, assigner=assigner)
    data = admitted(policy, spec, make_plan(spec, build_model(spec)), data)
    inputs = data.samples.inputs
    assert isinstance(inputs, Tensor)
    ages, counts = np.unique(inputs[:, 0].numpy(), return_counts=True)
    alone = {
        "S4": int((inputs[:, 1:].sum(0) == 1).sum()),
        "S7": int(ages[-1] == 79 and counts[-1] == 1),
        "S8": int((np.bincount(data.samples.labels.numpy()) == 1).sum()),
    }[attack[:2]]
    assert (alone > 0) == (policy != Policy())
