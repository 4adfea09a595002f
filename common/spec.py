"""The run's specification: one JSON object, the same and hashed at every site.

Every part is a frozen pydantic model that forbids unknown keys: a typing mistake is an error, never a default.
Unions are told apart by their field `name`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from common.errors import SpecError, UserError

SiteName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
FactoryName = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
Fraction = Annotated[float, Field(ge=0, lt=1)]
PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


RESERVED = frozenset({"aggregator", "pooled"})


class Part(BaseModel):
    """A frozen part of a specification that forbids unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class Classification(Part):
    """Predict one of several classes from logits, by cross-entropy."""

    name: Literal["classification"] = "classification"
    classes: Annotated[int, Field(ge=2, le=1000)]
    """Number of classes; labels are 0 to classes − 1."""


class Mlp(Part):
    """A multilayer perceptron on the flattened input."""

    name: Literal["mlp"]
    hidden: tuple[PositiveInt, ...]
    """Width of each hidden layer."""
    activation: Literal["relu", "tanh", "gelu"] = "relu"
    """Function after each hidden layer."""
    dropout: Fraction = 0.0
    """Probability with which a hidden unit is dropped in training."""


class Factory(Part):
    """A function of the user's that returns the model; a site resolves it only through its own allow-list."""

    name: Literal["factory"]
    factory: FactoryName
    """Where the function is: "package.module:function"."""
    arguments: dict[str, JsonValue] = {}
    """Keyword arguments of the function."""


class DataSpec(Part):
    """The schema of the data; where the files are is each site's business."""

    reader: Literal["npz"] = "npz"
    """File format: npz holds `x` [samples, …], `y` [samples] and optionally `split` (0 train, 1 validation, 2 test)."""
    file: Annotated[str, Field(pattern=r"^[\w][\w.-]*$")] = "data.npz"
    """Name of the file in the site's data folder."""
    shape: tuple[PositiveInt, ...]
    """Shape of one sample's input."""
    scale: PositiveFloat = 1.0
    """Factor by which inputs are multiplied (1/255 for bytes)."""
    tokens: PositiveInt | None = None
    """Number of distinct tokens where inputs are whole numbers for an embedding; null where they are real."""


class Adam(Part):
    """Adam, with decoupled weight decay where weight_decay is not 0 (AdamW)."""

    name: Literal["adam"]
    lr: PositiveFloat
    """Learning rate."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """Decay of the running means of gradient and square."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay."""


class Sgd(Part):
    """Stochastic gradient descent with momentum."""

    name: Literal["sgd"]
    lr: PositiveFloat
    """Learning rate."""
    momentum: Fraction = 0.0
    """Momentum."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay, added to the gradient."""


class Constant(Part):
    """Keep the learning rate."""

    name: Literal["constant"] = "constant"


class Cosine(Part):
    """Warm up linearly, then fall along a cosine over the whole run."""

    name: Literal["cosine"]
    warmup: Annotated[int, Field(ge=0)] = 0
    """Steps of linear warm-up."""
    floor: Fraction = 0.0
    """Last learning rate as a fraction of the first."""


class StepDecay(Part):
    """Multiply the learning rate by gamma every so many epochs."""

    name: Literal["step"]
    epochs: PositiveInt
    """Epochs between two reductions."""
    gamma: Annotated[float, Field(gt=0, le=1)]
    """Factor of each reduction."""


class EarlyStopping(Part):
    """Stop when the monitored validation metric has not improved for some epochs."""

    patience: PositiveInt
    """Epochs without improvement after which training stops."""


class Training(Part):
    """How every replica is trained."""

    epochs: PositiveInt
    """Passes over the data."""
    batch_size: PositiveInt
    """Samples per site and step."""
    optimizer: Annotated[Adam | Sgd, Field(discriminator="name")]
    """Optimizer, equal at every site."""
    schedule: Annotated[Constant | Cosine | StepDecay, Field(discriminator="name")] = Constant()
    """Learning-rate schedule."""
    clip: PositiveFloat | None = None
    """Largest norm of the aggregated gradient; null does not clip."""
    monitor: Literal["auc", "accuracy", "loss"] = "auc"
    """Validation metric that chooses the best model."""
    early_stopping: EarlyStopping | None = None
    """When to stop before the last epoch; null never does."""
    validation: Fraction = 0.15
    """Part of a site's training samples that is set aside for validation."""
    test: Fraction = 0.2
    """Part of a site's samples that is set aside for the test; unused where the data file has its own split."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of the replica."""
    threads: PositiveInt = 1
    """Threads of a process's tensor operations: part of what makes results equal to the last bit."""

    @model_validator(mode="after")
    def _splits_fit(self) -> Training:
        if self.validation + self.test >= 1:
            raise ValueError(f"validation {self.validation} and test {self.test} leave nothing to train on")
        if self.early_stopping and not self.validation:
            raise ValueError("early_stopping needs samples to look at, but validation is 0")
        return self


Wire = Literal["float32", "float64", "bfloat16", "float16"]


class Dsgd(Part):
    """Send full gradients and average them."""

    name: Literal["dsgd"]
    wire: Wire = "float32"
    """Precision on the wire."""


class Dad(Part):
    """Send full factors and concatenate them: exact (dAD)."""

    name: Literal["dad"]
    wire: Wire = "float32"
    """Precision on the wire."""


