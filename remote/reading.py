"""Sentences about the figures of a run: what they say beside knowing only the site, and how each came about."""

from __future__ import annotations

import math

from common.studies import LeaveOneSiteOut
from common.tasks import Classification, Regression
from remote.results import BASELINE, Results, known

NAMES = {
    "auc": "AUC",
    "accuracy": "accuracy",
    "loss": "loss",
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "calibration_error": "calibration error",
    "mae": "MAE",
    "r2": "R²",
    "pearson_r": "Pearson's r",
}
LITTLE = 0.02  # of an AUC, R² or r: a smaller difference is not worth a sentence


def number(value: float | None, digits: int = 3) -> str:
    """Return a number as a paper prints it; – where there is none."""
    return "–" if value is None or not math.isfinite(value) else f"{value:z,.{digits}f}".replace("-", "−")


def guess_of(run: Results) -> str:
    """Return what the baseline is called."""
    unseen = isinstance(run.spec.evaluation, LeaveOneSiteOut)
    return "a guess from the other sites' labels" if unseen else "a guess that knows only the site"


def verdict(run: Results) -> list[str]:
    """Return what of the pooled figures the site alone explains, and what is left within sites."""
    if not run.summary.metrics.baseline:
        return []
    said = _numbers(run) if isinstance(run.spec.task, Regression) else _classes(run)
    return [" ".join(said), *_beaten(run)]


def _numbers(run: Results) -> list[str]:
    test, guess, within = run.test, known(run.summary.metrics.baseline), known(run.summary.metrics.within_sites)
    said = []
    if isinstance(run.spec.evaluation, LeaveOneSiteOut):
        said.append(UNSEEN)
    elif {"pearson_r", "r2"} <= guess.keys() & test.keys():
        earned = f"r = {number(guess['pearson_r'])} and R² = {number(guess['r2'])}"
        said.append(f"A guess that knows only the site, the mean of the labels it trains on, reaches {earned}:")
        if guess["r2"] > LITTLE:
            said.append(
                f"so much of the r = {number(test['pearson_r'])} and R² = {number(test['r2'])} of all samples together "
                "can be had by telling sites apart."
            )
        else:
            said.append("knowing the site explains next to nothing here.")
    if {"pearson_r", "r2"} <= within.keys():
        left = f"r = {number(within['pearson_r'])} and R² = {number(within['r2'])}"
        said.append(f"Within sites, each one's own mean taken out of labels and predictions, the model has {left}.")
    if "r2" in guess and "r2" in test and guess["r2"] < 1:
        less = (test["r2"] - guess["r2"]) / (1 - guess["r2"])
        ends = f"{less * 100:.0f} % smaller than" if less > 0 else "no smaller than"
        said.append(f"Its squared error over all samples is {ends} that of the guess.")
    return said


def _classes(run: Results) -> list[str]:
    test, guess, within = run.test, known(run.summary.metrics.baseline), known(run.summary.metrics.within_sites)
    said = []
    if isinstance(run.spec.evaluation, LeaveOneSiteOut):
        said.append(UNSEEN)
    else:
        reached = " and ".join(
            f"an {NAMES[name]} of {number(guess[name])}" for name in ("auc", "accuracy") if name in guess
        )
        said.append(f"A guess that knows only the site, the frequencies of the labels it trains on, reaches {reached}.")
        said += _against(run, "auc")
    if "auc" in within and "auc" in test:
        said.append(f"Over pairs of samples of the same site its AUC is {number(within['auc'])}:")
        if test["auc"] - within["auc"] > LITTLE:
            said.append("differences between sites make the pooled AUC look better than the model is within them.")
        else:
            said.append("the pooled AUC owes next to nothing to differences between sites.")
    return [*said, *_against(run, "accuracy")]


def _against(run: Results, name: str) -> list[str]:
    """Return how a metric's interval lies to the guess."""
    guess, interval = run.summary.metrics.baseline.get(name), run.summary.metrics.intervals.get(name)
    if guess is None or interval is None or name not in run.test:
        return []
    found = f"The model's {NAMES[name]} is {number(run.test[name])}, and its 95 % interval"
    if guess < interval.low:
        return [f"{found} lies above the guess's."]
    if guess > interval.high:
        return [f"{found} lies below the guess's: the model does worse than the guess."]
    return [f"{found} holds the guess's: no gain over the guess is shown."]


