"""Sentences about one run and how its figures were measured."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rankdad.common.errors import listed as first_of
from rankdad.common.metrics.risk import THRESHOLDS
from rankdad.common.metrics.summary import bound
from rankdad.common.preparation import linear
from rankdad.common.spec import Holdout, KFold, LeaveOneSiteOut
from rankdad.common.spec.tasks import Classification, LanguageModel, Regression
from rankdad.remote.report.words import NAMES, count, duration, listed, number, warned
from rankdad.remote.results.run_results import RunResults, finite
from rankdad.remote.results.solving import solved
from rankdad.remote.view import compared

STATUS = {
    "completed": "The run is complete.",
    "failed": "The run failed.",
    "interrupted": "The run was interrupted.",
    "refused": "The run was refused before anything was trained.",
    "running": "The run has not ended: it was still running when this page was made, or it was cut off.",
}
UNSEEN = (
    "Training sees no label of the tested hospital, so the guess here comes from the labels of all other hospitals. It "
    "is constant within a hospital and deviates away from it, so its AUC or correlation is below chance. The model's "
    "gain over all rows may still come from columns that reflect differences between hospitals."
)
NEGLIGIBLE = 0.02  # difference of an AUC, R² or r
APPENDIX = "See the appendix, Training."
CHANCE_AUC, CHANCE_MARGIN = 0.5, 0.03  # the margin: of a balanced accuracy above chance that counts as chance
MAX_SITES_NAMED = 30  # in a warning


def noun_of(run: RunResults) -> str:
    """Return the singular noun for a tested unit: the group's if each has one row, else row."""
    one_each = run.test.get("groups", -1) == run.test.get("samples")
    return run.spec.group_noun if one_each and run.spec.group_noun != "group" else "row"


def rows_tested(run: RunResults) -> str:
    """Describe the number of tested rows and groups: 1,024 patients, 3,680 rows."""
    noun, groups = noun_of(run), run.test.get("groups")
    rows = count(int(run.test.get("samples", 0)), noun)
    return rows if groups is None or noun != "row" else f"{count(int(groups), run.spec.group_noun)}, {rows}"


def status(run: RunResults) -> str:
    """Describe how the run ended, and why."""
    summary = run.summary
    sentence = STATUS.get(summary.status, f"The run's status is {summary.status}.")
    return f"{sentence} Reason: {summary.reason}" if summary.reason else sentence


def extent(run: RunResults) -> str:
    """Describe the extent of training: sites, folds or epochs, steps, time."""
    spec, summary = run.spec, run.summary
    trained = solved(summary.solver) if summary.exact else count(summary.epochs, "epoch")
    if run.summary.exact and spec.models > 1:
        trained = f"{count(spec.folds_per_repeat * run.repeats, 'fold')}, each {solved(summary.solver)}"
    elif spec.models > 1:
        often = f", {run.repeats} times," if run.repeats > 1 else ""
        trained = f"{count(spec.folds_per_repeat, 'fold')}{often} of at most {count(spec.training.epochs, 'epoch')}"
    trained += ", then all samples once more" if spec.models > spec.tested_folds else ""
    trained += f", each after {count(len(spec.candidates), 'candidate')}" if spec.candidates else ""
    sites, steps = (
        count(len(spec.federation.sites), "site"),
        "" if summary.exact else f", {count(summary.steps, 'step')}",
    )
    return f"{sites}, {trained}{steps}, {duration(summary.seconds)}"


def summed(run: RunResults) -> str:
    """Describe the traffic of an exact solution."""
    inputs, coefficients = math.prod(run.spec.data.shape), run.spec.kept_fold is not None
    rounds = len(linear.stages(run.spec.task, inputs, coefficients=coefficients))
    return f"no steps; sums in at most {count(rounds, 'round')}"


def solver(run: RunResults) -> str:
    """Describe the solver and the reason for it."""
    known = run.summary.solver
    return f"{known['name']}, because {known['why']}" if known else "–"


def weights(run: RunResults) -> str:
    """Describe whether all sites and the aggregator ended with equal weights."""
    digests, aggregator = run.summary.weights_sha256, run.summary.aggregator_sha256
    if not digests:
        return "–"
    if len(set(digests.values())) > 1:
        each = ", ".join(f"{site} {digest[:16]}…" for site, digest in digests.items())
        return f"DIFFERENT between sites, sha256: {each}"
    digest = next(iter(digests.values()))
    unknown = [site for site in run.spec.federation.sites if site not in digests]
    equal = "equal at all sites" + (f" but {', '.join(unknown)}, whose digest is unknown" if unknown else "")
    if aggregator:
        same = aggregator == digest
        equal += " and at the aggregator" if same else f", DIFFERENT at the aggregator ({aggregator[:16]}…)"
    return f"{equal}, sha256 {digest}"


