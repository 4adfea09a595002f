"""Architectures of the library transformers, from their configurations: no code or weights of others are loaded."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from rankdad.common.errors import SpecError, UserError, one_line
from rankdad.common.spec.model import HuggingFace
from rankdad.common.spec.text import PADDING

# Fields that name code, files or kernels to load. All whose names begin with _ are refused, too.
LOADS = frozenset(
    (
        *("auto_map", "trust_remote_code", "custom_pipelines", "quantization_config", "name_or_path"),
        *("attn_implementation", "experts_implementation", "use_kernels"),
    )
)


class HuggingFaceNetwork(nn.Module):
    """A model of transformers that returns its logits, and does not attend to padding."""

    weights_prefix = "model."  # of the names that a file of its weights has

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [n, outputs] of tokens [n, length], or of a language model [n, length, tokens]."""
        logits: Tensor = self.model(input_ids=x, attention_mask=(x != PADDING).long(), use_cache=False).logits
        return logits


def hugging_face(spec: HuggingFace, tokens: int | None, outputs: int | None) -> nn.Module:
    """Build an architecture with random weights.

    Args:
        spec: of the network.
        tokens: number of distinct tokens.
        outputs: width of the last layer; None for a language model.

    Raises:
        UserError: transformers is not installed.
        SpecError: the configuration asks for remote code, or does not fit the architecture or the data.
    """
    if asking := sorted(key for key in spec.config if key in LOADS or key.startswith("_")):
        problem = f"got {asking[0]}, which can load code or files of others, expected sizes of the architecture"
        raise SpecError("model.config", problem, code="remote-code")
    if tokens is None:
        problem = "hugging-face reads tokens, expected the data reader text, or npz with data.tokens"
        raise SpecError("model.name", problem, code="shape-does-not-fit")
    try:
        import transformers
    except ImportError:
        raise UserError(
            "model.name: hugging-face needs transformers, which is not installed: pip install 'rankdad[transformers]'",
            code="not-installed",
            field="model.name",
        ) from None
    try:
        known = transformers.AutoConfig.for_model(spec.architecture)
    except ValueError:
        problem = f"{spec.architecture} is no architecture of transformers {transformers.__version__}"
        raise SpecError("model.architecture", problem, code="architecture-unknown") from None
    if unknown := sorted(key for key in spec.config if not hasattr(known, key)):
        problem = f"{spec.architecture} has no field {unknown[0]}"
        raise SpecError("model.config", problem, code="architecture-unknown")
    fixed: dict[str, Any] = {"vocab_size": tokens, "pad_token_id": PADDING, "num_labels": outputs or 2}
    kind: Any = transformers.AutoModelForCausalLM
    if outputs is not None:
        kind = transformers.AutoModelForSequenceClassification
    try:
        config = transformers.AutoConfig.for_model(spec.architecture, **spec.config | fixed)
        model: nn.Module = kind.from_config(config, trust_remote_code=False)
    except MemoryError:
        raise
    except Exception as error:
        raise SpecError("model.config", f"transformers: {one_line(error)}", code="architecture-unsuitable") from error
    return HuggingFaceNetwork(model)
