"""The parts of a site's samples, as `local.privacy.assigning` assigns them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from rankdad.common.data.files import Fact
from rankdad.common.data.reading import Array, Reading
from rankdad.common.errors import visible
from rankdad.common.privacy.heads import Heads
from rankdad.common.privacy.parts import Secret
from rankdad.common.privacy.standing import Place, Places

LARGE = 1 / 3  # of a part's samples
MOST_NAMED = 3  # patients in a note


@dataclass(frozen=True, eq=False)
class Assignment:
    """The parts of a run's samples at a site, and the secret for all other draws.

    Args:
        parts: int64 [samples].
        sizes: number of patients in each part.
        secret: of the site.
        waits: number of samples that the run may not use.
        run: digest of its spec.
        keep: logs that the run uses the patients, with warnings, and returns whether it still may; None without a log.
        disclosed: share of each sample's patient's cells that earlier runs disclosed, float64 [samples]; None without.
        tell: logs the shares that the run discloses, and returns whether it still may; None without a log.
        heads: returns how far the site's log has come; None without one.
        places: returns weights at which earlier runs have sent batches, and this run if it restarts.
        place: logs that the run has sent batches near some weights.
        begun: logs that the run starts from the beginning.
        beginning: returns what distinguishes this start from others of the same spec; "" for the first.
        large: names of patients with more than `LARGE` of their part's samples.
        beyond: number of samples left out because their patients have too many of their part's.
        why: why samples wait, and what would help; "" without a log.
    """

    parts: Array
    sizes: Mapping[int, int]
    secret: Secret
    waits: int = 0
    run: str = ""
    keep: Callable[[Sequence[str]], bool] | None = None
    disclosed: Array | None = None
    tell: Callable[[Array, float, bool], bool] | None = None
    heads: Callable[[], Heads | None] = lambda: None
    places: Callable[[bool], Places] = lambda anew: ()
    place: Callable[[Place], None] = lambda place: None
    begun: Callable[[], None] = lambda: None
    beginning: Callable[[], str] = lambda: ""
    large: tuple[str, ...] = ()
    beyond: int = 0
    why: str = ""

    def kept(self, warnings: Sequence[str] = ()) -> bool:
        """Log that the run uses its patients, and warnings about it; return whether it still may."""
        return self.keep is None or self.keep(warnings)

    def order(self, rows: str) -> str:
        """Return the seed of the order of a fold's batches, given the digest of its training rows.

        With a secret, the seed also depends on it and on the run, because digests can be guessed. Two runs with the
        same batches would send steps of the same samples at other weights, or differ by one sample. A spec that starts
        a second time therefore has another seed.
        """
        beginning = self.beginning()
        return self.secret.name("order", self.run, rows, *([beginning] if beginning else []))

    def unnoted(self) -> Assignment:
        """Return the same parts without access to the log, for another process."""
        plain = Assignment(self.parts, self.sizes, self.secret)
        own = {name: getattr(plain, name) for name in ("keep", "tell", "places", "place", "begun", "beginning")}
        return replace(self, **own)

    def notes(self) -> tuple[str, ...]:
        """Return notes for the site's staff."""
        several = f"{len(self.sizes)} parts of at least {min(self.sizes.values())} patients"
        text = f"folds and validation consist of {several if len(self.sizes) > 1 else 'a single part: none is tested'}"
        notes: list[str] = [Fact(text)]
        if self.waits:
            alone = "alone, or added to what has left, they are too few for a part"
            notes.append(f"{self.waits} samples wait: {self.why or alone}")
        if self.beyond:
            notes.append(
                f"{self.beyond} samples are left out: their patients had too large a share of a part's samples"
            )
        if self.large:
            names = ", ".join(visible(one, 40) for one in self.large[:MOST_NAMED])
            more = ", …" * (len(self.large) > MOST_NAMED)
            notes.append(
                f"{names}{more}: has more than a third of a part's samples, whose sums are nearly theirs alone"
            )
        return tuple(notes)


class PartAssigner(Protocol):
    """Assigns a site's patients to parts."""

    @property
    def fewest(self) -> int:
        """Least number of patients in a part."""

    def assign(self, reading: Reading) -> tuple[Reading, Assignment]:
        """Return the samples that a run may use, and their parts."""