class RankDad(Part):
    """Send factors reduced at the site, and reduce their concatenation again at the aggregator (rank-dAD)."""

    name: Literal["rank-dad"]
    rank: PositiveInt
    """Largest number of rows of a factor on the wire, up and down."""
    reducer: Literal["spi", "block", "exact", "auto"] = "spi"
    """Structured power iterations (Algorithm 2), the same on all directions at once, a truncated SVD, or by shape."""
    feedback: Literal["none", "site", "aggregator", "both"] = "both"
    """Where the residual of a reduction is kept for the next step; the paper's own method is none."""
    tolerance: Fraction = 0.0
    """A component whose singular value is below this part of the largest is not sent."""
    iterations: PositiveInt = 20
    """Power iterations per component at most."""
    wire: Wire = "float32"
    """Precision on the wire."""


class Federation(Part):
    """Who takes part."""

    sites: Annotated[tuple[SiteName, ...], Field(min_length=1, max_length=1000)]
    """Names of the sites; their order is the order of concatenation."""

    @model_validator(mode="after")
    def _names_tell_apart(self) -> Federation:
        twice = sorted({name for name in self.sites if self.sites.count(name) > 1})
        if twice:
            raise ValueError(f"names must differ, but {', '.join(twice)} stands there more than once")
        reserved = sorted(RESERVED.intersection(self.sites))
        if reserved:
            raise ValueError(f"no site can be called {', '.join(reserved)}: results use that name")
        return self


class RunSpec(Part):
    """One training: what every site and the aggregator agree on."""

    name: Annotated[str, Field(pattern=r"^[\w][\w .-]{0,62}$")]
    """Name of the run."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of everything random."""
    task: Classification
    """What is predicted."""
    model: Annotated[Mlp | Factory, Field(discriminator="name")]
    """The network."""
    data: DataSpec
    """Schema of the data."""
    training: Training
    """Optimizer, schedule, splits."""
    method: Annotated[Dsgd | Dad | RankDad, Field(discriminator="name")]
    """How gradients travel."""
    federation: Federation
    """Who takes part."""

    def sha256(self) -> str:
        """Return the digest of the canonical JSON form (keys sorted, defaults written out)."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


P = TypeVar("P", bound=BaseModel)


def validate(model: type[P], document: object, *, file: str | Path | None = None, under: str = "") -> P:
    """Check a JSON document against a model.

    Args:
        model: what it should be.
        document: as JSON was read.
        file: named in errors.
        under: key in the file under which the document stands.

    Raises:
        SpecError: naming the first wrong field, its value and what was expected.
    """
    try:
        return model.model_validate_json(json.dumps(document))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(part for part in (under, _field(first["loc"], document)) if part) or "the whole file"
        more = f" ({error.error_count() - 1} more fields are wrong)" if error.error_count() > 1 else ""
        raise SpecError(field, _problem(dict(first)) + more, file=file) from None


def load_json(path: str | Path) -> Any:
    """Read a JSON file.

    Raises:
        UserError: the file is missing, unreadable or not JSON; the line and column are named.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not text in UTF-8") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None


def replace(document: Any, assignments: list[str]) -> Any:
    """Return the document with values replaced by assignments such as `run.method.rank=8`.

    Raises:
        SpecError: an assignment has no `=`, is not JSON, or its path leads through something that is no object.
    """
    document = json.loads(json.dumps(document))
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise SpecError("--set", f"got {assignment!r}, expected KEY=JSON such as run.method.rank=8")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            raise SpecError(
                "--set", f"{path}: {text!r} is not JSON; a string needs its quotes: '{path}=\"{text}\"'"
            ) from None
        *parents, last = path.split(".")
        target = document
        for key in parents:
            if not isinstance(target, dict) or not isinstance(target.setdefault(key, {}), dict):
                raise SpecError("--set", f"{path}: {key} is not an object")
            target = target[key]
        if not isinstance(target, dict):
            raise SpecError("--set", f"{path}: the file is not an object")
        target[last] = value
    return document


def _field(location: tuple[int | str, ...], document: object) -> str:
    """Name a field by its path in the document: pydantic also lists the tags of unions, which are no keys there."""
    path, here = "", document
    for position, key in enumerate(location):
        missing = position == len(location) - 1
        if isinstance(here, Mapping) and isinstance(key, str) and (key in here or missing):
            path, here = f"{path}.{key}" if path else key, here.get(key)
        elif isinstance(here, list) and isinstance(key, int):
            path, here = f"{path}[{key}]", here[key] if key < len(here) else None
    return path


def _known_names(part: type[BaseModel]) -> set[str]:
    """Return the names of all fields of a model's descendants."""
    return set(part.model_fields).union(*(_known_names(child) for child in part.__subclasses__()))


def _problem(error: dict[str, Any]) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(error["loc"][-1]), sorted(_known_names(Part)), n=1)
        return "is not known here: " + (f"did you mean {near[0]}?" if near else "remove it or correct its name")
    if kind == "union_tag_invalid":
        return f"got the name {context['tag']!r}, expected one of {context['expected_tags']}"
    if kind == "union_tag_not_found":
        return "has no name that tells its kind"
    if kind == "value_error":
        return str(context["error"])
    shown = json.dumps(error["input"])
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return f"got {shown}, expected: {error['msg'][0].lower()}{error['msg'][1:]}"
