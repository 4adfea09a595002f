"""Architectures of the library transformers, from their configurations: no code or weights of others are loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.modules.module import register_module_module_registration_hook

from rankdad.common.errors import SpecError, UserError, one_line
from rankdad.common.lowrank.layers import layout_of
from rankdad.common.spec.model import HuggingFace
from rankdad.common.spec.text import PADDING, SPECIAL

# Fields that name code, files or kernels to load. All whose names begin with _ are refused, too.
LOADS = frozenset(
    (
        *("auto_map", "trust_remote_code", "custom_pipelines", "quantization_config", "name_or_path"),
        *("attn_implementation", "experts_implementation", "use_kernels"),
    )
)

MOST_MODULES = 20_000  # some thousand layers, which take seconds to make
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
    if asking := sorted(key for key in _fields(spec.config) if key in LOADS or key.startswith("_")):
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
        model = HuggingFaceNetwork(_made(kind, config))
        problem = "" if next(model.parameters()).is_meta else _unsuitable(model, tokens, length)
    except MemoryError:
        raise
    except Exception as error:
        raise SpecError("model.config", f"transformers: {one_line(error)}", code="architecture-unsuitable") from error
    if problem:
        raise SpecError("model.architecture", f"{problem}, expected other layers", code="architecture-unsuitable")
    return model


def _fields(config: object) -> Iterator[str]:
    """Yield the names of all fields, also of configurations within a configuration."""
    if isinstance(config, dict):
        yield from config
    if isinstance(config, dict | list):
        for value in config.values() if isinstance(config, dict) else config:
            yield from _fields(value)


def _made(kind: Any, config: Any) -> nn.Module:
    """Make an architecture, unless it has so many modules that this would take minutes, or forever."""
    found = 0

    def count(*_: object) -> None:
        nonlocal found
        found += 1
        if found > MOST_MODULES:
            raise ValueError(f"more than {MOST_MODULES:,} modules, expected fewer layers")

    counting = register_module_module_registration_hook(count)
    try:
        made: nn.Module = kind.from_config(config, trust_remote_code=False)
    finally:
        counting.remove()
    return made


def _unsuitable(model: nn.Module, tokens: int, length: int) -> str:
    """Return why what leaves of a network might be about one text alone; "" if it is suitable.

    Weights are random ones, because initial ones might be 0, and as large as lets other tokens decide.
    """
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.empty(own.shape).uniform_(-_largest(own), _largest(own), generator=generator).requires_grad_()
        for name, own in model.named_parameters()
    }
    model.eval()
    if name := used_by_some(model, weights, tokens, length, generator):
        return f"rows of {name} depend on several tokens, and would name words of a text"
    if name := mixing(model, weights, tokens, length, generator):
        return f"{name} has rows that are not those of one text, so that no patient's share could be limited"
    model.train()
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        functional_call(model, dict(weights), torch.full((2, length), tokens - 1))
    changed = (name for name, value in model.named_buffers() if not torch.equal(value, buffers[name]))
    if name := next(changed, ""):
        return f"the buffer {name} follows the texts, and may be a value of one"
    return ""


def used_by_some(
    model: nn.Module, weights: Mapping[str, Tensor], tokens: int, length: int, generator: torch.Generator
) -> str:
    """Return a parameter whose used rows depend on the order of tokens; "" if there is none.

    Such a row, as of hashed n-grams or of one of many experts, says that a step's texts have certain words. Units of
    linear layers may do so by chance, and are limited by each patient's share.
    """
    lowest, name = min(SPECIAL, tokens - 1), ""
    whole = {name for name, module in model.named_modules() if type(module).__name__ in ("Linear", "Conv1D")}
    short = 2, min(SHORT, length), min(PADDED, length)
    for few, count, whole_length in (short, (max(2, PROBED // length), length, length)):
        text = torch.randint(lowest, tokens, (few * count,), generator=generator)
        found = list[dict[str, Tensor]]()
        for order in (torch.arange(len(text)), torch.randperm(len(text), generator=generator)):
            padded = F.pad(text[order].view(few, count), (0, whole_length - count), value=PADDING)
            outputs = functional_call(model, dict(weights), padded)
            toward = torch.empty(outputs.shape).uniform_(-1, 1, generator=generator)
            given = torch.autograd.grad((outputs * toward).sum(), list(weights.values()), allow_unused=True)
            found.append({})
            for own, grad in zip(weights, given, strict=True):
                used = torch.zeros(1, dtype=torch.bool) if grad is None else grad.ne(0)
                by_row = used.ndim > 1 and own.rpartition(".")[0] not in whole
                found[-1][own] = used.flatten(1).any(1) if by_row else used.any()
        name = name or next((own for own, rows in found[0].items() if not torch.equal(rows, found[1][own])), "")
    return name


def mixing(
    model: nn.Module, weights: Mapping[str, Tensor], tokens: int, length: int, generator: torch.Generator
) -> str:
    """Return a linear layer whose rows are not ordered by text, as limits on shares expect; "" if there is none."""
    texts, found = 3, list[tuple[str, Tensor]]()

    def noting(name: str) -> Callable[..., None]:
        def note(*given: Any) -> None:  # the module, its inputs and its output
            given[-1].register_hook(lambda grad: found.append((name, grad)))

        return note

    layers = {name: module for name, module in model.named_modules() if layout_of(module) is not None}
    hooks = [module.register_forward_hook(noting(name)) for name, module in layers.items()]
    text = torch.randint(min(SPECIAL, tokens - 1), tokens, (texts, length), generator=generator)
    outputs = functional_call(model, dict(weights), text)
    torch.autograd.grad(outputs[0].sum(), list(weights.values()), allow_unused=True)
    for hook in hooks:
        hook.remove()
    return next((name for name, grad in found if len(grad) % texts or grad[len(grad) // texts :].any()), "")


def _largest(weights: Tensor) -> float:
    """Return the largest random weight with which a layer's outputs are about as large as its inputs."""
    return math.sqrt(3 / max(1, weights.shape[-1])) if weights.ndim > 1 else 1.0