def functions(run: RunResults) -> dict[str, str]:
    """Return the packages that provide users' functions, by function."""
    found = dict[str, str]()
    for one in run.summary.functions:
        package = " ".join(filter(None, (one["distribution"], one["version"]))) or "no installed package"
        before = f"{found[one['name']]}; " if one["name"] in found else ""
        found[one["name"]] = f"{before}{package} ({', '.join(one['sites'])})"
    return found


def tested(run: RunResults) -> str:
    """Describe the tested samples and the models that predicted them."""
    evaluation, folds, tests = run.spec.evaluation, run.spec.folds_per_repeat * run.repeats, run.tests
    samples = rows_tested(run)
    if isinstance(evaluation, KFold):
        often = f" {run.repeats} times" if run.repeats > 1 else ""
        how = f"Cross-validation{often} in {evaluation.folds} folds at every hospital: {samples}, each unseen by "
        how += "the model that predicts it."
        if often:
            how += " Figures and interval limits are means over the repeats, which add no samples."
        how += _partitions(run)
    elif isinstance(evaluation, LeaveOneSiteOut):
        how = (
            f"Leave one hospital out: each of the {folds} folds is one, predicted by a model of the others; {samples}."
        )
    else:
        how = f"{samples} set aside from training."
    if len(tests) < folds:
        how += f" So far {len(tests)} of {folds} folds are tested."
    if not isinstance(evaluation, Holdout) and evaluation.refit:
        how += " The final model was trained once more, on all rows; these figures are not its own."
    return how


def _partitions(run: RunResults) -> str:
    """Describe the number of different partitions at each site, if smaller than the number of repeats."""
    known = run.summary.partitions
    few = [f"{site} {different}" for site, different in known.get("sites", {}).items() if different < known["repeats"]]
    if not few:
        return ""
    text = f" The {known['repeats']} repeats give fewer different partitions at some sites: {listed(few)}."
    again = run.summary.repeats_left_out
    return f"{text} {again} that equal an earlier one at every site are skipped." if again else text


def tested_epochs(run: RunResults) -> str:
    """Describe which epochs' models were tested, and why."""
    if run.summary.exact:
        return "the exact solution, which needs no epochs and no validation rows"
    best = sorted(int(epoch) for epoch in run.tests["epoch"]) or [run.summary.best_epoch]
    named = f"{best[0]}" if best[0] == best[-1] else f"{best[0]} to {best[-1]}"
    if run.spec.candidates:
        return f"the last epoch, {named}: as many as were best for the settings that validation chose"
    validated = run.metrics[run.metrics["split"] == "validation"]
    if not (validated["samples"] > 0).any():
        return f"the last epoch, {named}, because no samples were set aside for validation"
    each, monitor = " in each fold" if run.spec.tested_folds > 1 else "", NAMES[run.spec.training.monitor]
    if not validated[run.spec.training.monitor].notna().any():
        return f"the last epoch, {named}, because the validation samples gave no {monitor}"
    text = f"the best epoch{each}, {named} of at most {run.spec.training.epochs}, by validation {monitor}"
    tested = validated[(validated["site"] == "pooled") & (validated["fold"] < run.spec.tested_folds)]
    known = tested.groupby("fold")[run.spec.training.monitor].count() > 0
    if not known.all():
        text += f" (the last one in {count(int((~known).sum()), 'fold')}, whose validation samples gave none)"
    return text


def baseline_name(run: RunResults) -> str:
    """Return the baseline's name in sentences."""
    unseen = isinstance(run.spec.evaluation, LeaveOneSiteOut)
    return "a guess from the other hospitals' labels" if unseen else "a guess that knows only the hospital"


def sent(run: RunResults) -> str:
    """Describe the statistics of test samples that sites sent."""
    if isinstance(run.spec.task, LanguageModel):
        what = "the summed loss of their test texts, and the texts' numbers of tokens and bytes"
        return f"Sites sent {what}. A site sends none for fewer samples than its policy's min_rows."
    if isinstance(run.spec.task, Regression):
        what = "sums of labels, predictions and errors, and a histogram of mean and error"
        known = "labels and predictions"
    else:
        what = "histograms of scores in 1,000 bins, with and without each outcome, and other counts"
        known = "scores and labels"
    return (
        f"Sites sent counts and sums of their test samples, not inputs or names: {what}. For a small test set these "
        f"reveal the samples' {known}, though not whose they are. A site sends none for fewer samples than its "
        "policy's min_rows."
    )


def explained(run: RunResults) -> list[str]:
    """Describe how much of the pooled metrics the site alone explains, and what remains within sites."""
    if not run.summary.metrics.baseline or isinstance(run.spec.task, LanguageModel):
        return []
    return [" ".join(_regression(run) if isinstance(run.spec.task, Regression) else _classification(run))]


