"""Rows that a model was trained on are recognised as they were read, also where a run replaces their rare values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rankdad.common.data import Samples, SiteData, read_site
from rankdad.common.policy import Policy
from rankdad.common.preparation import in_memory
from rankdad.local.admission import usual
from rankdad.local.trained_rows import seen_rows, write_trained_rows
from tests.conftest import run_spec
from tests.local.test_admission import data_of
from tests.texts import notes, text_spec, write_notes


@pytest.mark.parametrize("rare", [" Ωμέγα", " and many more words", 7e6])  # tokens, a length, a number
def test_rows_with_rare_values_are_recognised(tmp_path: Path, rare: str | float) -> None:
    if isinstance(rare, str):
        spec = text_spec(data={"length": 64})
        texts = [(key, text + rare * (place == 3), label) for place, (key, text, label) in enumerate(notes(45, 0))]
        data = read_site(spec, write_notes(tmp_path, texts), 0)
    else:
        spec, data = run_spec(), data_of(30, 10, 5)
        inputs = torch.arange(45.0)[:, None].repeat(1, 6)
        inputs[:, 0] = 0
        inputs[3, 0] = rare
        data = SiteData(Samples(inputs, data.samples.labels), data.splits)
    run = usual(Policy(), spec, data)
    assert not in_memory(run.samples.inputs).equal(in_memory(data.samples.inputs))
    write_trained_rows(tmp_path, run)
    everything = in_memory(data.samples.inputs)
    for part in (data.splits[-1].train, data.splits[-1].validation):
        assert seen_rows(tmp_path, everything[part]) == len(part) > 0
