"""The report's part about the tests: a table of figures as a paper prints it, a table of sites, confusion, warnings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from common.studies import Holdout, KFold, LeaveOneSiteOut
from common.tasks import Classification
from remote.page import note, paragraph, section, table
from remote.reading import NAMES, guess_of, notes, number, verdict
from remote.results import BASELINE, LABEL_CELLS, RANKED, Results, Spread, class_names, known, rows_of

WRITTEN = 12  # classes up to which the confusion matrix is a table, too
CHANCE = 0.03  # of balanced accuracy: less above it is chance
LISTED = 30  # sites that a warning names at most
WARNINGS = {
    "weights-made-equal-after-a-comparison": "has been given the aggregator's weights after a comparison",
    "one-class": "has samples of one class alone: no AUC, and a balanced accuracy of that class only",
    "fewer-samples-than-folds": "has fewer samples than there are folds: some folds test none there",
    "missing-classes": "has no samples of some class",
    "sets-too-small-to-evaluate": "has validation or test sets that its policy finds too small: they are in no figure",
}


def quality(run: Results) -> str:
    """Return what the tests say; before the first, the last validation."""
    if run.test:
        return "\n".join([_test(run), _sites(run), *_confusion(run)])
    validation = run.metrics[run.metrics["split"] == "validation"]
    if validation.empty:
        return section("Test", paragraph("There are no results yet: no epoch is complete."))
    last = validation.iloc[-1]
    rows = rows_of(validation[(validation["epoch"] == last["epoch"]) & (validation["fold"] == last["fold"])])
    if not any(row.get("samples") for row in rows.values()):
        return section("Test", paragraph("There is no test yet, and no samples are for validation."))
    fold = f" of fold {last['fold'] + 1:.0f}" if run.spec.folds > 1 else ""
    said = f"There is no test yet. This is the validation after epoch {last['epoch'] + 1:.0f}{fold}."
    return section("Validation", paragraph(said), _by_site(run, rows))


def warned(run: Results) -> str:
    """Return what was odd about the sites' data, counted, and whether the model tells classes apart at all."""
    found = data_warnings(run)
    none = "No site has warned of its data, and no row of data was left out."
    return section("Warnings about data", *(paragraph(said, "bad") for said in found) if found else [paragraph(none)])


def data_warnings(run: Results) -> list[str]:
    """Return a sentence for everything that is odd about the sites' data, or about the result."""
    found = at_chance(run)
    for kind, sites in run.summary.warnings.items():
        meaning = WARNINGS.get(kind, f"warns: {kind.replace('-', ' ')}")
        meaning = meaning if len(sites) == 1 else meaning.replace("has ", "have ", 1).replace("warns", "warn", 1)
        found.append(f"{_count(len(sites), 'site')} {meaning} ({_listed(sites)}).")
    dropped = run.summary.rows_dropped
    if dropped:
        each = [f"{site} {count:,}" for site, count in dropped.items()]
        found.append(f"{_count(sum(dropped.values()), 'row')} of data left out: {_listed(each)}.")
    return found


def at_chance(run: Results) -> list[str]:
    """Return that the model tells classes apart no better than chance, where it does not."""
    task, reached = run.spec.task, run.test.get("balanced_accuracy")
    if not isinstance(task, Classification) or reached is None or reached > 1 / task.classes + CHANCE:
        return []
    said = f"The balanced accuracy is {number(reached)}, and {number(1 / task.classes)} is chance: the model tells the "
    return [
        said + "classes apart no better than a guess. Look at the label, the inputs, and whether they are standardised."
    ]


def _test(run: Results) -> str:
    found, test, names = run.summary.metrics, run.test, run.spec.task.metrics

    def column(cell: Callable[[str], str]) -> list[str]:
        return [cell(name) for name in names]

    def spread(values: Mapping[str, Spread], name: str) -> str:
        one = values.get(name, Spread())
        return number(one.mean, _digits(name, test)) + (f" ± {number(one.sd, _digits(name, test))}" if one.sd else "")

    def interval(name: str) -> str:
        one, digits = found.intervals.get(name), _digits(name, test)
        return f"{number(one.low, digits)} to {number(one.high, digits)}" if one else "–"

    def counted(name: str) -> str:
        one = found.sites.get(name, Spread())
        return f"{one.count} of {one.count + one.missing}" if one.count + one.missing else "–"

    baseline, within = known(found.baseline), known(found.within_sites)
    columns = {
        "all samples": column(lambda name: number(test.get(name), _digits(name, test))),
        "95 % interval": column(interval),
        "folds: mean ± SD": column(lambda name: spread(found.folds, name)),
        "sites: mean ± SD": column(lambda name: spread(found.sites, name)),
        "sites with it": column(counted),
        "within sites": column(lambda name: number(within.get(name), _digits(name, test))),
        "guess without site" if isinstance(run.spec.evaluation, LeaveOneSiteOut) else "site-only guess": column(
            lambda name: number(baseline.get(name), _digits(name, test))
        ),
    }
    if run.spec.tested_folds == 1 or isinstance(run.spec.evaluation, LeaveOneSiteOut):
        del columns["folds: mean ± SD"]
    shown = {head: cells for head, cells in columns.items() if set(cells) != {"–"}}
    rows = [[NAMES[name], *cells] for name, cells in zip(names, zip(*shown.values(), strict=True), strict=True)]
    parts = [table(["", *shown], rows, kind="main"), *map(paragraph, verdict(run)), *map(note, notes(run))]
    return section("Test", paragraph(_tested(run)), *parts)


