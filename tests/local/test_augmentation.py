"""Varied training samples: each by its own seed, whatever the batch, and nonsense named before a run begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rankdad.common.errors import SpecError
from rankdad.common.spec import RunSpec
from rankdad.local.augmentation import Augmenting, augmenting
from rankdad.simulations.lockstep import run
from tests.conftest import run_spec
from tests.volumes import held, read_volumes, volumes_spec, write_volumes

PICTURES = {"reader": "images", "size": [6, 8], "values": ["cat", "dog"]}
ALL: list[dict[str, Any]] = [
    {"name": "flip", "axes": [0, 2]},
    {"name": "crop", "padding": 1},
    {"name": "crop", "size": [4, 5, 6]},
    {"name": "noise", "deviation": 0.1, "probability": 0.5},
    {"name": "intensity", "scale": 0.1, "shift": 0.2},
]


def pictures(*entries: dict[str, Any]) -> RunSpec:
    task = {"name": "classification", "classes": 2}
    return run_spec(task=task, data=PICTURES, training={"augmentation": list(entries)})


def varied(spec: RunSpec, inputs: torch.Tensor, epoch: int = 0, site: int = 0) -> torch.Tensor:
    return Augmenting(spec, site, epoch)(inputs, torch.arange(len(inputs)))


def test_a_sample_is_varied_by_site_place_and_epoch_alone() -> None:
    spec = volumes_spec(training={"augmentation": ALL})
    inputs, vary = torch.randn(5, *spec.data.shape), Augmenting(spec, 1, 3)
    whole = vary(inputs, torch.arange(5))
    for place in (4, 0, 2):
        assert torch.equal(vary(inputs[[place]], torch.tensor([place]))[0], whole[place])
    same = vary(inputs[[0, 0]], torch.tensor([0, 1]))
    assert not torch.equal(same[0], same[1])
    assert not torch.equal(Augmenting(spec, 0, 3)(inputs, torch.arange(5)), whole)
    assert not torch.equal(Augmenting(spec, 1, 4)(inputs, torch.arange(5)), whole)
    assert augmenting(volumes_spec(), 0, 0) is None


def test_a_flip_turns_about_half_of_the_samples_along_its_axis() -> None:
    inputs = torch.arange(48.0).reshape(1, 1, 6, 8).expand(400, 3, 6, 8)
    found = varied(pictures({"name": "flip", "axes": [2]}), inputs)
    turned = [torch.equal(one, inputs[0].flip(2)) for one in found]
    assert all(turn or torch.equal(one, inputs[0]) for turn, one in zip(turned, found, strict=True))
    assert 150 < sum(turned) < 250


def test_a_crop_moves_the_picture_within_its_padding() -> None:
    inputs = torch.arange(1.0, 49).reshape(1, 1, 6, 8).expand(200, 3, 6, 8)
    around = torch.nn.functional.pad(inputs[0], (1, 1, 1, 1))
    windows = [around[:, i : i + 6, j : j + 8] for i in range(3) for j in range(3)]
    found = varied(pictures({"name": "crop", "padding": 1}), inputs)
    places = [next(at for at, one in enumerate(windows) if torch.equal(one, sample)) for sample in found]
    assert set(places) == set(range(9))


def test_a_smaller_window_is_brought_to_the_samples_size() -> None:
    ramp = torch.arange(8.0).expand(3, 6, 8)
    found = varied(pictures({"name": "crop", "size": [3, 4]}), ramp.expand(50, 3, 6, 8))
    assert found.shape == (50, 3, 6, 8)
    assert torch.allclose(found[..., 2:6].diff(dim=-1), torch.tensor(0.5))


def test_noise_and_intensity_are_as_large_as_asked() -> None:
    inputs = torch.ones(500, 3, 6, 8)
    noise = varied(pictures({"name": "noise", "deviation": 0.3}), inputs) - 1
    assert float(noise.std()) == pytest.approx(0.3, rel=0.05)
    assert abs(float(noise.mean())) < 0.01
    found = varied(pictures({"name": "intensity", "scale": 0.2, "shift": 0.5}), inputs)
    each = found.flatten(1)
    assert torch.equal(each.amin(1), each.amax(1))
    assert 0.3 < float(each.min()) < 0.45
    assert 1.55 < float(each.max()) < 1.7


@pytest.mark.slow
def test_only_training_varies_and_in_memory_as_where_it_is_read(tmp_path: Path) -> None:
    for seed, site in enumerate(("alpha", "beta")):
        write_volumes(tmp_path / "data" / site, 14, seed)
    plain, spec = (volumes_spec(training={"epochs": 1, "augmentation": entries}) for entries in ([], ALL))
    lazy = read_volumes(spec, tmp_path / "data", cache_mib=0)
    ahead = read_volumes(spec, tmp_path / "data", cache_mib=0, workers=2)
    found = [
        next(iter(run(one, data, tmp_path / str(place)).values()))
        for place, (one, data) in enumerate(((spec, lazy), (spec, ahead), (spec, held(lazy)), (plain, lazy)))
    ]
    assert found[0].weights_sha256 == found[1].weights_sha256 == found[2].weights_sha256
    assert found[0].test == found[2].test
    assert found[0].weights_sha256 != found[3].weights_sha256


TABLE = {"reader": "csv", "file": "t.csv", "features": ["a"], "label": "b", "values": [0, 1, 2]}
SERIES = {"reader": "series", "file": "t.csv", "key": "k", "time": "t", "features": ["x", "y"], "frames": 9}
SERIES |= {"label": "l", "values": ["a", "b", "c"]}


@pytest.mark.parametrize(
    ("data", "entry", "field", "named"),
    [
        (TABLE, {"name": "flip", "axes": [0]}, "", "table"),
        ({"shape": [4], "tokens": 9}, {"name": "noise", "deviation": 1}, "", "tokens"),
        ({"shape": [6]}, {"name": "crop", "padding": 1}, "", "axes of space"),
        (SERIES, {"name": "flip", "axes": [0]}, "", "axes of space"),
        ({"shape": [3, 8, 8]}, {"name": "flip", "axes": [0]}, "", "[1, 2]"),
        ({"shape": [8, 8, 3]}, {"name": "flip", "axes": [2]}, "", "[0, 1]"),
        ({"shape": [3, 8, 8]}, {"name": "crop", "size": [9, 8]}, "", "larger"),
        ({"shape": [3, 8, 8]}, {"name": "crop", "size": [8]}, ".augmentation[0].size", "size"),
        ({"shape": [3, 8, 8]}, {"name": "crop", "size": [4, 4, 4]}, "", "2 numbers"),
        ({"shape": [3, 8, 8]}, {"name": "crop"}, "", "nothing"),
        ({"shape": [3, 8, 8]}, {"name": "intensity"}, "", "nothing"),
        ({"shape": [1, 9, 9, 9]}, {"name": "crop", "padding": 10_000}, "", "padding"),
        ({"shape": [1, 9, 9, 9]}, {"name": "RandAffine"}, ".augmentation[0]", "MONAI"),
    ],
)
def test_nonsense_is_named_before_a_run_begins(
    data: dict[str, Any], entry: dict[str, Any], field: str, named: str
) -> None:
    with pytest.raises(SpecError) as refused:
        run_spec(data=data, training={"augmentation": [entry]})
    assert refused.value.field == f"training{field}"
    assert named in str(refused.value)
