"""Which axis is the channel: preparation, network and augmentation give one answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankdad.common.models import build_network
from rankdad.common.preparation.layout import Layout
from rankdad.common.preparation.moments import along_channels, sums
from rankdad.common.spec import RunSpec
from rankdad.common.spec.axes import channel_axis, space
from tests.common.faults import fault
from tests.conftest import run_spec

TABLE: dict[str, Any] = {"file": "t.csv", "label": "y", "values": [0, 1, 2]}
NPZ: dict[str, Any] = {"reader": "npz"}
FUNCTION: dict[str, Any] = {"reader": "function", "function": "ours:read"}
NIFTI: dict[str, Any] = {"reader": "nifti", **TABLE}
IMAGES: dict[str, Any] = {"reader": "images", **TABLE}
SERIES: dict[str, Any] = {
    "reader": "series",
    "file": "t.csv",
    "key": "k",
    "time": "t",
    "features": list("abcde"),
    "frames": 9,
    "label": "l",
    "values": ["x", "y", "z"],
}
LINEAR: dict[str, Any] = {"name": "linear"}
CNN: dict[str, Any] = {"name": "cnn", "filters": [4]}
CNN3D: dict[str, Any] = {"name": "cnn3d", "filters": [4]}
VIT: dict[str, Any] = {"name": "vit", "patch": 2, "width": 8, "heads": 2, "depth": 1}
GRU: dict[str, Any] = {"name": "gru", "hidden": [4]}

CASES: list[tuple[dict[str, Any], dict[str, Any], int | None, tuple[int, ...]]] = [
    # data, model, the axis of channels, the axes of space
    (NPZ | {"shape": [7]}, LINEAR, 0, ()),
    (NPZ | {"shape": [9, 5]}, LINEAR, 1, ()),
    (NPZ | {"shape": [9, 5]}, GRU, 1, ()),
    (NPZ | {"shape": [9, 8]}, CNN, None, (0, 1)),
    (FUNCTION | {"shape": [8, 8]}, VIT, None, (0, 1)),
    (SERIES, GRU, 1, ()),
    (NPZ | {"shape": [3, 8, 8]}, LINEAR, 0, (1, 2)),
    (NPZ | {"shape": [8, 8, 3]}, LINEAR, 2, (0, 1)),
    (NPZ | {"shape": [8, 8, 3]}, CNN, 2, (0, 1)),
    (NPZ | {"shape": [8, 8, 3]}, VIT, 2, (0, 1)),
    (NPZ | {"shape": [8, 8, 6]}, CNN | {"channels": "last"}, 2, (0, 1)),
    (NPZ | {"shape": [6, 8, 8]}, CNN | {"channels": "first"}, 0, (1, 2)),
    (NPZ | {"shape": [6, 8, 8]}, LINEAR, 0, (1, 2)),
    (NPZ | {"shape": [6, 8, 8]}, CNN3D, None, (0, 1, 2)),
    (NPZ | {"shape": [6, 8, 8, 2]}, CNN3D, 3, (0, 1, 2)),
    (FUNCTION | {"shape": [2, 6, 8, 8]}, CNN3D, 0, (1, 2, 3)),
    (NIFTI | {"shape": [6, 7, 8]}, LINEAR, None, (0, 1, 2)),
    (NIFTI | {"shape": [6, 7, 4]}, CNN3D, None, (0, 1, 2)),
    (NIFTI | {"shape": [3, 7, 4]}, LINEAR, None, (0, 1, 2)),
    (NIFTI | {"shape": [5, 6, 7, 8]}, LINEAR, 0, (1, 2, 3)),
    (NIFTI | {"shape": [2, 6, 7, 8]}, CNN3D, 0, (1, 2, 3)),
    (NIFTI | {"shape": [2, 6, 7, 3]}, CNN3D | {"channels": "first"}, 0, (1, 2, 3)),
    (IMAGES | {"size": [8, 8]}, CNN, 0, (1, 2)),
    (IMAGES | {"size": [8, 4]}, LINEAR, 0, (1, 2)),
    (IMAGES | {"size": [8, 2], "mode": "grey"}, LINEAR, 0, (1, 2)),
]


def spec_of(data: dict[str, Any], model: dict[str, Any], **changes: Any) -> RunSpec:
    return run_spec(data=data, model=model, preparation={"standardise": "federated"}, **changes)


@pytest.mark.parametrize(("data", "model", "axis", "axes"), CASES)
def test_there_is_one_answer(
    data: dict[str, Any], model: dict[str, Any], axis: int | None, axes: tuple[int, ...]
) -> None:
    spec = spec_of(data, model)
    assert (channel_axis(spec.data, spec.model), space(spec.data, spec.model)) == (axis, axes)
    shape = spec.data.shape
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(5, *shape)))
    rest = tuple(place for place in range(x.ndim) if axis is None or place != axis + 1)
    layout = Layout.of(spec)
    counts, totals = sums(x, layout.axis)
    np.testing.assert_allclose(totals, x.numpy().sum(rest), atol=1e-9)
    assert counts.tolist() == [x.numel() / layout.channels] * layout.channels
    mean = along_channels(totals / counts, layout.axis, len(shape))
    np.testing.assert_allclose(x - mean, x.numpy() - x.numpy().mean(rest, keepdims=True), atol=1e-9)
    if model["name"] in ("cnn", "cnn3d", "vit"):
        network = build_network(spec)
        taken = next(module for module in network.modules() if type(module).__name__ == "ChannelsFirst")
        expected = x.numpy()[:, None] if axis is None else np.moveaxis(x.numpy(), axis + 1, 1)
        assert taken(x).numpy().tolist() == expected.tolist()
    flips = [{"name": "flip", "axes": list(axes)}]
    if axes:
        spec_of(data, model, training={"augmentation": flips})
    if axis is not None and data["reader"] != "series":
        assert (
            fault(lambda: spec_of(data, model, training={"augmentation": [{"name": "flip", "axes": [axis]}]}))[1]
            == "training"
        )


@pytest.mark.parametrize(
    ("data", "model", "code", "field"),
    [
        (NPZ | {"shape": [6, 8, 8]}, CNN, "channels-unknown", "model.channels"),
        (NPZ | {"shape": [3, 8, 4]}, CNN, "channels-unknown", "model.channels"),
        (NPZ | {"shape": [2, 2, 8, 8]}, VIT, "shape-mismatch", "model.name"),
        (IMAGES | {"size": [8, 8]}, CNN | {"channels": "last"}, "channels-contradict", "model.channels"),
        (IMAGES | {"size": [8, 8]}, CNN3D, "channels-contradict", "model.channels"),
        (NIFTI | {"shape": [6, 7, 3]}, CNN, "channels-contradict", "model.name"),
        (NIFTI | {"shape": [6, 7, 8, 2]}, CNN3D, "channels-contradict", "model.channels"),
    ],
)
def test_what_does_not_tell_or_contradicts_itself_is_refused(
    data: dict[str, Any], model: dict[str, Any], code: str, field: str
) -> None:
    spec = run_spec(data=data, model=model)
    assert fault(lambda: Layout.of(spec))[:2] == (code, field)


def test_it_is_asked_in_one_place() -> None:
    root = Path(__file__).parents[3]
    files = [file for room in ("common", "local", "simulations") for file in (root / room).rglob("*.py")]
    assert [file.name for file in files if re.search(r"<= FEW\b", file.read_text())] == ["axes.py"]
