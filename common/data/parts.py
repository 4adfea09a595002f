"""The parts in which a site's samples lie, by its secret; who deals them out is `local.privacy.dealing`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
class Dealt:
    """The parts in which a run's samples lie at a site, and the secret by which all else is drawn.

    Args:
        parts: int64 [samples].
        sizes: patients of each part.
        secret: of the site.
        waits: samples that the run may not use.
        run: digest of its specification.
        keep: notes in the site's log that the run uses them, and returns whether it still may; None without a log.
        told: what share of the cells of each sample's patient earlier runs have told, float64 [samples]; None without.
        tell: notes in the site's log what shares the run tells, and returns whether it still may; None without a log.
        heads: returns how far the site's log has come by now; None without one.
        places: returns weights at which earlier runs have sent batches, of a run that begins anew its own, too.
        place: notes in the site's log that the run has sent batches near some weights.
        begun: notes in the site's log that the run begins at the beginning.
        beginning: returns what tells this beginning from others of the same specification; "" of the first.
        large: names of patients who have more than `LARGE` of their part's samples.
        beyond: samples that are left out since their patients have too many of their part's.
        why: some of the site's samples wait, and what would help; "" without a log.
    """

    parts: Array
    sizes: Mapping[int, int]
    secret: Secret
    waits: int = 0
    run: str = ""
    keep: Callable[[], bool] | None = None
    told: Array | None = None
    tell: Callable[[Array, float, bool], bool] | None = None
    heads: Callable[[], Heads | None] = lambda: None
    places: Callable[[bool], Places] = lambda anew: ()
    place: Callable[[Place], None] = lambda place: None
    begun: Callable[[], None] = lambda: None
    beginning: Callable[[], str] = lambda: ""
    large: tuple[str, ...] = ()
    beyond: int = 0
    why: str = ""

    def kept(self) -> bool:
        """Note in the site's log that the run uses its patients; return whether it still may."""
        return self.keep is None or self.keep()

    def order(self, rows: str) -> str:
        """Return what the order of a fold's batches is drawn from, given the digest of its training rows.

        With a secret it follows from that and from the run, too: the digest of rows that can be guessed can be guessed,
        and of two runs with the same batches the steps would be of the same samples at other weights, or would differ
        by one. So a specification that begins a second time has others.
        """
        beginning = self.beginning()
        return self.secret.name("order", self.run, rows, *([beginning] if beginning else []))

    def unnoted(self) -> Dealt:
        """Return the same, of which nothing more is noted in the site's log nor asked of it: another process does."""
        plain = Dealt(self.parts, self.sizes, self.secret)
        own = {name: getattr(plain, name) for name in ("keep", "tell", "places", "place", "begun", "beginning")}
        return replace(self, **own)

    def notes(self) -> tuple[str, ...]:
        """Return what the person at the site should know."""
        several = f"{len(self.sizes)} parts of at least {min(self.sizes.values())} patients"
        told = f"folds and validation are made of {several if len(self.sizes) > 1 else 'a single part: none is tested'}"
        notes: list[str] = [Fact(told)]
        if self.waits:
            alone = "alone, or beside what has left, they are too few for a part"
            notes.append(f"{self.waits} samples wait: {self.why or alone}")
        if self.beyond:
            notes.append(f"{self.beyond} samples are left out: with them a patient had too large a share of a part's")
        if self.large:
            names = ", ".join(visible(one, 40) for one in self.large[:MOST_NAMED])
            more = ", …" * (len(self.large) > MOST_NAMED)
            notes.append(
                f"{names}{more}: has more than a third of a part's samples, whose sums are nearly theirs alone"
            )
        return tuple(notes)


class Dealing(Protocol):
    """How a site deals its patients out."""

    @property
    def fewest(self) -> int:
        """Patients of a part."""

    def deal(self, reading: Reading) -> tuple[Reading, Dealt]:
        """Return the samples that a run may use, and the parts in which they lie."""
