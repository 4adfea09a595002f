"""The networks of a spec, by name; `common.models` builds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, JsonValue, ValidationInfo, field_validator, model_validator

from rankdad.common.documents import Part
from rankdad.common.numbers import Fraction, UpToMillion
from rankdad.common.spec.table_schema import FileName
from rankdad.common.user_code import FunctionName

Presets = Mapping[str, Mapping[str, Any]]  # fields by name
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
# Not strict, so that lists from JSON are still accepted after a preset has been filled in; their items are strict.
Widths = Annotated[tuple[UpToMillion, ...], Field(strict=False, min_length=1, max_length=100)]
Patterns = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], Field(strict=False, max_length=1000)
]


class Pretrained(Part):
    """Pretrained weights, from a file that every site and the aggregator have."""

    file: FileName
    """Name of a safetensors file in the folder of weights, which each site configures."""
    sha256: Sha256
    """Digest of the file, in hexadecimal."""
    skip: Patterns = ()
    """Parameters and buffers to skip, such as "head.*"; they keep their random weights."""


class Network(Part):
    """Common fields of all networks."""

    presets: ClassVar[Presets] = {}
    sized_by: ClassVar[str] = "model"  # the field in errors about the network's size

    name: str
    """Name of the network."""
    pretrained: Pretrained | None = None
    """Pretrained weights; null for random ones."""
    frozen: Patterns = ()
    """Parameters that are not trained, such as "blocks.0.*". They do not include BatchNorm's running statistics."""

    @model_validator(mode="before")
    @classmethod
    def _filled_from_preset(cls, given: Any) -> Any:
        preset = given.get("preset") if isinstance(given, dict) else None
        if not isinstance(preset, str) or not cls.presets:
            return given
        if preset not in cls.presets:
            raise ValueError(f"preset: got {preset}, expected one of {', '.join(cls.presets)}")
        for field, value in cls.presets[preset].items():
            if given.get(field, value) not in (value, list(value) if isinstance(value, tuple) else value):
                raise ValueError(f"the preset {preset} has {field} {value}, but {field} {given[field]} is asked for")
        return given | cls.presets[preset]


class Linear(Network):
    """A single layer from the flattened input to the output: linear or logistic regression."""

    name: Literal["linear"]


class Mlp(Network):
    """A multilayer perceptron on the flattened input."""

    presets: ClassVar[Presets] = {"paper": {"hidden": (1024, 1024)}, "small": {"hidden": (64, 32)}}
    sized_by = "model.hidden"

    name: Literal["mlp"]
    hidden: Annotated[tuple[UpToMillion, ...], Field(strict=False, max_length=1000)]
    """Width of each hidden layer."""
    activation: Literal["relu", "tanh", "gelu"] = "relu"
    """Function after each hidden layer."""
    dropout: Fraction = 0.0
    """Probability with which a hidden unit is dropped in training."""
    preset: Literal["paper", "small"] | None = None
    """Preset widths: "paper" has 1024, 1024, "small" 64, 32. Other widths next to it are an error."""


class Recurrent(Network):
    """Stacked recurrent layers on a series [time, features].

    Frames of only NaN are padding: they do not change the state or the output.
    """

    presets: ClassVar[Presets] = {"paper": {"hidden": (512, 256)}, "small": {"hidden": (128, 64)}}
    sized_by = "model.hidden"

    hidden: Widths
    """Width of each layer, the first one first."""
    pooling: Literal["last", "mean"] = "last"
    """Input of the last layer: the state after the last frame, or the mean of all states."""
    dropout: Fraction = 0.0
    """Probability with which a value between two layers, or before the output, is dropped in training."""
    preset: Literal["paper", "small"] | None = None
    """Preset widths: "paper" has 512, 256, "small" 128, 64. Other widths next to it are an error."""


class Gru(Recurrent):
    """Gated recurrent units (Cho 2014), with the equations of torch."""

    name: Literal["gru"]


class Lstm(Recurrent):
    """Long short-term memory (Hochreiter 1997), with the equations of torch."""

    name: Literal["lstm"]


