"""Models of earlier runs, chosen by members as initial weights or for a test."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import safetensors.torch
from pydantic import Field, JsonValue
from safetensors import SafetensorError
from torch import Tensor

from rankdad.common.data import read_samples
from rankdad.common.documents import Part, load_json, validate
from rankdad.common.errors import DataError, one_line
from rankdad.common.metrics.sums import Tally
from rankdad.common.metrics.tally_codec import pack_tally, unpack_tally
from rankdad.common.protocol.messages import Digest
from rankdad.common.run.artifacts import PREPARATION, load_model
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.local.prediction import Predicted, key_name, predict_samples
from rankdad.platforms.coinstac.fields import FIELDS
from rankdad.platforms.coinstac.form import FormError
from rankdad.platforms.coinstac.inputs import WEIGHTS
from rankdad.remote.results.fold_metrics import FoldMetrics

DOCUMENT = "model.json"  # in the folder `model` of an earlier run's results
FILES = (DOCUMENT, WEIGHTS, PREPARATION)
MAX_BYTES = 2 * 2**20  # of weights, as one message carries every member's
START = FIELDS["start"]


class GivenModel(Part):
    """A member's model, or the result of its test."""

    weights_sha256: Digest
    """Digest of the file of weights."""
    sha256: Digest
    """Digest of all of its files."""
    run: dict[str, JsonValue]
    """Its specification."""
    weights: Annotated[str, Field(max_length=4 * MAX_BYTES)] = ""
    """Initial weights: the file in base64."""
    tally: Annotated[str, Field(max_length=4 * MAX_BYTES)] = ""
    """Test: the tally of its predictions of all rows, in base64."""

    @property
    def content(self) -> bytes:
        """The file of weights.

        Raises:
            FormError: the digest does not match.
        """
        try:
            content = base64.b64decode(self.weights, validate=True)
        except ValueError:
            content = b""
        if hashlib.sha256(content).hexdigest() != self.weights_sha256:
            raise FormError(START.problem("the weights do not match the member's digest", code="weights-differ"))
        return content


def given_model(folder: Path, *, carried: bool = False) -> GivenModel:
    """Read the model in a folder.

    Args:
        folder: the model's.
        carried: whether to include its weights.

    Raises:
        FormError: its weights are too large.
        DataError: its files cannot be read.
    """
    document, weights = load_json(folder / DOCUMENT), _bytes(folder / WEIGHTS)
    if carried and len(weights) > MAX_BYTES:
        said = (
            f"the model's weights have {len(weights) / 2**20:.1f} MiB, and the platform carries {MAX_BYTES >> 20} MiB"
        )
        raise FormError(START.problem(f"{said} of each member: choose a smaller network", code="weights-too-large"))
    spec = validate(RunSpec, document.get("run") if isinstance(document, dict) else None, file=DOCUMENT)
    weights_sha256, digest = hashlib.sha256(weights).hexdigest(), hashlib.sha256(weights)
    digest.update(spec.sha256().encode())
    for name, value in sorted(_tensors(folder / PREPARATION).items()):
        if name.startswith("fit/"):  # other tensors belong to a site
            digest.update(name.encode() + value.numpy().tobytes())
    encoded = base64.b64encode(weights).decode("ascii") if carried else ""
    run = spec.model_dump(mode="json")
    return GivenModel(weights_sha256=weights_sha256, sha256=digest.hexdigest(), run=run, weights=encoded)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}", code="model-unreadable") from None


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(_bytes(path)) if path.is_file() else {}
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise DataError(
            path, f"is not what the model was trained with: {one_line(error)}", code="model-unreadable"
        ) from None


def agreed(models: Mapping[str, GivenModel | None]) -> GivenModel:
    """Return the model that all members have chosen.

    Args:
        models: models by site.

    Raises:
        FormError: they chose different models.
    """
    first, *_ = models.values()
    kinds = {None if one is None else one.sha256 for one in models.values()}
    if first is None or len(kinds) > 1:
        said = f"members have chosen {len(kinds)} different models: all need the same files"
        raise FormError(START.problem(f"{said}, {', '.join(FILES)}", code="models-differ"))
    return first


