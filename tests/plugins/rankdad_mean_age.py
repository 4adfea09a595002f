"""The mean age of all patients, as another package would bring a kind of round along: one file, and an entry point."""

from __future__ import annotations

from rankdad.common.errors import ProtocolError
from rankdad.common.protocol.messages import Control, Count, Kind, Measure, Message
from rankdad.common.rounds.base import Collected, Contributor, Due, Further
from rankdad.common.rounds.checks import Checks
from rankdad.common.spec.data import CsvData

OLDEST = 130.0


class Ages(Control):
    """How many patients have an age, and what these add up to."""

    patients: Count
    years: Measure


class Mean(Control):
    """The answer, which every site learns."""

    patients: Count
    years: Measure


class MeanAge(Further):
    """Ask every site for the sum of its patients' ages."""

    name = "mean-age"
    kind, up, down = Kind(64, "MEAN_AGE"), Ages, Mean

    def contribution(self, site: Contributor, due: Due, *, counts: bool) -> Ages:
        """Return the sum over the rows that may leave the site in sums."""
        data = site.spec.data
        assert isinstance(data, CsvData)
        ages = site.data.described().inputs[:, data.features.index("age")]
        given = ages[~ages.isnan()]
        return Ages(patients=len(given), years=float(given.double().sum()))

    def check(self, checks: Checks, site: str, message: Message, ago: int) -> None:
        """Refuse ages of nobody, or of more patients than the site has."""
        sent = message.body
        assert isinstance(sent, Ages)
        if sent.patients > max(map(sum, checks.samples[site])) or sent.years > OLDEST * sent.patients:
            raise ProtocolError(422, f"d.years: no patients have {sent}", code="sums-unusable", field="d.years")

    def pooled(self, here: Collected) -> Mean:
        """Return the mean over all sites."""
        sent = here.ready.bodies(Ages)
        patients = sum(one.patients for one in sent)
        return Mean(patients=patients, years=sum(one.years for one in sent) / max(1, patients))