class Vit(Network):
    """A vision transformer (Dosovitskiy 2021) on images, with normalisation before each part of a block."""

    presets: ClassVar[Presets] = {
        "paper": {"width": 128, "depth": 12, "heads": 4, "patch": 32},
        "small": {"width": 64, "depth": 4, "heads": 4, "patch": 8},
    }
    sized_by = "model.width"

    dims: ClassVar[int] = 2
    """Axes of space: height and width."""

    name: Literal["vit"]
    width: UpToMillion
    """Width of a token."""
    depth: Annotated[int, Field(ge=1, le=1000)]
    """Number of blocks."""
    heads: UpToMillion
    """Heads of an attention; they share the width."""
    patch: UpToMillion
    """Height and width of a patch in pixels; images are made of whole patches."""
    expansion: UpToMillion = 4
    """Width of a block's hidden layer, in widths of a token."""
    pooling: Literal["class", "mean"] = "class"
    """Input of the last layer: a learned class token, or the mean over all patches."""
    dropout: Fraction = 0.0
    """Probability with which a value is dropped in training, after the positions and at the end of a block's parts."""
    channels: Literal["first", "last"] | None = None
    """Position of the channels' axis of images with three dimensions; null if only one end has size 4 or less."""
    preset: Literal["paper", "small"] | None = None
    """Preset sizes: "paper" is 128 wide, 12 deep, with patches of 32, for images of 224 × 224: 50 tokens; "small" 64, 4
    and 8; both have 4 heads. Other sizes next to it are an error."""

    @field_validator("heads")
    @classmethod
    def _heads_divide_width(cls, heads: int, info: ValidationInfo) -> int:
        width = info.data.get("width")
        if width is not None and width % heads:
            raise ValueError(f"got {heads}, expected a divisor of model.width, {width}")
        return heads


class Transformer(Network):
    """A transformer on tokens: an encoder, or for the task language-model a decoder.

    Normalisation comes before each part of a block. An encoder's last layer sees the mean over a text's tokens.
    """

    presets: ClassVar[Presets] = {
        "small": {"width": 64, "depth": 2, "heads": 4},
        "medium": {"width": 256, "depth": 6, "heads": 8},
    }
    sized_by = "model.width"

    name: Literal["transformer"]
    width: UpToMillion
    """Width of a token."""
    depth: Annotated[int, Field(ge=1, le=1000)]
    """Number of blocks."""
    heads: UpToMillion
    """Heads of an attention; they share the width."""
    expansion: UpToMillion = 4
    """Width of a block's hidden layer, in widths of a token."""
    positions: Literal["rope", "learned"] = "rope"
    """Positions of tokens: rotations of queries and keys (Su 2021), or a learned vector for each."""
    tied: bool = True
    """Whether a decoder's last layer has the weights of its embedding; an encoder's never has."""
    dropout: Fraction = 0.0
    """Probability with which a value is dropped in training, after the positions and at the end of a block's parts."""
    preset: Literal["small", "medium"] | None = None
    """Preset sizes: "small" is 64 wide, 2 deep, with 4 heads; "medium" 256, 6 and 8. Other sizes next to it are an
    error."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Transformer:
        if self.width % self.heads:
            raise ValueError(f"heads: got {self.heads}, expected a divisor of model.width, {self.width}")
        if self.positions == "rope" and self.width // self.heads % 2:
            raise ValueError(f"heads: got {self.heads} of width {self.width // self.heads}, expected an even width")
        return self


class Convolutional(Network):
    """Blocks of convolution, GroupNorm and ReLU, with max pooling in between and mean pooling at the end."""

    sized_by = "model.filters"

    filters: Widths
    """Number of filters of each block."""
    convolutions: Annotated[int, Field(ge=1, le=100)] = 1
    """Convolutions of each block, each with its GroupNorm and ReLU."""
    kernel: UpToMillion = 3
    """Size of a filter in every direction; odd."""
    dropout: Fraction = 0.0
    """Probability with which a value before the last layer is dropped in training."""

    @field_validator("kernel")
    @classmethod
    def _kernel_is_odd(cls, kernel: int) -> int:
        if kernel % 2 == 0:
            raise ValueError(f"got {kernel}, expected an odd number")
        return kernel


class Cnn(Convolutional):
    """A small convolutional network on images."""

    presets: ClassVar[Presets] = {
        "small": {"filters": (32, 64, 128)},
        "deep": {"filters": (64, 128, 256, 512), "convolutions": 2},
    }

    dims: ClassVar[int] = 2
    """Axes of space: height and width."""

    name: Literal["cnn"]
    channels: Literal["first", "last"] | None = None
    """Position of the channels' axis of images with three dimensions; null if only one end has size 4 or less."""
    preset: Literal["small", "deep"] | None = None
    """Preset sizes: "small" has filters 32, 64, 128, "deep" 64, 128, 256, 512 in blocks of two convolutions. Other
    sizes next to it are an error."""


