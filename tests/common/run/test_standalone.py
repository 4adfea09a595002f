"""`rankdad export --onnx --torch`: one file for other programs, whose outputs are those of `predict`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor

from rankdad.common.errors import UserError
from rankdad.common.models import build_network
from rankdad.common.preparation import Fit, OwnFit, Preparing
from rankdad.common.preparation.layout import Layout
from rankdad.common.run.artifacts import SavedModel, save_model
from rankdad.common.run.saved import saved_model
from rankdad.common.run.standalone import DOCUMENT, Standalone, save_onnx, save_torch
from rankdad.local.prediction import predictions
from tests.conftest import run_spec, sampled

TABLE = {
    "reader": "csv",
    "file": "t.csv",
    "features": ["age", "sex", "chol"],
    "categorical": {"sex": ["m", "w"]},
    "categorical_other": ["sex"],
    "missing_indicators": ["chol"],
    "missing": "impute",
    "label": "ill",
}
CLASSES = {"task": {"name": "classification", "classes": 3}, "data": TABLE | {"values": ["a", "b", "c"]}}
PIXELS = {"data": {"shape": [8, 8]}, "task": {"name": "classification", "classes": 2}}
SEVERAL = {"task": {"name": "multi-label", "labels": 2}, "data": TABLE | {"label": ["x", "y"]}}
TRAINED: dict[str, dict[str, Any]] = {
    "classes": CLASSES,
    "a number": {"task": {"name": "regression"}, "data": TABLE, "model": {"name": "linear"}},
    "several labels": SEVERAL,
    "pictures": PIXELS | {"model": {"name": "cnn", "filters": [4, 8]}, "preparation": {"standardise": "federated"}},
    "a transformer": PIXELS | {"model": {"name": "vit", "patch": 4, "width": 8, "heads": 2, "depth": 1}},
    "float64": CLASSES | {"training": {"dtype": "float64"}},
}


def trained(**changes: Any) -> SavedModel:
    preparation = {"preparation": {"standardise": "federated"}} if "model" not in changes else {}
    spec = run_spec(**(preparation | changes))
    generator = torch.Generator().manual_seed(1)

    def numbers(width: int) -> Tensor:
        return torch.rand(width, generator=generator, dtype=torch.float64) + 0.5

    known: dict[str, Any] = {}
    channels = Layout.of(spec).channels
    if spec.preparation.standardise != "none":
        known = {"mean": numbers(channels), "scale": numbers(channels)}
    if getattr(spec.data, "missing", "") == "impute":
        known["fill"] = numbers(channels)
    fit = Fit(target_mean=5e4, target_scale=2e3, **known) if spec.task.name == "regression" else Fit(**known)
    return SavedModel(spec, build_network(spec).eval(), fit, None, "")


def by_predict(model: SavedModel, inputs: Tensor) -> Any:
    """The numbers of `predict`'s table."""
    transform = Preparing(model.spec).transform(model.fit, model.site_fit)
    with torch.no_grad():
        outputs = model.network(transform.prepared(inputs, None, inputs.dtype))
    table = predictions(model.spec, transform.in_units(outputs.double()))
    number = model.spec.task.name == "regression"
    return table.drop(columns=[] if number else ["predicted"], errors="ignore").to_numpy(float)


def some_inputs(model: SavedModel, count: int) -> Tensor:
    dtype = getattr(torch, model.spec.training.dtype)
    inputs = torch.randn(count, *model.spec.data.shape, generator=torch.Generator().manual_seed(2), dtype=dtype)
    if model.fit.fill is not None:
        inputs[::3, 0] = torch.nan
    return inputs


@pytest.mark.slow
@pytest.mark.parametrize("kind", sampled(TRAINED, 6))
def test_a_torch_file_says_what_predict_says(tmp_path: Path, kind: str) -> None:
    model = trained(**TRAINED[kind])
    save_torch(model, tmp_path / "model.pt2")
    files = {DOCUMENT: ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=files).module()
    for count in (1, 7):
        inputs = some_inputs(model, count)
        assert np.abs(program(inputs).detach().numpy() - by_predict(model, inputs)).max() <= 1e-5
    document = json.loads(files[DOCUMENT])
    if kind == "classes":
        assert document["inputs"] == ["age", "sex=m", "sex=w", "sex=any other", "chol", "chol is missing"]
        assert document["outputs"] == ["probability of a", "probability of b", "probability of c"]

    again = saved_model(tmp_path / "model.pt2", "best")
    assert (by_predict(again, inputs) == by_predict(model, inputs)).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classes", "a number", "pictures"])
def test_an_onnx_file_says_what_predict_says(tmp_path: Path, kind: str) -> None:
    model = trained(**TRAINED[kind])
    save_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for count in (1, 7):
        inputs = some_inputs(model, count)
        (outputs,) = session.run(None, {"inputs": inputs.numpy()})
        assert np.abs(outputs - by_predict(model, inputs)).max() <= 1e-5 * max(1, model.fit.target_scale)
    about = {entry.key: entry.value for entry in onnx.load(tmp_path / "model.onnx").metadata_props}
    assert json.loads(about["run"])["name"] == "small"
    assert [node.name for node in session.get_outputs()] == ["outputs"]


def test_a_site_that_standardises_by_itself_exports_its_own(tmp_path: Path) -> None:
    spec = run_spec(preparation={"standardise": "site"})
    weights = build_network(spec).state_dict()
    own = OwnFit(torch.full((6,), 2.0, dtype=torch.float64), torch.full((6,), 3.0, dtype=torch.float64))
    save_model(tmp_path / "site" / "model", spec, weights, weights, Fit(), own)
    save_model(tmp_path / "run" / "model", spec, weights, weights, Fit())
    model = saved_model(tmp_path / "site", "best")
    inputs = some_inputs(model, 4)
    save_torch(model, tmp_path / "model.pt2")
    assert np.allclose(
        Standalone(saved_model(tmp_path / "model.pt2", "best"))(inputs).detach(), by_predict(model, inputs)
    )
    with pytest.raises(UserError, match="export from a site's own directory"):
        save_torch(saved_model(tmp_path / "run", "best"), tmp_path / "model.pt2")


def test_what_cannot_be_exported_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = trained(**CLASSES)

    class Branches(torch.nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return inputs[:, :3] if inputs.sum() > 0 else inputs[:, 3:]

    model = SavedModel(counting.spec, Branches(), counting.fit, None, "")
    for save in (save_torch, save_onnx):
        with pytest.raises(
            UserError, match=r"^model.name: this mlp cannot be exported as one program: .*; use predict$"
        ):
            save(model, tmp_path / "model")
    harmonised = trained(**CLASSES | {"preparation": {"harmonise": {"name": "combat"}}})
    with pytest.raises(UserError, match=r"preparation\.harmonise: removes each site's own effects"):
        save_torch(harmonised, tmp_path / "model.pt2")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"pip install 'rankdad\[onnx\]'"):
        save_onnx(counting, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