def _regression(run: RunResults) -> Iterator[str]:
    test, guess, within = run.test, finite(run.summary.metrics.baseline), finite(run.summary.metrics.within_sites)
    if isinstance(run.spec.evaluation, LeaveOneSiteOut):
        yield UNSEEN
    elif {"pearson_r", "r2"} <= guess.keys() & test.keys():
        reached = f"r = {number(guess['pearson_r'])} and R² = {number(guess['r2'])}"
        yield f"A guess that knows only the hospital, the mean of the labels it trains on, reaches {reached}:"
        pooled = f"r = {number(test['pearson_r'])} and R² = {number(test['r2'])}"
        if guess["r2"] > NEGLIGIBLE:
            yield f"so much of the {pooled} over all rows comes from distinguishing hospitals."
        else:
            yield "knowing the hospital explains almost nothing here."
    if {"pearson_r", "r2"} <= within.keys():
        left = f"r = {number(within['pearson_r'])} and R² = {number(within['r2'])}"
        yield f"Within hospitals, with each one's mean taken out of labels and predictions, the model reaches {left}."
    if "r2" in guess and "r2" in test and guess["r2"] < 1:
        gain = (test["r2"] - guess["r2"]) / (1 - guess["r2"])
        smaller = f"{gain * 100:.0f} % smaller than" if gain > 0 else "no smaller than"
        yield f"Its squared error over all rows is {smaller} that of the guess."


def _classification(run: RunResults) -> Iterator[str]:
    test, guess, within = run.test, finite(run.summary.metrics.baseline), finite(run.summary.metrics.within_sites)
    if isinstance(run.spec.evaluation, LeaveOneSiteOut):
        yield UNSEEN
    else:
        guess |= finite(run.summary.metrics.site_alone)
        names = [name for name in ("auc", "accuracy") if name in guess]
        reached = " and ".join(f"an {NAMES[name]} of {number(guess[name])}" for name in names)
        yield f"A guess that knows only the hospital, the frequencies of the labels it trains on, reaches {reached}."
    if "auc" in within and "auc" in test:
        yield f"Over pairs of rows of one hospital the model's AUC is {number(within['auc'])}:"
        if test["auc"] - within["auc"] > NEGLIGIBLE:
            yield "differences between hospitals make the pooled AUC look better than the model is within them."
        else:
            yield "differences between hospitals contribute almost nothing to the pooled AUC."


def repeated(run: RunResults) -> str:
    """Note that counts of predictions include each sample once a repeat; "" without repeats."""
    return f"Each row of data counts once a repeat: {run.repeats} times." if run.repeats > 1 else ""


def left_out(run: RunResults) -> str:
    """Describe the sites that missed steps, and their contributions that joined a later step."""
    steps, late = count(run.summary.steps, "step"), run.summary.late
    joined = {site: f", {late[site]} joined a later one" for site in late}
    missing = run.summary.left_out.items()
    return ", ".join(f"{site} ({missed} of {steps}{joined.get(site, '')})" for site, missed in missing) or "none"


def resets(run: RunResults) -> str:
    """Describe the sites that lost their state."""
    return ", ".join(f"{loss.site} (in round {loss.round})" for loss in run.summary.resets) or "none"


def drift(run: RunResults) -> str:
    """Describe the largest distance between sites' weights."""
    found, most = run.summary.drift, run.spec.federation.drift
    return "–" if found is None else f"{found:.1g} of the weights' size (at most {most:g} is tolerated)"


def ratio(run: RunResults) -> str:
    """Return how many times fewer bytes travelled than with full gradients, or that there were more."""
    fewer = compared(run.summary)
    if run.summary.times_fewer_bytes_than_dense is None or not fewer:
        return "–"
    return f"{fewer} bytes, both ways together"


