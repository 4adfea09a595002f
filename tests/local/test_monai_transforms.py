"""Samples varied by MONAI's transforms: by seeds of ours alone, and what does not fit is refused by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankdad.common.errors import RankdadError, SpecError, UserError
from rankdad.common.spec import RunSpec
from rankdad.local.augmentation import Augmenting, check_augmentation_here
from rankdad.simulations.lockstep import run
from tests.conftest import run_spec
from tests.volumes import read_volumes, volumes_spec, write_volumes

SHAPE = (12, 10, 8)
ALL: list[dict[str, Any]] = [
    {
        "name": "RandAffine",
        "rotate_range": [0.2, 0.2, 0.2],
        "translate_range": [1, 1, 1],
        "scale_range": [0.1, 0.1, 0.1],
    },
    {"name": "Rand3DElastic", "sigma_range": [1, 2], "magnitude_range": [1, 2]},
    {"name": "RandZoom", "min_zoom": 0.5, "max_zoom": 0.7},
    {"name": "RandGaussianSmooth"},
    {"name": "RandGaussianSharpen"},
    {"name": "RandAdjustContrast"},
    {"name": "RandBiasField", "coeff_range": [0.1, 0.3]},
    {"name": "RandRicianNoise", "std": 0.5},
    {"name": "RandGibbsNoise", "alpha": [0.3, 0.6]},
    {"name": "RandHistogramShift"},
    {"name": "RandCoarseDropout", "holes": 2, "spatial_size": [3, 3, 3], "fill_value": 9.0},
    {"name": "RandGridDistortion", "num_cells": 3, "distort_limit": 0.2},
    {"name": "RandSimulateLowResolution", "zoom_range": [0.5, 0.6]},
]


def spec_of(*entries: dict[str, Any], shape: tuple[int, ...] = SHAPE, **changes: Any) -> RunSpec:
    data = volumes_spec().data.model_dump(mode="json") | {"shape": list(shape)}
    return volumes_spec(data=data, training={"augmentation": [{"prob": 1.0} | one for one in entries], **changes})


@pytest.mark.parametrize("shape", [SHAPE, (2, *SHAPE)], ids=["one channel", "two"])
@pytest.mark.parametrize("entry", ALL, ids=lambda entry: str(entry["name"]))
def test_a_sample_is_changed_by_site_place_and_epoch_alone(entry: dict[str, Any], shape: tuple[int, ...]) -> None:
    pytest.importorskip("monai")
    spec = spec_of(entry, shape=shape)
    inputs = torch.rand(3, *shape, generator=torch.Generator().manual_seed(1))
    before, state = inputs.clone(), torch.get_rng_state()
    whole = Augmenting(spec, 1, 2)(inputs, torch.arange(3))
    assert torch.equal(inputs, before), "a sample may be the cache's own"
    assert torch.equal(torch.get_rng_state(), state), "nothing is drawn from the generator that dropout draws from"
    assert (type(whole), whole.shape, whole.dtype) == (torch.Tensor, inputs.shape, torch.float32)
    assert not any(torch.equal(one, other) for one, other in zip(whole, inputs, strict=True))
    torch.manual_seed(5)
    np.random.seed(5)
    for place in (2, 0):
        assert torch.equal(Augmenting(spec, 1, 2)(inputs[[place]], torch.tensor([place]))[0], whole[place])
    same, places = inputs[[0] * 8], torch.arange(8)  # of eight, as zooms of small samples come to few sizes
    drawn = [Augmenting(spec, site, epoch)(same, places).numpy().tobytes() for site, epoch in ((1, 2), (0, 2), (1, 3))]
    assert len(set(drawn)) == 3
    assert len({one.numpy().tobytes() for one in Augmenting(spec, 1, 2)(same, places)}) > 1


def test_axes_of_space_are_found_where_channels_come_last() -> None:
    pytest.importorskip("monai")
    entry = {"name": "RandAffine", "prob": 1.0, "translate_range": [2, 0], "padding_mode": "zeros"}
    last = run_spec(data={"shape": [9, 8, 3]}, training={"augmentation": [entry]})
    first = run_spec(data={"shape": [3, 9, 8]}, training={"augmentation": [entry]})
    inputs = torch.rand(2, 9, 8, 3)
    found = Augmenting(last, 0, 0)(inputs, torch.arange(2))
    assert torch.equal(found, Augmenting(first, 0, 0)(inputs.movedim(-1, 1), torch.arange(2)).movedim(1, -1))


def test_weights_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    pytest.importorskip("monai")
    entries = [{"name": "RandBiasField", "prob": 0.7}, {"name": "RandRicianNoise", "prob": 0.7}]
    spec = volumes_spec(training={"epochs": 1, "augmentation": entries}, preparation={"standardise": "none"})
    for seed, site in enumerate(("alpha", "beta")):
        write_volumes(tmp_path / "data" / site, 12, seed)
    found = set[str]()
    for workers in (0, 1, 3):
        data = read_volumes(spec, tmp_path / "data", workers=workers, cache_mib=0)
        found |= {*run(spec, data, tmp_path / str(workers))["alpha"].weights_sha256.values()}
    assert len(found) == 1


def test_without_monai_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "monai", None)
    write_volumes(tmp_path / "alpha", 4, 0)
    spec = volumes_spec(training={"augmentation": [{"name": "RandGaussianSmooth"}]})
    said = r"training.augmentation: RandGaussianSmooth needs MONAI, .*pip install 'rankdad\[monai\]'"
    with pytest.raises(UserError, match=said):
        read_volumes(spec, tmp_path)


def test_what_a_transform_cannot_change_is_told_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monai = pytest.importorskip("monai.transforms")

    def fail(*args: Any, **kwargs: Any) -> None:
        raise ValueError("too  thin")

    monkeypatch.setattr(monai.RandGaussianSmooth, "__call__", fail)
    spec = spec_of({"name": "RandGaussianSmooth", "prob": 0.01})
    with pytest.raises(SpecError, match=r"^training.augmentation\[0\]: RandGaussianSmooth of MONAI .*: 'too thin'"):
        check_augmentation_here(spec)
    with pytest.raises(RankdadError, match="RandGaussianSmooth of MONAI"):
        Augmenting(spec_of({"name": "RandGaussianSmooth"}), 0, 0)(torch.rand(1, *SHAPE), torch.arange(1))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"name": "RandLambda"}, r"augmentation\[0\]: .*RandLambda.*expected"),
        ({"name": "RandZoom", "max_zoon": 2}, r"augmentation\[0\].*max_zoon"),
        ({"name": "RandZoom", "min_zoom": 1.5}, r"max_zoom: got 1.1, expected min_zoom, 1.5, or more"),
        ({"name": "RandGibbsNoise", "alpha": [0.5, 0.1]}, r"alpha: .*got \[0.5, 0.1\], expected the smaller"),
        ({"name": "RandGibbsNoise", "alpha": 2}, r"augmentation\[0\].*alpha"),
        ({"name": "RandAffine"}, r"RandAffine: changes nothing, expected rotate_range"),
        ({"name": "RandAffine", "rotate_range": [0.1]}, r"rotate_range: got \[0.1\], expected 3 numbers"),
        ({"name": "RandCoarseDropout", "holes": 1, "spatial_size": [9, 9, 9]}, r"spatial_size: .*larger than"),
        ({"name": "RandGaussianSmooth", "prob": 0}, r"augmentation\[0\].*prob"),
    ],
)
def test_nonsense_is_named(entry: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        volumes_spec(training={"augmentation": [entry]})


def test_tables_series_and_pictures_are_told_from_volumes() -> None:
    elastic = {"name": "Rand3DElastic", "sigma_range": [1, 2], "magnitude_range": [1, 2]}
    for shape, said in (([3, 8, 8], "samples are pictures, expected volumes"), ([20], "have no axes of space")):
        with pytest.raises(SpecError, match=said):
            run_spec(data={"shape": shape}, training={"augmentation": [elastic]})
