"""A trained model as one file for other programs: the network with the preparation of its inputs.

Inputs are the encoded columns of a table, NaN for missing values. Outputs are those of `rankdad predict`.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankdad.common import __version__
from rankdad.common.documents import parse_json, validate
from rankdad.common.errors import DataError, UserError, one_line
from rankdad.common.preparation import Preparing
from rankdad.common.preparation.layout import input_names
from rankdad.common.run.artifacts import SavedModel, assemble
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import LanguageModel, MultiLabel, Regression

TORCH, ONNX = ".pt2", ".onnx"
DOCUMENT = "rankdad.json"  # in the file: the run, and descriptions of inputs and outputs
DTYPES = {5: torch.int64, 7: torch.float32, 8: torch.float64}  # by the codes in such files
WRONG = (ValueError, TypeError, AttributeError, RuntimeError)  # raised when reading invalid numbers
AGREES = 1e-5  # tolerance between the program's outputs and the model's, in the label's deviations


class Standalone(nn.Module):
    """A network with the preparation of its inputs and the conversion of its outputs.

    Args:
        model: the trained model.

    Raises:
        UserError: its preparation needs more than the inputs.
    """

    def __init__(self, model: SavedModel) -> None:
        super().__init__()
        spec, fit = model.spec, model.fit
        if spec.preparation.harmonise:
            raise UserError(
                "preparation.harmonise: removes each site's own effects, which a single model cannot: use predict",
                code="cannot-export",
                field="preparation.harmonise",
            )
        if spec.preparation.standardise == "site" and model.site_fit is None:
            raise UserError(
                "preparation.standardise: every site standardises by itself: export from a site's own directory",
                code="cannot-export",
                field="preparation.standardise",
            )
        self.preparation = Preparing(spec).transform(fit, model.site_fit)
        self.network, self.task = model.network, spec.task
        self.dtype: torch.dtype = torch.int64 if spec.data.tokens is not None else getattr(torch, spec.training.dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return probabilities [n, outputs] for inputs [n, *shape]; for regression numbers in the label's unit.

        For a language model logits [n, length, tokens].
        """
        outputs: Tensor = self.network(self.preparation(inputs).to(self.dtype)).to(torch.float64)
        if isinstance(self.task, LanguageModel):
            return outputs
        if isinstance(self.task, Regression):
            return self.preparation.in_units(outputs)
        return torch.sigmoid(outputs) if isinstance(self.task, MultiLabel) else torch.softmax(outputs, dim=1)


def description(spec: RunSpec) -> dict[str, Any]:
    """Return a description of a model's inputs and outputs, for other programs."""
    data = spec.data
    values = getattr(data, "targets" if isinstance(spec.task, MultiLabel) else "values", ())
    names = list(values) or [str(place) for place in range(spec.task.outputs)]
    outputs = [f"probability of {name}" for name in names]
    if isinstance(spec.task, Regression):
        outputs = [getattr(data, "label", "number")]
    elif isinstance(spec.task, LanguageModel):
        outputs = ["logits of the token after each"]
    return {
        "rankdad": __version__,
        "inputs": input_names(spec) or list(data.shape),
        "outputs": outputs,
        "run": spec.model_dump(mode="json"),
    }


def save_torch(model: SavedModel, path: Path) -> None:
    """Write a program for `torch.export.load`, without pickled classes.

    Raises:
        UserError: the network cannot be exported, or the file cannot be written.
    """
    program, document = _program(model), json.dumps(description(model.spec))
    with _writing(path), _quiet():
        torch.export.save(program, path, extra_files={DOCUMENT: document})


