"""Language models at a site: losses and metrics by masks, held against PyTorch on single texts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rankdad.common.metrics.monitoring import monitored, monitoring
from rankdad.common.metrics.summary import summarise
from rankdad.common.metrics.sums import tally
from rankdad.common.metrics.tally_codec import pack_tally, unpack_monitoring, unpack_tally
from rankdad.common.spec.tasks import LanguageModel
from rankdad.common.spec.text import BYTES, END, PADDING, UNKNOWN
from rankdad.local.baseline import token_guesses
from rankdad.local.losses import deltas, losses, text_losses

TASK = LanguageModel(name="language-model")
TEXTS = [[2, 100, 101, END], [2, 99, UNKNOWN, 101, 102, END], [2, 50, END]]


def tokens(length: int = 8) -> Tensor:
    return torch.tensor([(text + [PADDING] * length)[:length] for text in TEXTS])


def by_hand(logits: Tensor) -> tuple[list[float], list[int]]:
    """Sums of each text's losses of all tokens but the first, unknown ones and padding; their numbers."""
    sums, counts = list[float](), list[int]()
    for text, own in zip(TEXTS, logits, strict=True):
        known = [place for place in range(1, len(text)) if text[place] != UNKNOWN]
        sums.append(sum(float(F.cross_entropy(own[place - 1], torch.tensor(text[place]))) for place in known))
        counts.append(len(known))
    return sums, counts


@pytest.mark.parametrize("length", [6, 8])  # of logits: padding that all texts share may have none
def test_losses_count_known_tokens_alone(length: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, length, BYTES, dtype=torch.float64)
    sums, counts = by_hand(logits)
    found = text_losses(logits, tokens())
    torch.testing.assert_close(found, torch.tensor([sums, counts], dtype=torch.float64).T, rtol=1e-12, atol=0)
    weighted = losses(TASK, logits, tokens(), torch.tensor([0.25]))
    torch.testing.assert_close(weighted, found[:, 0] / 4, rtol=1e-12, atol=0)
    flows = deltas(TASK, logits, tokens())
    assert flows.shape == logits.shape
    assert flows[0, 3:].abs().max() == flows[1, 1].abs().max() == 0  # nothing, or an unknown token, follows


def test_metrics_are_those_of_all_tokens_and_bytes() -> None:
    outputs, labels = torch.tensor([[6.0, 3.0], [14.0, 4.0]]), torch.tensor([2.0, 3.0])
    total = tally(TASK, outputs[:1], labels[:1], outputs[:1, 0]) + tally(TASK, outputs[1:], labels[1:], outputs[1:, 0])
    expected = {"loss": 20 / 7, "perplexity": math.exp(20 / 7), "bits_per_byte": 20 / math.log(2) / 5}
    assert summarise(TASK, unpack_tally(TASK, pack_tally(total))).values == pytest.approx(expected)
    between = monitored(TASK, "loss", outputs, labels, outputs[:, 0])
    assert monitoring(TASK, "loss", unpack_monitoring(TASK, pack_tally(between))).values == {"loss": 20 / 7}
    assert set(summarise(TASK, tally(TASK, outputs[:0], labels[:0], outputs[:0, 0])).values.values()) == {None}


@pytest.mark.parametrize(("place", "value"), [(-1, 2.5), (-2, -1.0), (1, 1.0), (0, -1.0)])
def test_sums_that_no_texts_have_are_refused(place: int, value: float) -> None:
    total = tally(TASK, torch.tensor([[6.0, 3.0]]), torch.tensor([2.0]), torch.tensor([6.0]))
    total.sums[place] = value
    with pytest.raises(ValueError):  # noqa: PT011
        unpack_tally(TASK, pack_tally(total))


def test_a_guess_knows_how_often_each_token_occurs() -> None:
    (found,) = token_guesses(tokens(), torch.tensor([[2, 101, 7]])).tolist()
    seen = BYTES + 9  # known tokens, and one of each
    assert found == pytest.approx([-math.log(3 / seen) - math.log(1 / seen), 2])