def _tested(run: Results) -> str:
    evaluation, folds, tests = run.spec.evaluation, run.spec.tested_folds, run.tests
    samples = _count(int(run.test.get("samples", 0)), "sample")
    if isinstance(evaluation, KFold):
        said = f"Cross-validation in {folds} folds at every site: {samples}, each predicted once, by a model that has "
        said += "not seen it."
    elif isinstance(evaluation, LeaveOneSiteOut):
        said = f"Leave one site out: each of the {folds} folds is a site, whose samples a model of all other sites "
        said += f"predicts; {samples}."
    else:
        said = f"{samples} set aside from training."
    if len(tests) < folds:
        said += f" So far {len(tests)} of {folds} folds are tested."
    said += f" The model is that of {epochs(run)}."
    if not isinstance(evaluation, Holdout) and evaluation.refit:
        said += " The model that is kept has been trained once more, on all samples; these figures are not its own."
    return said


def epochs(run: Results) -> str:
    """Return which epochs' models were tested, and why those."""
    best = sorted(int(epoch) + 1 for epoch in run.tests["epoch"])
    if not best:
        best = [run.summary.best_epoch + 1]
    named = f"{best[0]}" if best[0] == best[-1] else f"{best[0]} to {best[-1]}"
    validation = run.metrics[run.metrics["split"] == "validation"]
    if not (validation["samples"] > 0).any():
        return f"the last epoch, {named}, for no samples are for validation"
    each = " in each fold" if run.spec.tested_folds > 1 else ""
    monitor = NAMES[run.spec.monitor]
    return f"the best epoch{each}, {named} of at most {run.spec.training.epochs}, by validation {monitor}"


def _sites(run: Results) -> str:
    guessed = any(name.startswith(BASELINE) for row in run.by_site.values() for name in row)
    said = "Figures of the tests of all folds, site by site."
    said += f" Beside the model's is that of {guess_of(run)}." if guessed else ""
    parts = [_by_site(run, run.by_site)]
    hidden = [NAMES[name] for name in RANKED if any(BASELINE + name in row for row in run.by_site.values())]
    if hidden:
        ranks = "That guess is the same for all samples of a site that a fold tests, and ranks none of them: its "
        parts.append(note(f"{ranks}{' and '.join(hidden)} within a site would tell of folds alone, and has no column."))
    return section("Sites", paragraph(said), *parts)


def _by_site(run: Results, rows: Mapping[str, Mapping[str, float]]) -> str:
    names = [name for name in run.spec.task.metrics if any(name in row for row in rows.values())]
    absent = any(row.get("absent") for row in rows.values())
    groups: list[tuple[str, int]] = [("", 2 + absent)]
    head = ["site", "samples", *(["classes without AUC"] if absent else [])]
    columns: list[tuple[str, int]] = []
    for name in names:
        both = name not in RANKED and any(BASELINE + name in row for row in rows.values())
        digits = _digits(name, {name: median(row[name] for row in rows.values() if name in row)})
        columns += [(key, digits) for key in ([name, BASELINE + name] if both else [name])]
        groups.append((NAMES[name], 1 + both))
        head += ["model", "guess"] if both else ["model"]
    cells = [
        ["all sites together" if site == "pooled" else site, number(row.get("samples"), 0)]
        + ([number(row.get("absent"), 0)] if absent else [])
        + [number(row.get(name), digits) for name, digits in columns]
        for site, row in rows.items()
    ]
    return table(head, cells, groups, "wide")


def _confusion(run: Results) -> list[str]:
    counts, names = run.confusion, class_names(run.spec)
    if not counts:
        return []
    title = "Confusion of classes" if isinstance(run.spec.task, Classification) else "Hits and misses by label"
    if isinstance(run.spec.task, Classification) and len(names) > WRITTEN:
        return [section(title, paragraph(f"The counts of the {len(names)} classes are in summary.json."))]
    if isinstance(run.spec.task, Classification):
        head, about = ["true class", *names, "recall"], "Samples by true class (rows) and predicted class (columns)."
        rows = [
            [name, *(f"{count:,}" for count in row), number(_part(row[place], sum(row)))]
            for place, (name, row) in enumerate(zip(names, counts, strict=True))
        ]
        return [section(title, paragraph(about), table(head, rows))]
    head = ["label", *LABEL_CELLS, "sensitivity", "specificity"]
    rows = []
    for name, (negative, false_positive, false_negative, positive) in zip(names, counts, strict=True):
        cells = [f"{count:,}" for count in (negative, false_positive, false_negative, positive)]
        shares = _part(positive, positive + false_negative), _part(negative, negative + false_positive)
        rows.append([name, *cells, *map(number, shares)])
    return [section(title, table(head, rows))]


def _digits(name: str, values: Mapping[str, float]) -> int:
    """Return decimals: three, or for a small number without bounds as many as show three digits of it."""
    value = abs(values.get(name, 0.0))
    return 2 - math.floor(math.log10(value)) if name in ("loss", "mae") and 1e-30 < value < 0.1 else 3


def _part(count: int, whole: int) -> float | None:
    return count / whole if whole else None


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
