"""Rows of a run's steps, and singular values of their updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rankdad.common.lowrank.factors import Factor, singular_values
from rankdad.common.protocol.messages import Message
from rankdad.common.protocol.plan import Plan
from rankdad.common.rounds.base import Cost, Ready
from rankdad.common.rounds.step import Step
from rankdad.common.spec import RunSpec
from rankdad.common.staleness import damped
from rankdad.page.history import History
from rankdad.remote.results.progress import Progress
from rankdad.remote.run_file import RunFile

PLACE = ("step", "round", "fold", "epoch")
CANDIDATE = ("candidate",)  # with tuning: counted from 1, empty for tested and final models
FIGURES = ("loss", "seconds", "aggregation_seconds", "exposed_seconds", "bytes_up", "bytes_down", "left_out")
SPECTRUM_PLACE = ("step", "fold", "epoch", "layer", "rank")
SPECTRUM = 32  # recorded singular values of a layer
LATE = ("late",)  # with staleness: site:age of late contributions that joined this step


class StepRecord:
    """Writes a row for every step and updates the run's progress.

    Args:
        file: the run's.
        spec: the run's.
        plan: the run's.
        sites: see `Recorder`.
        progress: the run's.
        history: the page's curves.

    Attributes:
        losses: weighted sum and weight of every site's losses in this epoch.
        computed: seconds that sites report to have computed for the present step.
    """

    def __init__(
        self, file: RunFile, spec: RunSpec, plan: Plan, sites: tuple[str, ...], progress: Progress, history: History
    ) -> None:
        self._file, self._spec, self._plan, self._sites = file, spec, plan, sites
        self._progress, self._history = progress, history
        self.losses = dict.fromkeys(sites, (0.0, 0.0))
        self._open = _Sums()  # of the present step
        self.computed: dict[str, float] = {}
        self._late, candidate = LATE * bool(plan.staleness), CANDIDATE * bool(spec.candidates)
        names = [*(f"norm:{site}" for site in sites), *(f"rank:{name}" for name in layers_of(plan))]
        file.begin_table("steps", [*PLACE, *FIGURES, *self._late, *names, *candidate])
        if spec.record.spectra:
            rows = (slot.rows for exchange in plan.exchanges for slot in exchange.down.slots if len(slot.widths) == 2)
            self._values = min(SPECTRUM, max(rows, default=0))
            columns = [f"s{number + 1}" for number in range(self._values)]
            file.begin_table("spectra", [*SPECTRUM_PLACE, *columns, *candidate])

    def heard(self, site: str, computed: float | None) -> None:
        """Record the seconds that a site reports to have computed for this step so far."""
        if computed is not None:
            self.computed[site] = max(computed, self.computed.get(site, 0.0))

    def train_loss(self, site: str) -> float | str:
        """Return the mean loss of a site, or `pooled`, in this epoch so far; "" without any."""
        sums = self.losses.values() if site == "pooled" else [self.losses[site]]
        weight = sum(part for _, part in sums)
        return sum(total for total, _ in sums) / weight if weight else ""

    def note(self, ready: Ready, update: Step, cost: Cost) -> None:
        """Record an exchange of a step and, after the last exchange, the step."""
        progress, sums, (size, seconds, aggregation_seconds) = self._progress, self._open, cost
        up, down = sum(ready.sizes) + sum(late.size for late in ready.late), size * len(self._sites)
        progress.up, progress.down = progress.up + up, progress.down + down
        progress.step_seconds += seconds
        sums.add(seconds, aggregation_seconds, up, down)
        sums.missing |= ready.missing
        sums.ranks += [value.rows for value in update.payload if isinstance(value, Factor)]
        every = self._spec.record.spectra
        if every and (progress.step + 1) % every == 0:
            slots = self._plan.layout(ready.exchange, up=False).slots
            sums.factors |= {
                slot.name: value for slot, value in zip(slots, update.payload, strict=True) if isinstance(value, Factor)
            }
        for (site, _), arrived in zip(sent(self._sites, ready), ready.arrived, strict=False):
            sums.waited[site] = sums.waited.get(site, 0.0) + ready.seconds - arrived
        for site, message in sent(self._sites, ready):
            assert isinstance(message.body, Step)
            sums.norms[site] = message.body.norm
        if ready.exchange < len(self._plan.exchanges) - 1:
            return
        progress.step += 1
        progress.loss = update.loss
        norms, losses = dict.fromkeys(self._sites, ""), dict[str, float]()
        for site, message in sent(self._sites, ready):
            losses[site] = self._add_loss(site, message)
            norms[site] = f"{sums.norms[site]:.6g}"
        for late in ready.late:
            site = self._sites[late.place]
            self._add_loss(site, late.message, late.age)
            progress.late[site] = progress.late.get(site, 0) + 1
        joined = [" ".join(f"{self._sites[late.place]}:{late.age}" for late in ready.late)] * len(self._late)
        left_out = [self._sites[place] for place in sorted(sums.missing)]
        for site in left_out:
            progress.left_out[site] = progress.left_out.get(site, 0) + 1
        progress.behind = {site: progress.behind.get(site, 0) + 1 for site in left_out}
        fold, candidate = place_of(self._spec, progress.fold)
        place = (progress.step, ready.round, fold, progress.epoch + 1, update.loss)
        slowest = max(self.computed.values(), default=None)
        exposed = "" if slowest is None else f"{max(0.0, sums.seconds - slowest):.6f}"
        times = (f"{sums.seconds:.6f}", f"{sums.aggregation:.6f}", exposed)
        figures = (*times, sums.up, sums.down, " ".join(left_out))
        self._file.row("steps", [*place, *figures, *joined, *norms.values(), *sums.ranks, *candidate])
        self._history.add_step(
            update.loss, sums.seconds, sums.aggregation, sums.ranks, losses, sums.times(self.computed)
        )
        if sums.factors:
            self._record_spectra(sums.factors, [progress.step, fold, progress.epoch + 1], candidate)
        self._open, self.computed = _Sums(), {}

    def _add_loss(self, site: str, message: Message, age: int = 0) -> float:
        """Add a contribution's loss to its site's mean, and return it."""
        assert isinstance(message.body, Step)
        (total, weight), part = self.losses[site], damped(message.body.weight, age)
        self.losses[site] = (total + part * message.body.loss, weight + part)
        return message.body.loss

    def _record_spectra(self, factors: dict[str, Factor], place: list[int], candidate: list[int | str]) -> None:
        spectra = {name: singular_values(factor, SPECTRUM) for name, factor in factors.items()}
        for name, values in spectra.items():
            shown = [f"{value:.6g}" for value in values[: self._values]]
            shown += [""] * (self._values - len(shown))
            self._file.row("spectra", [*place, name, factors[name].rows, *shown, *candidate])
        self._history.add_spectra(place[0], spectra)


def layers_of(plan: Plan) -> list[str]:
    """Return the names of the layers with ranks in a step's row."""
    slots = (slot for exchange in plan.exchanges for slot in exchange.down.slots)
    return [slot.name for slot in slots if len(slot.widths) == 2]