class Cnn3d(Convolutional):
    """A small convolutional network on volumes."""

    presets: ClassVar[Presets] = {"small": {"filters": (16, 32, 64)}, "deep": {"filters": (32, 64, 128, 256, 256)}}

    dims: ClassVar[int] = 3
    """Axes of space: depth, height and width."""

    name: Literal["cnn3d"]
    channels: Literal["first", "last"] | None = None
    """Position of the channels' axis of volumes with four dimensions; null if only one end has size 4 or less."""
    preset: Literal["small", "deep"] | None = None
    """Preset sizes: "small" has filters 16, 32, 64, "deep" 32, 64, 128, 256, 256. Other sizes next to it are an
    error."""


class Monai(Network):
    """A network of MONAI (pip install 'rankdad[monai]'), with random weights; its code needs no permission."""

    sized_by = "model.network"

    name: Literal["monai"]
    network: Literal[
        "DenseNet121", "DenseNet169", "DenseNet201", "ResNet10", "ResNet18", "ResNet34", "ResNet50", "EfficientNetB0"
    ]
    """Name of MONAI's network."""
    dims: Literal[2, 3]
    """Number of spatial axes: 2 for images, 3 for volumes."""
    norm: Literal["batch", "instance", "group"] = "group"
    """Normalisation. "batch" has running statistics, which are averaged over sites but differ between them."""
    groups: UpToMillion = 8
    """Groups of the normalisation "group", a divisor of every width of the network."""
    dropout: Fraction = 0.0
    """Dropout probability in a DenseNet's layers."""
    channels: Literal["first", "last"] | None = None
    """Position of the channels' axis of a sample; null if only one end has size 4 or less."""

    @property
    def norm_layer(self) -> str | tuple[str, dict[str, int]]:
        """Normalisation, in MONAI's notation."""
        return ("group", {"num_groups": self.groups}) if self.norm == "group" else self.norm

    @property
    def least_side(self) -> int:
        """Smallest length of a spatial axis."""
        return 32

    @field_validator("dropout")
    @classmethod
    def _dropout_applies(cls, dropout: float, info: ValidationInfo) -> float:
        network = str(info.data.get("network", "DenseNet"))
        if dropout and not network.startswith("DenseNet"):
            raise ValueError(f"got {dropout}, but {network} has none, expected 0")
        return dropout


class HuggingFace(Network):
    """An architecture of the library transformers (pip install 'rankdad[transformers]'), for tokens.

    It is built from its configuration, with random weights or those of `pretrained`. Its code is that of the installed
    library, and needs no permission; code beside weights is never loaded. Architectures with weights that
    only a few words use, such as hashed n-grams or hundreds of experts, are refused.
    """

    sized_by = "model.config"

    name: Literal["hugging-face"]
    architecture: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
    """Its `model_type`, such as "bert" or "gpt2"."""
    config: dict[str, JsonValue] = Field(default={})
    """Fields of its configuration, such as {"hidden_size": 64}; others have the library's defaults. The numbers of
    tokens and outputs are those of the run."""


class Factory(Network):
    """A user-defined function that returns the model; a site calls it only if it allows it."""

    sized_by = "data.shape"

    name: Literal["factory"]
    factory: FunctionName
    """Name of the function: "package.module:function"."""
    arguments: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the function."""


ModelSpec = Linear | Mlp | Gru | Lstm | Vit | Transformer | Cnn | Cnn3d | Monai | HuggingFace | Factory