def _beaten(run: Results) -> list[str]:
    """Return at how many sites the guess does as well."""
    name = "mae" if isinstance(run.spec.task, Regression) else "loss"
    pairs = [
        (row[name], row[BASELINE + name]) for row in run.by_site.values() if name in row and BASELINE + name in row
    ]
    count = sum(model >= guess for model, guess in pairs)
    if not count:
        return []
    return [f"At {count} of {len(pairs)} sites the model's {NAMES[name]} is no smaller than that of the guess."]


UNSEEN = (
    "No label of the site that is tested is known in training, so the guess here is from the labels of all other "
    "sites: it is the same for a whole site, and errs away from it, which puts its AUC or correlation below chance. "
    "What the model earns over all samples may still be from features that tell how sites differ."
)


def notes(run: Results) -> list[str]:
    """Return how the figures of the table come about."""
    found, task = run.summary.metrics, run.spec.task
    said = []
    if found.intervals:
        each = ", ".join(f"{NAMES.get(name, name)}: {one.method}" for name, one in found.intervals.items())
        said.append(
            f"95 % intervals ({each}) are of all samples' predictions, each by a model that has not seen the sample. "
            "They take predictions as independent of one another, and say nothing about other sites than these."
        )
    if isinstance(run.spec.evaluation, LeaveOneSiteOut):
        said.append("Every fold is a site, so that figures over folds are those over sites.")
    elif run.spec.tested_folds > 1 and found.folds:
        said.append(
            "± SD over folds is the standard deviation between folds. Folds share training samples: it is no error of "
            "the mean, and no interval can be made of it."
        )
    if found.sites:
        missing = max((one.missing for one in found.sites.values()), default=0)
        lack = f" {missing} of them lack a metric, for want of a second class or sample." if missing else ""
        said.append(f"The mean over sites counts every site the same, whatever its size; ± SD is between sites.{lack}")
    absent = int(run.test.get("absent", 0))
    if absent:
        kind = "classes have" if isinstance(task, Classification) else "labels have"
        said.append(f"{absent} {kind} no AUC, for want of samples, and are left out of its mean.")
    if "auc_error" in run.test:
        error = run.test["auc_error"]
        said.append(f"AUCs are from histograms of scores: the pooled one is off by at most {error:.1g}.")
    return said


def guide(run: Results) -> list[str]:
    """Return what the metrics mean."""
    said = [
        "All samples together means all sites' samples as if they lay in one place; yet no site sent a sample, a score "
        "or a label: only counts and sums over its samples.",
    ]
    if isinstance(run.spec.task, Regression):
        said.append(
            "MAE is the mean absolute error in the label's unit; R² is 1 − squared errors by squared deviations of the "
            "labels from their mean, and below 0 where that mean would do better; Pearson's r is the correlation of "
            "labels and predictions. The loss is in standard deviations of the label. A single site's R² and r are "
            "against the spread of labels at that site, which may be small."
        )
    else:
        said.append(
            "AUC is the chance that a sample of a class gets a higher score for it than another, the mean over classes "
            "or labels. Accuracy is the part of samples, or of their labels, that was right; where one class is "
            "frequent, always guessing it is accurate, too. Balanced accuracy is the mean recall over the classes that "
            "are present, F1 the harmonic mean of precision and recall: of the second of two classes, or the mean over "
            "classes or labels. Calibration error is the mean distance between confidence and frequency over 15 bins. "
            "Loss is the mean cross-entropy in nats."
        )
    counted = {site: row["samples"] for site, row in run.by_site.items() if row.get("samples")}
    few = "Figures of single sites are uncertain where samples are few, and say little about differences between sites."
    if counted:
        least = min(counted, key=lambda site: counted[site])
        few += f" The fewest test samples, {counted[least]:.0f}, are those of {least}"
        if isinstance(run.spec.task, Regression):
            few += "."
        else:
            few += f": chance alone moves an accuracy there by up to about ± {1 / math.sqrt(counted[least]):.2f}"
            few += " (twice the largest standard error)."
    best = "Best epochs are chosen on validation samples, whose metrics look a little better than those of the test."
    return [*said, few, best, "– stands for what was not measured."]
