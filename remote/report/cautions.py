"""What a verdict does not allow to conclude, each sentence where a reader might."""

from __future__ import annotations

from collections.abc import Iterator

from rankdad.common.spec.evaluation import Holdout, LeaveOneSiteOut
from rankdad.remote.report.narrative import noun_of
from rankdad.remote.report.words import Sentence, count, listed
from rankdad.remote.results.comparison import deciding, judged, told
from rankdad.remote.results.run_results import RunResults


def cautions(run: RunResults) -> Iterator[Sentence]:
    """Yield what must not be concluded from a run's test."""
    evaluation, noun = run.spec.evaluation, noun_of(run)
    if isinstance(evaluation, LeaveOneSiteOut):
        text = f"These {count(len(run.tested_at), 'hospital')} are few: another one may lie outside their range."
        yield Sentence("hospitals-vary", text)
    else:
        text = "It was not tested at another hospital, or at a later time: do not expect these figures there."
        yield Sentence("no-other-hospital", text)
    if not isinstance(evaluation, Holdout) and evaluation.refit:
        text = f"The model that is kept was trained once more, on all {noun}s: these are not its own figures."
        yield Sentence("kept-untested", text)
    found = (deciding(run, reference) for reference in told(run) if reference != "linear")
    if any(one.low < one.high and not judged(name, one) for name, one in filter(None, found)):
        text = "An interval that includes 0 does not show that a hospital's own model is as good."
        yield Sentence("not-equal", text)
    yield from _of_hospitals(run)
    text = "No column is shown to cause the outcome, and no patient to fare better with the model."
    yield Sentence("no-cause", text)


def _of_hospitals(run: RunResults) -> Iterator[Sentence]:
    ends = [(row["auc_low"], row["auc_high"]) for row in run.by_site.values() if {"auc_low", "auc_high"} <= row.keys()]
    if len(ends) > 1 and max(low for low, _ in ends) <= min(high for _, high in ends):
        text = f"The intervals of the AUC of {len(ends)} hospitals overlap: they do not tell where it does better."
        yield Sentence("no-ranking", text)
    one = run.only_outcome
    if one is not None and (differ := run.miscalibrated(one["outcome"])):
        wrong = [site for site in run.by_site if any(site in values for values in differ.values())]
        text = f"Do not take its risks for frequencies at {listed(wrong)} before it is recalibrated there."
        yield Sentence("recalibrate", text, tuple(wrong))
