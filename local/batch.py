"""What a step trains on, read part by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from rankdad.common.data import Batch


@dataclass(frozen=True)
class StepBatch:
    """The samples of a step, in parts that go through the network one by one: each is read when its turn comes.

    Args:
        samples: of each of the step's batches; of local steps there may be several batches.
        people: of the parts of each batch that are this process's (all of them, unless several ranks share the site)
            which patient each sample is of, by a number.
        parts: these, in order; read once.
    """

    samples: Sequence[int]
    people: Sequence[Sequence[Tensor]]
    parts: Iterator[Batch]

    def __len__(self) -> int:
        return sum(self.samples)

    def batches(self) -> list[StepBatch]:
        """Return the step's batches, to be trained on in their order."""
        pairs = zip(self.samples, self.people, strict=True)
        return [StepBatch((samples,), (people,), self.parts) for samples, people in pairs]