def notes(run: RunResults) -> Iterator[str]:
    """Yield notes on how the table of metrics was measured."""
    metrics = run.summary.metrics
    if metrics.intervals:
        over = f"over {run.spec.group_noun}s"
        each = ", ".join(
            f"{NAMES.get(name, name)}: {one.method.replace('over groups', over)}"
            for name, one in metrics.intervals.items()
        )
        kind = f"{run.spec.group_noun}s, not rows," if "groups" in run.test else "predictions"
        yield (
            f"95 % intervals ({each}) are for the predictions of all samples, each by a model that has not seen it. "
            f"They treat {kind} as independent, and do not extend to other sites."
        )
    if isinstance(run.spec.evaluation, LeaveOneSiteOut):
        yield "Every fold is a site, so metrics over folds are metrics over sites."
    elif run.spec.tested_folds > 1 and metrics.folds:
        yield (
            "± SD over folds is the standard deviation between folds. Folds share training samples, so it is not the "
            "standard error of the mean."
        )
    if metrics.sites:
        lacking = [f"{NAMES.get(name, name)} ({one.missing})" for name, one in metrics.sites.items() if one.missing]
        lack = f" Sites without a figure are excluded from its mean: {listed(lacking)}." if lacking else ""
        yield f"The mean over sites weighs every site equally; ± SD is between sites.{lack}"
    if absent := int(run.test.get("absent", 0)):
        kind = "classes have" if isinstance(run.spec.task, Classification) else "labels have"
        yield f"{absent} {kind} too few samples for an AUC, and are excluded from its mean."
    if "auc_error" in run.test:
        off, often = bound(run.test["auc_error"]), ", in 19 of 20 tests" * metrics.smooth_scores
        gone = "" if "auc" in run.test else ", and is left out"
        yield f"AUCs come from histograms of scores: the one of all samples is off by at most {off}{often}{gone}."
    if metrics.smooth_scores:
        kind = "errors" if isinstance(run.spec.task, Regression) else "scores"
        moved = "quantiles of errors are near those of the exact errors."
        if kind == "scores":
            moved = (
                "figures at thresholds other than 50 %, and calibration slopes and curves come from these. They are "
                "close to the exact ones if scores are spread evenly, and less so if scores cluster."
            )
        few = f" There is no calibration error, no average precision, and below {THRESHOLDS:,} samples no threshold."
        yield (
            f"Hospitals send smoothed curves of test {kind}, so that no single one leaves: {moved}"
            f"{few * (kind == 'scores')}"
        )


def of_smooth_thresholds(run: RunResults, outcome: str) -> str:
    """Describe the error of counts at thresholds, as far as it is known; "" for exact scores."""
    if not run.summary.metrics.smooth_scores:
        return ""
    text = " Counts come from smoothed curves of scores, so 100 % does not show that nobody was missed."
    off = run.outcomes[outcome].get("thresholds_off")
    if off is None:
        return text
    return (
        f"{text} Only those at 50 % are exact: there the curves are off by {100 * off['sensitivity']:.1f} percentage "
        f"points of sensitivity and {100 * off['specificity']:.1f} of specificity. Elsewhere it may be more."
    )


def training_warnings(run: RunResults) -> Iterator[str]:
    """Yield problems of the training, with a remedy in terms of the specification."""
    for about in (run.summary.undertrained, run.summary.solver):
        if warning := about.get("warning"):
            yield f"{warning[0].upper()}{warning[1:]}."


def training_problems(run: RunResults) -> Iterator[str]:
    """Yield problems of the training without technical terms; the appendix has details."""
    if "warning" in run.summary.undertrained:
        unknown = "unmeasured" in run.summary.undertrained
        what = "the best moment to stop is unknown" if unknown else "it was best at the end of training"
        yield f"Further training may improve the model: {what}. {APPENDIX}"
    if "warning" in run.summary.solver:
        yield f"The exact solution of a model did not converge. {APPENDIX}"


def warnings(run: RunResults) -> Iterator[str]:
    """Yield a sentence for each problem of the training, the result or the sites' data."""
    yield from training_warnings(run)
    yield from data_warnings(run)


def data_warnings(run: RunResults) -> Iterator[str]:
    """Yield a sentence for each problem of the result or the hospitals' data."""
    task, reached, intervals = run.spec.task, run.test.get("balanced_accuracy"), run.summary.metrics.intervals
    look = "Check that the outcome is coded as intended, the inputs vary with it, and preparation.standardise is set."
    ranks = "auc" in intervals and intervals["auc"].low > CHANCE_AUC
    if isinstance(task, Classification) and reached is not None and reached <= 1 / task.classes + CHANCE_MARGIN:
        chance = f"The balanced accuracy is {number(reached)}, and {number(1 / task.classes)} is chance"
        if ranks:
            yield (
                f"{chance}: predicting the most probable class is no better than a guess, though the risks rank rows "
                "better than chance" + ": a threshold other than 0.5 would separate them better." * (task.classes == 2)
            )
        else:
            yield f"{chance}: the model separates the classes no better than a guess. {look}"
    if isinstance(task, Regression) and "r2" in intervals and intervals["r2"].low <= 0:
        yield f"The interval of R\N{SUPERSCRIPT TWO} includes 0: the model may predict no better than the mean. {look}"
    table1 = run.summary.table1
    for kind, sites in run.summary.warnings.items():
        if kind in table1.get("worries", ()):
            continue
        yield f"{warned(kind, sites, MAX_SITES_NAMED)}."
    yield from (sentence if sentence.endswith("?") else f"{sentence}." for sentence in table1.get("warnings", ()))
    if dropped := run.summary.rows_dropped:
        each = [f"{site} {rows:,}" for site, rows in dropped.items()]
        yield f"{count(sum(dropped.values()), 'row')} of data left out: {first_of(each, MAX_SITES_NAMED)}."
