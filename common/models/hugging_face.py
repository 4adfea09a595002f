"""Architectures of the library transformers, from their configurations: no code or weights of others are loaded."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from rankdad.common.errors import SpecError, UserError, one_line
from rankdad.common.spec.model import HuggingFace
from rankdad.common.spec.text import PADDING, SPECIAL

# Fields that name code, files or kernels to load. All whose names begin with _ are refused, too.
LOADS = frozenset(
    (
        *("auto_map", "trust_remote_code", "custom_pipelines", "quantization_config", "name_or_path"),
        *("attn_implementation", "experts_implementation", "use_kernels"),
    )
)

PROBED = 128  # tokens of the texts that a network is tried with, or two texts
SHORT, PADDED = 4, 16  # tokens of two texts more, and their length: many tokens use all rows if there are few


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


def hugging_face(spec: HuggingFace, tokens: int | None, length: int, outputs: int | None) -> nn.Module:
    """Build an architecture with random weights.

    Args:
        spec: of the network.
        tokens: number of distinct tokens.
        length: number of tokens of a text, with padding.
        outputs: width of the last layer; None for a language model.

    Raises:
        UserError: transformers is not installed.
        SpecError: the configuration asks for remote code, does not fit the architecture or the data, or has weights
            that only some sequences of tokens use.
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
        model = HuggingFaceNetwork(kind.from_config(config, trust_remote_code=False))
        name = used_by_some(model, tokens, length)
    except MemoryError:
        raise
    except Exception as error:
        raise SpecError("model.config", f"transformers: {one_line(error)}", code="architecture-unsuitable") from error
    if name is not None:
        problem = f"rows of {name} depend on several tokens, and would name words of a text, expected other layers"
        raise SpecError("model.architecture", problem, code="architecture-unsuitable")
    return model


def used_by_some(model: nn.Module, tokens: int, length: int) -> str | None:
    """Return a parameter whose used rows depend on the order of tokens; None if there is none.

    Such a row, as of hashed n-grams or of one of many experts, says that a step's texts have certain words. Units of
    linear layers may do so by chance, and are limited by each patient's share. Weights are random ones, because initial
    ones might be 0, and as large as lets other tokens decide about a row.
    """
    generator = torch.Generator().manual_seed(0)
    lowest = min(SPECIAL, tokens - 1)
    whole = {name for name, module in model.named_modules() if type(module).__name__ in ("Linear", "Conv1D")}
    weights = {
        name: torch.empty(own.shape).uniform_(-_largest(own), _largest(own), generator=generator).requires_grad_()
        for name, own in model.named_parameters()
    }
    name = None
    model.eval()
    short = 2, min(SHORT, length), min(PADDED, length)
    for few, count, whole_length in (short, (max(2, PROBED // length), length, length)):
        text = torch.randint(lowest, tokens, (few * count,), generator=generator)
        found = list[dict[str, Tensor]]()
        for order in (torch.arange(len(text)), torch.randperm(len(text), generator=generator)):
            padded = F.pad(text[order].view(few, count), (0, whole_length - count), value=PADDING)
            outputs = functional_call(model, weights, padded)
            toward = torch.empty(outputs.shape).uniform_(-1, 1, generator=generator)
            given = torch.autograd.grad((outputs * toward).sum(), list(weights.values()), allow_unused=True)
            found.append({})
            for own, grad in zip(weights, given, strict=True):
                used = torch.zeros(1, dtype=torch.bool) if grad is None else grad.ne(0)
                by_row = used.ndim > 1 and own.rpartition(".")[0] not in whole
                found[-1][own] = used.flatten(1).any(1) if by_row else used.any()
        name = name or next((own for own, rows in found[0].items() if not torch.equal(rows, found[1][own])), None)
    model.train()
    return name


def _largest(weights: Tensor) -> float:
    """Return the largest random weight with which a layer's outputs are about as large as its inputs."""
    return math.sqrt(3 / max(1, weights.shape[-1])) if weights.ndim > 1 else 1.0
