"""Conclusions that a run's test does not support."""

from __future__ import annotations

from collections.abc import Iterator

from rankdad.common.spec.evaluation import Holdout, LeaveOneSiteOut
from rankdad.remote.report.narrative import noun_of
from rankdad.remote.report.words import Sentence, count, listed
from rankdad.remote.results.comparison import primary_difference, shown_references, significant_sign
from rankdad.remote.results.run_results import RunResults


def cautions(run: RunResults) -> Iterator[Sentence]:
    """Yield the conclusions that a run's test does not support."""
    evaluation, noun = run.spec.evaluation, noun_of(run)
    if isinstance(evaluation, LeaveOneSiteOut):
        text = f"These are only {count(len(run.tested_at), 'hospital')}: another one may lie outside their range."
        yield Sentence("hospitals-vary", text)
    else:
        text = "It was not tested at another hospital, or at a later time: do not expect these figures there."
        yield Sentence("no-other-hospital", text)
    if not isinstance(evaluation, Holdout) and evaluation.refit:
        text = f"The final model was trained once more, on all {noun}s: these are not its own figures."
        yield Sentence("kept-untested", text)
    found = (primary_difference(run, reference) for reference in shown_references(run) if reference != "linear")
    if any(one.low < one.high and not significant_sign(name, one) for name, one in filter(None, found)):
        text = "An interval that includes 0 does not show that a hospital's own model is as good."
        yield Sentence("not-equal", text)
    yield from _of_hospitals(run)
    text = "This does not show that a column causes the outcome, or that patients benefit from the model."
    yield Sentence("no-cause", text)


def _of_hospitals(run: RunResults) -> Iterator[Sentence]:
    ends = [(row["auc_low"], row["auc_high"]) for row in run.by_site.values() if {"auc_low", "auc_high"} <= row.keys()]
    if len(ends) > 1 and max(low for low, _ in ends) <= min(high for _, high in ends):
        text = f"The intervals of the AUC of {len(ends)} hospitals overlap: they do not show where it does better."
        yield Sentence("no-ranking", text)
    one = run.only_outcome
    if one is not None and (differ := run.miscalibrated(one["outcome"])):
        miscalibrated = [site for site in run.by_site if any(site in values for values in differ.values())]
        text = f"Do not read its risks as frequencies at {listed(miscalibrated)} before recalibrating it there."
        yield Sentence("recalibrate", text, tuple(miscalibrated))
