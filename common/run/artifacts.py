"""A trained model on disk: best and final weights as safetensors, and the preparation for `rankdad predict`."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from rankdad.common import __version__
from rankdad.common.documents import load_json, validate
from rankdad.common.errors import DataError, UserError, one_line, visible
from rankdad.common.files import AGAIN, check_file, sync_path, write_whole
from rankdad.common.models import build_network
from rankdad.common.models.weights import wrong_numbers
from rankdad.common.preparation import Fit, OwnFit, Preparing
from rankdad.common.run.snapshot import Progress, under
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import Regression
from rankdad.common.tensors import read_tensors

Which = Literal["best", "final"]
PREPARATION = "preparation.safetensors"


def save_model(
    directory: Path,
    spec: RunSpec,
    best: Mapping[str, Tensor],
    final: Mapping[str, Tensor],
    fit: Fit | None = None,
    site_fit: OwnFit | None = None,
    cut_short: str = "",
) -> None:
    """Write both weights, the preparation, and `model.json` with the spec, schema, classes and versions.

    Args:
        directory: of the model.
        spec: of the run.
        best: weights of the best epoch; empty if there was none.
        final: weights after the last step.
        fit: statistics of all sites' training rows; None before they are fitted.
        site_fit: statistics of this site's rows; None at the aggregator.
        cut_short: place of a run that has not ended, as text.

    Raises:
        UserError: the disk is full or broken.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write_model(directory, spec, best, final, cut_short)
        tensors = {f"fit/{name}": value for name, value in (fit.tensors() if fit else {}).items()}
        tensors |= {f"own/{name}": value for name, value in (site_fit.tensors() if site_fit else {}).items()}
        if tensors:
            _save(tensors, directory / PREPARATION)
        sync_path(directory)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{directory}: the model cannot be written: {error}; {AGAIN}", code="cannot-write") from None


