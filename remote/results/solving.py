"""How a run's model was trained: by which solver and why, whether enough, and which columns it lacked."""

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


def how_solved(spec: RunSpec, exact: bool, warnings: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return which solver trains a run's model, and why, as a clause; where policies decide, from how many patients on.

    Args:
        spec: of the run.
        exact: whether it is solved exactly.
        warnings: sites by what is odd about them.
    """
    if exact:
        asked = spec.training.solver == "exact"
        why = "the specification asks for it" if asked else "every site's policy lets its sums out"
        return {"name": "exact", "why": f"the model is linear, with {counted(weights_of(spec), 'weight')}, and {why}"}
    if refusing := warnings.get(NOT_EXACT, ()):
        said = "policy of" if len(refusing) == 1 else "policies of"
        patients = patients_for_sums(spec, Policy())
        lacking = ["coefficients"] * (spec.kept_fold is not None)
        lacking += ["reference linear"] * ("linear" in spec.evaluation.references)
        why = (
            f"the {said} {listed(refusing, MAX_NAMED)} let out no sums of an exact solution"
            + (f", and without them there are no {' and no '.join(lacking)}" if lacking else "")
            + f"; the log there says which line refuses. The default policy lets them out from about {patients} "
            "patients a site on, if no level or class is rare in a part (min_level)"
        )
        return {"name": "steps", "why": why, "code": NOT_EXACT, "from_patients": patients}
    return {"name": "steps", "why": why_steps(spec) or "the specification asks for it (training.solver), or sets steps"}


def not_solved(spec: RunSpec, solver: Mapping[str, Any], trainings: Sequence[str]) -> dict[str, Any]:
    """Return what `how_solved` says, and that some trainings' rounds have not come to their solution.

    Args:
        spec: of the run.
        solver: as `how_solved` returns it.
        trainings: their names.
    """
    warning = (
        f"the exact solution was not reached in {listed(trainings, MAX_NAMED)} in its few rounds, in which sites may "
        "keep back sums that few patients are behind: figures of these trainings are of other weights; "
        + "other folds (evaluation.seed) may all reach it; " * hasattr(spec.evaluation, "seed")
        + '"solver": "steps" (training.solver) trains all of them alike, and gives no coefficients'
    )
    return {**solver, "unsolved": list(trainings), "warning": warning}


def solved(solver: Mapping[str, Any]) -> str:
    """Return "solved exactly", and but for how many trainings."""
    left = len(solver.get("unsolved", ()))
    return "solved exactly" + f" but for {counted(left, 'training')}" * bool(left)


def undertrained(spec: RunSpec, trainings: int, measured: int, unmeasured: int = 0) -> dict[str, object]:
    """Return what to say of a run whose last epoch was its best, or of which no best one is known; else nothing.

    Args:
        spec: of the run.
        trainings: whose last epoch was the best by validation.
        measured: that were validated.
        unmeasured: that were to be, and for which no site's samples gave what is monitored.
    """
    if unmeasured:
        stopping = ", and early stopping has had no effect" * bool(spec.training.early_stopping)
        warning = (
            f"in {unmeasured} of {measured + unmeasured} trainings no hospital's validation samples gave "
            f"{shown(spec.training.monitor)} (training.monitor): the last epoch was kept{stopping}; a hospital needs "
            "as many patients as its policy asks for, an AUC as many with the outcome and without it, and what its "
            "log has counted is told no more"
        )
        return {"trainings": trainings, "of": measured, "unmeasured": unmeasured, "warning": warning}
    if not trainings:
        return {}
    which = "the last epoch was the best" + (f" in {trainings} of {measured} trainings" if measured > 1 else "")
    remedy = "more epochs (training.epochs) or a higher rate (training.optimizer.lr)"
    if not why_steps(spec):
        remedy += ', or the exact solver (training.solver "auto")'
    warning = f"training ended too early: {which}, and the model was still improving; take {remedy}"
    return {"trainings": trainings, "of": measured, "warning": warning}


def no_sums(spec: RunSpec, names: Sequence[str]) -> str:
    """Return what to say of columns of which no hospital has told a sum."""
    seen = "the model does not see it"
    if spec.preparation.standardise != "federated":
        seen = "the model takes the values that there are as they are, and 0 for gaps"
    return (
        f"of {listed([*map(visible, names)], MAX_NAMED)} no hospital tells a sum, since no patients or too few "
        f"have a value (min_rows): {seen}; leave it out"
    )