def check_alike(spec: RunSpec, model: GivenModel) -> None:
    """Check that a model fits this run's label, classes, inputs and network.

    Raises:
        FormError: it does not fit.
    """
    ours, theirs = (_meaning(one) for one in (spec, validate(RunSpec, model.run)))
    if differ := [words for words in ours if ours[words] != theirs[words]]:
        said = f"the trained model has another {', another '.join(differ)}"
        raise FormError(START.problem(f"{said}: fill in the form as for its own run", code="model-of-another-run"))


def _meaning(spec: RunSpec) -> dict[str, Any]:
    """Return the properties that give a model's weights their meaning, by their names in the form."""
    data, network = spec.model_dump(mode="json")["data"], spec.model.model_dump(exclude={"pretrained"})
    return {
        "column that is predicted": (spec.task.name, data.get("label")),
        "order or number of classes": data.get("values"),
        "choice of inputs": (data.get("features"), data.get("categorical")),
        "network": network,
    }


def tested(
    folder: Path, data: Path, label: str, min_rows: int, allowed: Collection[str]
) -> tuple[GivenModel, Predicted, str]:
    """Test a model on all of a member's labelled rows; return the test for the aggregator, predictions, and the key's
    name.

    Args:
        folder: the model's.
        data: the member's data.
        label: the label in the form.
        min_rows: minimum rows of any disclosure.
        allowed: model factories permitted in the image.

    Raises:
        FormError: the model cannot be tested here.
        UserError: model or data cannot be read.
    """
    saved = load_model(folder, "best", allowed)
    spec = saved.spec
    if not isinstance(spec.data, TableData) or spec.data.label != label:
        raise FormError(START.problem(f"the trained model does not predict {label}", code="model-of-another-run"))
    if spec.preparation.standardise == "site" or spec.preparation.harmonise or spec.grouped:
        why = "by each member's own means" if not spec.grouped else "of groups of rows"
        raise FormError(START.problem(f"a model {why} cannot be tested here", code="model-not-testable"))
    reading = read_samples(spec, data, allowed=allowed)
    assert reading.labels is not None
    if len(reading.labels) < min_rows:
        said = f"this table has fewer rows with a label than this limit, {min_rows}, requires"
        raise FormError(FIELDS["min_rows"].problem(said, member=True, code="few-samples"))
    predicted = predict_samples(saved, reading, folder, smoothly=True)
    assert predicted.total is not None
    packed = base64.b64encode(pack_tally(predicted.total)).decode("ascii")
    return given_model(folder).model_copy(update={"tally": packed}), predicted, key_name(spec)


def pooled(models: Mapping[str, GivenModel]) -> tuple[RunSpec, dict[str, Any], list[dict[str, Any]]]:
    """Return the run that trained a model, and its test metrics, pooled and by member.

    Args:
        models: models by site.

    Raises:
        FormError: members tested different models, or a test is invalid.
    """
    spec = validate(RunSpec, agreed(models).run)
    tallies: dict[str, Tally] = {}
    for site, model in models.items():
        try:
            tallies[site] = unpack_tally(spec.task, base64.b64decode(model.tally, validate=True))
        except ValueError as error:
            raise FormError(START.problem(f"{site}: its test: {error}", code="test-malformed")) from None
    metrics = FoldMetrics(spec.task, tuple(models))
    metrics.add(tallies, {})
    document, found = metrics.summary(), metrics.pooled
    test: dict[str, Any] = {"samples": found.samples if found else 0} | dict(found.values if found else {})
    test |= {"auc_error": found.auc_error, "absent": found.absent} if found else {}
    for name, ends in document["intervals"].items():
        test |= {f"{name}_low": ends["low"], f"{name}_high": ends["high"]}
    return spec, test, metrics.by_site()
