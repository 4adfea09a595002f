"""How a run's model was trained: the solver, its reason, and warnings about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankdad.common.errors import counted, listed, visible
from rankdad.common.needs import patients_for_sums
from rankdad.common.policy import Policy
from rankdad.common.spec import RunSpec
from rankdad.common.spec.solver import NOT_EXACT, weights_of, why_steps
from rankdad.common.spec.tasks import shown

MAX_NAMED = 6  # sites in a sentence


def solver_summary(spec: RunSpec, exact: bool, warnings: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the solver's `name` and the reason `why`, as a clause.

    If policies prevent the exact solution, `from_patients` is the number per site that would allow it.

    Args:
        spec: the run's.
        exact: whether it is solved exactly.
        warnings: sites by kind of warning.
    """
    if exact:
        asked = spec.training.solver == "exact"
        why = "the specification asks for it" if asked else "every site's policy allows its sums"
        return {"name": "exact", "why": f"the model is linear, with {counted(weights_of(spec), 'weight')}, and {why}"}
    if refusing := warnings.get(NOT_EXACT, ()):
        policies = "policy of" if len(refusing) == 1 else "policies of"
        patients = patients_for_sums(spec, Policy())
        lacking = ["coefficients"] * (spec.kept_fold is not None)
        lacking += ["reference linear"] * ("linear" in spec.evaluation.references)
        why = (
            f"the {policies} {listed(refusing, MAX_NAMED)} let out no sums of an exact solution"
            + (f", and without them there are no {' and no '.join(lacking)}" if lacking else "")
            + f"; the log there says which line refuses. The default policy lets them out from about {patients} "
            "patients a site on, if no level or class is rare in a part (min_level)"
        )
        return {"name": "steps", "why": why, "code": NOT_EXACT, "from_patients": patients}
    return {"name": "steps", "why": why_steps(spec) or "the specification asks for it (training.solver), or sets steps"}


def with_unsolved(spec: RunSpec, solver: Mapping[str, Any], trainings: Sequence[str]) -> dict[str, Any]:
    """Add a warning about trainings whose exact solution did not converge.

    Args:
        spec: the run's.
        solver: result of `solver_summary`.
        trainings: names of the trainings.
    """
    warning = (
        f"the exact solution did not converge in {listed(trainings, MAX_NAMED)}: sites may withhold sums of few "
        "patients; figures of these trainings are of other weights; "
        + "other folds (evaluation.seed) may all converge; " * hasattr(spec.evaluation, "seed")
        + '"solver": "steps" (training.solver) trains all of them alike, and gives no coefficients'
    )
    return {**solver, "unsolved": list(trainings), "warning": warning}


def solved(solver: Mapping[str, Any]) -> str:
    """Return "solved exactly", with the number of trainings that did not converge."""
    left = len(solver.get("unsolved", ()))
    return "solved exactly" + f" but for {counted(left, 'training')}" * bool(left)


def undertrained(
    spec: RunSpec, trainings: int, measured: int, unmeasured: int = 0, *, guesses: bool = False
) -> dict[str, object]:
    """Return a warning about a run whose best epoch was its last or is unknown; else an empty dict.

    Args:
        spec: the run's.
        trainings: number of trainings with the last epoch as the best.
        measured: number of validated trainings.
        unmeasured: number of trainings with validation samples, but without the monitored metric.
        guesses: whether a guess without inputs has no larger loss in the tests.
    """
    if unmeasured:
        stopping = ", and early stopping has had no effect" * bool(spec.training.early_stopping)
        ranks = ", for an AUC as many with the outcome and without it," * spec.training.monitor.startswith("auc")
        warning = (
            f"in {unmeasured} of {measured + unmeasured} trainings no hospital's validation samples gave "
            f"{shown(spec.training.monitor)} (training.monitor): the last epoch was kept{stopping}; a hospital needs "
            f"as many patients as its policy requires{ranks} and does not send again what its disclosure log has "
            "counted"
        )
        return {"trainings": trainings, "of": measured, "unmeasured": unmeasured, "warning": warning}
    if not trainings:
        return {}
    which = "the last epoch was the best" + (f" in {trainings} of {measured} trainings" if measured > 1 else "")
    remedy = "more epochs (training.epochs) or a higher rate (training.optimizer.lr)"
    if not why_steps(spec):
        remedy += ', or the exact solver (training.solver "auto")'
    warning = f"training ended too early: {which}, and the model was still improving; take {remedy}"
    if guesses:
        warning = f"the model is no better than a guess, and {which}; other inputs may help, or {remedy}"
    return {"trainings": trainings, "of": measured, "warning": warning}


def missing_sums_warning(spec: RunSpec, names: Sequence[str]) -> str:
    """Return a warning about columns for which no hospital sent a sum."""
    seen = "the model ignores it"
    if spec.preparation.standardise != "federated":
        seen = "the model uses its values unchanged, and 0 for gaps"
    return (
        f"no hospital sends a sum of {listed([*map(visible, names)], MAX_NAMED)}, since no patients or too few "
        f"have a value (min_rows): {seen}; leave it out"
    )
