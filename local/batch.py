"""The samples of a step, read part by part."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from rankdad.common.data import Batch
from rankdad.common.privacy.tokens import Usual, replaced


@dataclass(frozen=True)
class StepBatch:
    """The samples of a step, in parts that go through the network one by one; each part is read when it is used.

    Args:
        samples: number in each of the step's batches; local steps have several batches.
        people: patient number of each sample, for the parts of each batch that this process trains on.
        parts: the same parts, in order; can be iterated once.
    """

    samples: Sequence[int]
    people: Sequence[Sequence[Tensor]]
    parts: Iterator[Batch]

    def __len__(self) -> int:
        return sum(self.samples)

    def batches(self) -> list[StepBatch]:
        """Return the step's batches in training order."""
        pairs = zip(self.samples, self.people, strict=True)
        return [StepBatch((samples,), (people,), self.parts) for samples, people in pairs]


def with_usual_tokens(parts: Iterator[Batch], batches: Iterable[tuple[int, Usual]]) -> Iterator[Batch]:
    """Yield the parts of batches of texts, without tokens and lengths that few patients have.

    Args:
        parts: in order.
        batches: of each batch the number of its parts, and what replaces its texts; see `common.privacy.tokens`.
    """
    for count, usual in batches:
        for part in itertools.islice(parts, count):
            yield part._replace(inputs=replaced(part.inputs, usual))