def place_of(spec: RunSpec, training: int) -> tuple[int, list[int | str]]:
    """Return the model of a training, and the cell of the candidates' column, if there is one."""
    model, candidate = spec.place(training)
    return model, ["" if candidate is None else candidate + 1] * bool(spec.candidates)


def sent(sites: Sequence[str], ready: Ready) -> Iterator[tuple[str, Message]]:
    """Yield site and message of each contribution."""
    return ((sites[place], message) for place, message in zip(ready.places, ready.messages, strict=True))


@dataclass
class _Sums:
    """Sums over a step's exchanges."""

    seconds: float = 0.0
    aggregation: float = 0.0
    up: int = 0
    down: int = 0
    missing: frozenset[int] = frozenset()  # in any exchange
    ranks: list[int] = field(default_factory=list)
    norms: dict[str, float] = field(default_factory=dict)
    waited: dict[str, float] = field(default_factory=dict)  # seconds by site
    factors: dict[str, Factor] = field(default_factory=dict)  # with recorded singular values

    def times(self, computed: Mapping[str, float]) -> dict[str, tuple[float, float, float]]:
        """Return seconds of computing, transfer and waiting by site."""
        found = {}
        for site, waited in self.waited.items():
            own = min(computed.get(site, 0.0), self.seconds)
            found[site] = (own, max(0.0, self.seconds - self.aggregation - waited - own), waited)
        return found

    def add(self, seconds: float, aggregation: float, up: int, down: int) -> None:
        self.seconds, self.aggregation = self.seconds + seconds, self.aggregation + aggregation
        self.up, self.down = self.up + up, self.down + down
