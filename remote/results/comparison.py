"""How a run's model compares with others on the same rows: which is better, how surely, and at which hospitals."""

from __future__ import annotations

from dataclasses import dataclass

from rankdad.common.metrics.intervals import Interval
from rankdad.common.metrics.paired import WITHIN
from rankdad.common.metrics.paired_sums import Difference
from rankdad.common.rounds.scores import GUESS
from rankdad.common.spec.tasks import LOWER_IS_BETTER, Metric, Regression
from rankdad.remote.results.paired_folds import DIFFERENCE
from rankdad.remote.results.run_results import BASELINE, RunResults, finite
from rankdad.remote.results.run_summary import Values

REFERENCES = ("local", "linear", "site")  # in the order in which they are told
DIGITS = 3  # printed


@dataclass(frozen=True)
class OwnModel:
    """A hospital whose own model has the better figure.

    Args:
        site: its name.
        own: figure of its own model.
        shared: figure of the run's model there.
        difference: of the two on the same rows; None if it is not known.
    """

    site: str
    own: float
    shared: float
    difference: Difference | None

    @property
    def is_sure(self) -> bool:
        """Whether the interval of the difference leaves out 0."""
        found = self.difference
        return found is not None and found.low < found.high and is_clear(found)


def measure(run: RunResults) -> Metric:
    """Return the metric that models are compared by."""
    return "mae" if isinstance(run.spec.task, Regression) else "auc"


def is_clear(found: Difference) -> bool:
    """Tell whether an interval leaves out 0."""
    return found.low > 0 or found.high < 0


def is_better(name: str, found: Difference) -> bool:
    """Tell whether the model's figure is the better one."""
    return found.value != 0 and (found.value < 0) == (name in LOWER_IS_BETTER)


def judged(name: str, found: Difference) -> int:
    """Return 1 of a figure that is surely better, −1 of one that is surely worse, else 0."""
    return 0 if not is_clear(found) else 1 if is_better(name, found) else -1


def deciding(run: RunResults, reference: str) -> tuple[str, Difference] | None:
    """Return the difference by which a reference is judged, and its metric: within hospitals where that is known."""
    found = run.differences_from(reference)
    name = next((name for name in (*[WITHIN] * (reference != "linear"), measure(run)) if name in found), None)
    return None if name is None else (name, found[name])


def gain(name: Metric, model: float, other: float) -> float:
    """Return by how much a model is better than another one, as printed; below 0 it is worse."""
    difference = round(model, DIGITS) - round(other, DIGITS)
    return -difference if name in LOWER_IS_BETTER else difference


def of_site(row: dict[str, float], rival: str, name: str) -> Difference | None:
    """Return the difference from a rival over one site's rows; None where it is not known."""
    value, low, high = (row.get(f"{rival}_{name}{DIFFERENCE}{end}") for end in ("", "_low", "_high"))
    return None if value is None or low is None or high is None else Difference(value, low, high, "")


def beside_guess(run: RunResults) -> dict[str, Difference | None]:
    """Return by hospital how far the model's error is from that of a guess by the hospital alone.

    None where no interval is known: a run compares on the same rows if it has references.
    """
    name = error(run)
    return {
        site: of_site(row, GUESS, name)
        for site, row in run.by_site.items()
        if row.get("samples") and BASELINE + name in row
    }


def error(run: RunResults) -> Metric:
    """Return the error of predictions that hospitals are compared by: it is known of one class alone, too."""
    return "mae" if isinstance(run.spec.task, Regression) else "loss"


def value(run: RunResults, reference: str) -> tuple[float | None, Interval | None]:
    """Return what a reference reaches over all samples, with its interval; None where it lacks some of the samples."""
    found, name = run.summary.metrics.references.get(reference), measure(run)
    if found is None or found.samples != run.test.get("samples"):
        return None, None
    return found.values.get(name), found.intervals.get(name)


def told(run: RunResults) -> list[str]:
    """Return the references that are told, in their order: of two that are one computation the first."""
    found = [reference for reference in REFERENCES if reference in run.summary.metrics.references]
    weighted = getattr(run.spec.task, "class_weights", "none") != "none"  # which linear models of one site do not know
    same = {"local", "site"} <= set(found) and run.summary.exact and not weighted
    return [reference for reference in found if not (same and reference == "site")]


def within_hospitals(run: RunResults, values: Values) -> float | None:
    """Return the AUC over pairs of rows of one hospital; None of one hospital, or where those of a region are one."""
    several = len(run.by_site) > 1 and not run.spec.federation.regions
    return finite(values).get("auc") if several else None


def compared_at(run: RunResults, reference: str) -> list[str]:
    """Return the hospitals that have figures of the model and of a reference."""
    name = measure(run)
    return [site for site, row in run.by_site.items() if {name, f"{reference}_{name}"} <= row.keys()]


def better_alone(run: RunResults, reference: str) -> list[OwnModel]:
    """Return the hospitals where a reference of their own has the better figure."""
    name, found = measure(run), list[OwnModel]()
    for site in compared_at(run, reference):
        row = run.by_site[site]
        one = OwnModel(site, row[f"{reference}_{name}"], row[name], of_site(row, reference, name))
        apart = one.difference
        if gain(name, one.shared, one.own) < 0 and (not apart or (apart.value != 0 and not is_better(name, apart))):
            found.append(one)
    return found