def _write_model(
    directory: Path, spec: RunSpec, best: Mapping[str, Tensor], final: Mapping[str, Tensor], cut_short: str
) -> None:
    for name, weights in (("best", best), ("final", final)):
        if weights:
            _save(weights, directory / f"{name}.safetensors")
    document = {
        "run": spec.model_dump(mode="json"),
        "versions": {"rankdad": __version__, "torch": torch.__version__},
        **({"cut_short": cut_short} if cut_short else {}),
    }
    write_whole(directory / "model.json", json.dumps(document, indent=2) + "\n")


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors atomically, also with respect to crashes and power failures."""
    temporary = path.with_suffix(".tmp")
    save_file({name: value.contiguous() for name, value in tensors.items()}, temporary)
    sync_path(temporary)
    temporary.replace(path)


@dataclass(frozen=True, eq=False)
class SavedModel:
    """A trained model with its preparation, for predictions.

    Args:
        spec: of its run.
        network: in evaluation mode.
        fit: statistics of all sites' training rows, for the preparation.
        site_fit: statistics of one site's rows; None if unknown.
        source: description of what was loaded.
    """

    spec: RunSpec
    network: nn.Module
    fit: Fit
    site_fit: OwnFit | None
    source: str


def load_model(directory: Path, which: Which, allowed_factories: Collection[str]) -> SavedModel:
    """Load a saved model; without best weights, load the final ones.

    Raises:
        UserError: the directory has no readable model.
    """
    path = directory / "model.json"
    check_file(path)
    document = load_json(path)
    spec = validate(RunSpec, document.get("run") if isinstance(document, dict) else None, file=path)
    where = document.get("cut_short")
    words = f", of a run that was interrupted {visible(where)}" if isinstance(where, str) else ""
    weights_path, only = directory / f"{which}.safetensors", ""
    if which == "best" and not weights_path.exists():
        weights_path, only = directory / "final.safetensors", ", since there are no best ones"
    check_file(weights_path, missing_ok=True)
    try:
        weights = read_tensors(weights_path)[1]
    except (OSError, SafetensorError) as error:
        raise DataError(
            weights_path, f"holds no weights that can be read: {one_line(error)}", code="weights-unreadable"
        ) from None
    preparation_path = directory / PREPARATION
    check_file(preparation_path, missing_ok=True)
    try:
        tensors = read_tensors(preparation_path)[1] if preparation_path.exists() else {}
    except (OSError, SafetensorError) as error:
        raise DataError(
            preparation_path, f"is not what the model was trained with: {one_line(error)}", code="preparation-differs"
        ) from None
    needed = {"fit/mean"} if spec.preparation.standardise == "federated" else set()
    needed |= {"fit/target_mean"} if isinstance(spec.task, Regression) else set()
    if lacking := sorted(needed - tensors.keys()):  # otherwise predictions would be wrong without a sign of it
        raise DataError(
            preparation_path,
            f"does not hold {', '.join(lacking)}, which the run's inputs or labels need",
            code="preparation-incomplete",
        )
    return assemble(spec, weights, tensors, allowed_factories, weights_path, only + words)


def assemble(
    spec: RunSpec,
    weights: Mapping[str, Tensor],
    preparation: Mapping[str, Tensor],
    allowed_factories: Collection[str],
    path: Path,
    words: str = "",
) -> SavedModel:
    """Create a model from weights and preparation.

    Args:
        spec: of the run.
        weights: of the network.
        preparation: tensors by name, from `save_model`.
        allowed_factories: model factories that the caller allows.
        path: of their file, for errors.
        words: end of the description.

    Raises:
        DataError: they do not match the spec.
    """
    network = build_network(spec, allowed_factories)
    own = network.state_dict()
    for name in (name for name in own if name in weights):
        if problem := wrong_numbers(name, weights[name], own[name].dtype):
            raise DataError(path, problem, code="weights-unreadable")
    try:
        network.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise DataError(
            path, f"cannot be loaded into the model: {one_line(error)}", code="weights-do-not-fit"
        ) from None
    try:
        fit, kept = Fit.of(spec, under("fit", preparation)), under("own", preparation)
        return SavedModel(spec, network.eval(), fit, OwnFit.of(spec, kept) if kept else None, f"{path}{words}")
    except (KeyError, ValueError, RuntimeError) as error:
        raise DataError(
            path, f"has a preparation that does not match its run: {one_line(error)}", code="preparation-differs"
        ) from None


def load_checkpoint(path: Path, which: Which, allowed_factories: Collection[str]) -> SavedModel:
    """Load the model of a checkpoint, also of an unfinished run.

    Raises:
        DataError: it is damaged, or of an earlier version.
    """
    check_file(path)
    try:
        metadata, tensors = read_tensors(path)
        document = json.loads(metadata[""])
        run, progress = document["run"], Progress.model_validate(document["progress"], strict=False)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            path, f"is no checkpoint with a model: {one_line(error)}", code="checkpoint-unreadable"
        ) from None
    spec, fold = validate(RunSpec, run, file=path), progress.study.fold
    best, totals = under("best", tensors), under("total", tensors)
    weights = best if best and which == "best" else under("weights", under("replica", tensors))
    whose = "the best weights so far" if weights is best else "the last weights"
    try:
        fit = Preparing(spec).fit({name: total[min(fold, len(total) - 1)] for name, total in totals.items()})
    except (KeyError, ValueError, RuntimeError, IndexError) as error:
        raise DataError(
            path, f"has a preparation that does not match its run: {one_line(error)}", code="preparation-differs"
        ) from None
    own = {f"fit/{name}": value for name, value in fit.tensors().items()}
    words = f", {whose} {place_in(spec, progress.steps, fold)}"
    return assemble(spec, weights, own, allowed_factories, path, words)


def place_in(spec: RunSpec, steps: int, fold: int) -> str:
    """Describe the place of a run that has not ended."""
    return f"after step {steps}" + (f", in {spec.training_name(fold)}" if spec.folds > 1 else "")