def save_onnx(model: SavedModel, path: Path) -> None:
    """Write an ONNX file with the description in its metadata.

    Raises:
        UserError: a library is missing, the network cannot be exported, or the file cannot be written.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise UserError(
            "--onnx: needs onnx and onnxscript: pip install 'rankdad[onnx]'", code="not-installed", field="--onnx"
        ) from None
    program = _program(model)
    try:
        with _quiet():
            made = torch.onnx.export(
                program, input_names=["inputs"], output_names=["outputs"], dynamo=True, verbose=False
            )
        assert made is not None
        made.model.metadata_props.update({name: json.dumps(value) for name, value in description(model.spec).items()})
    except Exception as error:
        raise _cannot(model, error) from error
    with _writing(path):
        made.save(path)


def load_standalone(path: Path, allowed_factories: Collection[str]) -> SavedModel:
    """Load the model of a file from `save_torch`, reading only numbers and text, no pickle.

    Raises:
        DataError: it is another file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(part.file_size for part in archive.infolist()) > path.stat().st_size:
                raise ValueError("is compressed, which such a file is not")
            root = archive.namelist()[0].partition("/")[0]
            run = parse_json(archive.read(f"{root}/extra/{DOCUMENT}"))["run"]
            listed = parse_json(archive.read(f"{root}/data/weights/model_weights_config.json"))["config"]
            held = {name: _numbers(archive.read(f"{root}/data/weights/{entry['path_name']}"), entry)
                    for name, entry in listed.items() if not entry["use_pickle"]}  # fmt: skip
    except (OSError, zipfile.BadZipFile, zlib.error, LookupError, *WRONG) as error:
        raise DataError(
            path, f"is no file of `rankdad export --torch`: {one_line(error)}", code="not-an-export"
        ) from None
    spec = validate(RunSpec, run, file=path)
    weights = {name.removeprefix("network."): value for name, value in held.items() if name.startswith("network.")}
    own = spec.preparation.standardise == "site"
    held = {name.removeprefix("preparation."): value for name, value in held.items()}
    kept = {f"{'own' if own and name != 'fill' else 'fit'}/{name}": value
            for name, value in held.items() if name in ("fill", "mean", "scale")}  # fmt: skip
    kept |= {
        f"fit/target_{name}": value for name, value in zip(("mean", "scale"), held.get("target", ()), strict=False)
    }
    return assemble(spec, weights, kept, allowed_factories, path)


def _numbers(data: bytes, entry: Any) -> Tensor:
    """Return the tensor of an archive's entry.

    Raises:
        ValueError, KeyError, TypeError, RuntimeError: the entry is invalid.
    """
    about = entry["tensor_meta"]
    sizes, strides = ([part["as_int"] for part in about[key]] for key in ("sizes", "strides"))
    flat = torch.frombuffer(bytearray(data), dtype=DTYPES[about["dtype"]])
    if about["storage_offset"] != {"as_int": 0} or flat.numel() != math.prod(sizes):
        raise ValueError(f"{entry['path_name']}: got {flat.numel()} numbers, expected {math.prod(sizes)}")
    return flat.as_strided(sizes, strides).clone()


def _program(model: SavedModel) -> torch.export.ExportedProgram:
    """Return a model's program for any number of samples, after comparing its outputs with the model's."""
    standalone, shape = Standalone(model).eval(), model.spec.data.shape
    generator = torch.Generator().manual_seed(0)
    if model.spec.data.tokens is not None:
        examples = torch.randint(model.spec.data.tokens, (5, *shape), generator=generator)
    else:
        examples = torch.randn(5, *shape, generator=generator, dtype=standalone.dtype)
    try:
        with _quiet(), torch.no_grad():
            rows = torch.export.Dim("rows", min=1, max=1 << 30)
            program = torch.export.export(standalone, (examples[:3],), dynamic_shapes=({0: rows},))
            apart = (program.module()(examples) - standalone(examples)).abs().max()
        if not apart < AGREES * standalone.preparation.target[1].clamp(min=1):
            raise ValueError(f"its outputs are {float(apart):.1g} from the model's")
    except Exception as error:
        raise _cannot(model, error) from error
    return program


def _cannot(model: SavedModel, error: Exception) -> UserError:
    reason = one_line(error).partition(". ")[0].partition(" (unhinted")[0]
    kind = model.spec.model.name
    return UserError(
        f"model.name: this {kind} cannot be exported as one program: {reason}; use predict",
        code="cannot-export",
        field="model.name",
    )


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"{path}: cannot be written: {getattr(error, 'strerror', None) or one_line(error)}", code="cannot-write"
        ) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's output about its internals."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
