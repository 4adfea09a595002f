"""Every sentence of the verdict beside the condition that it stands for."""

from __future__ import annotations

from typing import Any, get_args

import pandas as pd
import pytest

from rankdad.common.documents import validate
from rankdad.remote.report.result_lines import _effects
from rankdad.remote.report.verdict import asides, topics
from rankdad.remote.report.words import Code, Sentence
from rankdad.remote.results.run_results import METRICS, STEPS, PlanSummary, RunResults
from rankdad.remote.results.run_summary import RunSummary
from tests.conftest import run_spec
from tests.texts import DATA, MODEL

Changes = dict[str, Any]
BALANCED = {"name": "classification", "classes": 2, "class_weights": "balanced"}
THREE, NUMBER = {"name": "classification", "classes": 3}, {"name": "regression"}
TEXTS, BITS = {"name": "language-model"}, {"bits_per_byte": 2.0, "perplexity": 4.0}


def run(**changes: Any) -> RunResults:
    """Of two hospitals, about which nothing is known but what is changed."""
    task = changes.pop("task", {"name": "classification", "classes": 2})
    evaluation = {"name": "k-fold", "refit": changes.pop("refit", False), "references": changes.pop("asked", [])}
    evaluation = changes.pop("evaluation", evaluation)
    of_texts = {"data": DATA, "model": MODEL} if task == TEXTS else {}
    spec = run_spec(task=task, evaluation=evaluation, federation={"sites": ["north", "south"]}, **of_texts)
    sites = pd.DataFrame(changes.pop("sites", [hospital(), hospital("south")]))
    rest: Changes = {name: changes.pop(name) for name in ("table1", "coefficients", "solver") if name in changes}
    metrics: Changes = {"test": {"samples": 180}, **changes}
    summary = validate(RunSummary, {"metrics": metrics, **rest})
    empty, steps = pd.DataFrame(columns=list(METRICS)), pd.DataFrame(columns=list(STEPS))
    return RunResults(spec, PlanSummary(), summary, empty, sites, steps)


def hospital(site: str = "north", **figures: Any) -> Changes:
    return {"site": site, "samples": 90, **figures}


def hospitals(**figures: Any) -> Changes:
    """The first has these figures; the second is never one that stands out."""
    usual = {"loss": 0.1, "baseline_loss": 0.9, "auc": 0.9, "local_auc": 0.8, "local_samples": 90, "auc_low": 0.8}
    return {"sites": [hospital(**figures), hospital("south", **{name: usual.get(name, 0.9) for name in figures})]}


def ends(value: float, low: float, high: float, **more: Any) -> Changes:
    return {"value": value, "low": low, "high": high, **more}


def risk(slope: Changes | None = None, large: Changes | None = None, **more: Any) -> Changes:
    known = {"slope": slope or ends(1, 0.9, 1.1), "in_the_large": large or ends(0, -0.1, 0.1)}
    return {"outcome": 1, "events": 60, "samples": 180, "brier_skill": None, "recalibration": known} | more


def risks(**changes: Any) -> Changes:
    return {"risks": [risk(**changes)]}


def unsloped(large: Changes) -> Changes:
    """Risks of which too few were tested for a slope, or which separate the outcomes."""
    return risks(recalibration={"in_the_large": large})


def skill(value: float) -> Changes:
    return risks(brier_skill=value, brier=0.2, brier_of_prevalence=0.21)


COUNTS = {"samples": 90, "events": 12, "expected": 10.0}


def apart(
    p: float = 0.02,
    *,
    of_large: float | None = None,
    whole: Changes | None = None,
    large: Changes | None = None,
    slope: Changes | None = None,
) -> Changes:
    """Risks of which hospitals differ; those of the second are too low on the whole."""
    known = [("north", large or ends(0.5, 0.1, 0.9)), ("south", ends(0.5, 0.1, 0.9))]
    sites = [
        {
            "site": site,
            **COUNTS,
            "observed_expected": ends(1.2, 1.1, 1.3),
            "recalibration": {"in_the_large": own, "slope": (slope if site == "north" else None) or ends(1, 0.9, 1.1)},
        }
        for site, own in known
    ]
    differ = {"outcome": 1, "differ": {"in_the_large": of_large or p, "slope": p}, "sites": sites}
    return risks(large=whole) | {"calibration_by_site": [differ]}


def hospitals_calibrated(count: int) -> Changes:
    sites = [
        {"site": f"h{place}", **COUNTS, "observed_expected": ends(1, 0.9, 1.1), "recalibration": {}}
        for place in range(count)
    ]
    differ = {"outcome": 1, "differ": {"in_the_large": 0.5, "slope": 0.5}, "sites": sites}
    return risks() | {"calibration_by_site": [differ]}


def of_one_kind(events: int, low: float, high: float) -> Changes:
    site = {"site": "north", "events": events, "samples": 90, "expected": 40.0, "recalibration": {}}
    site |= {"observed_expected": ends((low + high) / 2, low, high)}
    return risks() | {"calibration_by_site": [{"outcome": 1, "differ": {}, "sites": [site]}]}


def guessed(low: float, high: float, *, both: bool = False) -> Changes:
    """Errors less those of a guess: of the first hospital between these ends, of the second smaller, or as well."""
    names, middle = ("", "_low", "_high"), (low + high) / 2
    known: Changes = {
        f"baseline_loss_difference{end}": value for end, value in zip(names, (middle, low, high), strict=True)
    }
    other: Changes = known if both else dict(zip(known, (-0.5, -0.9, -0.1), strict=True))
    figures: Changes = {"loss": 0.5, "baseline_loss": 0.5}
    first, second = hospital(**figures, **known), hospital("south", **figures, **other)
    if low < high < 0:
        return {"sites": [first]}
    return {"sites": [first, second] if both or high >= 0 else [first]}


def ranked(low: float, high: float) -> Changes:
    """AUCs of two hospitals: the interval of the first ends at 0.8."""
    first = hospital(auc_low=0.6, auc_high=0.8)
    return {"sites": [first, hospital("south", auc_low=low, auc_high=high)]}


def alone(
    everywhere: Changes | None, within: Changes | None = None, *, samples: int = 180, reference: str = "local"
) -> Changes:
    """A model of each hospital alone, or of another kind, and how far the model is from it."""
    values = {"auc": everywhere, "auc_within": within}
    found = {name: {"method": "paired DeLong", **one} for name, one in values.items() if one}
    return {
        "test": {"samples": 180, "auc": 0.8},
        "references": {reference: {"samples": samples, "values": {"auc": 0.79}}},
        "differences": {reference: found},
    }


def both_alone(solver: str) -> Changes:
    known = alone(None)
    return known | {
        "solver": {"name": solver},
        "references": dict.fromkeys(("local", "site"), known["references"]["local"]),
    }


def own_model(local: float, low: float = -0.2, high: float = 0.1) -> Changes:
    rows = hospitals(auc=0.8, local_auc=local, local_samples=90)
    figures = {"": 0.8 - local, "_low": low, "_high": high}
    rows["sites"][0] |= {f"local_auc_difference{end}": value for end, value in figures.items()}
    return alone(ends(0.01, -0.1, 0.1)) | rows


def effects(p: float, estimate: float = -1.0) -> Changes:
    """Of one column and the intercept at each of two hospitals: two p-values are looked at."""
    sites = {"north": 1.0, "south": estimate}
    rows = {
        site: [{"line": "ill", "name": name, "estimate": own, "p": p} for name in ("intercept", "age")]
        for site, own in sites.items()
    }
    return {"coefficients": {"sites": {site: {"problem": "", "coefficients": own} for site, own in rows.items()}}}


def compared(problem: str = "", se: float | None = 1.0) -> Changes:
    """Of one column, with coefficients of each hospital's own rows, the second's with this problem or error."""
    fits = {
        site: {
            "problem": told,
            "coefficients": [{"line": "ill", "name": "age", "estimate": 1.0, "se": error, "p": 0.5}],
        }
        for site, told, error in [("north", "", 1.0), ("south", problem, se)]
    }
    return {"coefficients": {"pooled": fits["north"], "sites": fits}}


WORSE, UNSURE, BETTER = ends(-0.1, -0.2, -0.01), ends(0.0, -0.1, 0.1), ends(0.1, 0.01, 0.2)
IN_FOLDS = {"method": "paired DeLong, within folds"}
# A name, a summary of which the sentence is true, and one beside it of which it is not.
ROWS: list[tuple[Code, Changes, Changes]] = [
    ("predicts", {}, {"test": {"samples": 0}}),
    ("studied", {}, {"test": {"samples": 0}}),
    ("events", risks(), {"task": THREE, "risks": [risk(), risk(outcome=2)]}),
    (
        "label",
        {"task": NUMBER, "table1": {"pooled": {"label": {"mean": 40.0, "sd": 9.0}}}},
        {"task": NUMBER, "table1": {"pooled": {"label": {"mean": 40.0, "sd": None}}}},
    ),
    (
        "bits-per-byte",
        {"task": TEXTS, "test": {"samples": 9} | BITS, "baseline": BITS},
        {"task": TEXTS, "test": {"samples": 9} | BITS},
    ),
    ("mae", {"task": NUMBER, "test": {"samples": 9, "mae": 2.0}}, {"task": NUMBER, "test": {"samples": 9, "r2": 0.1}}),
    ("auc", {"test": {"samples": 180, "auc": 0.8}}, {"test": {"samples": 180, "accuracy": 0.8}}),
    (
        "auc-within",
        {"within_sites": {"auc": 0.7}, "site_alone": {"auc": 0.6}},
        {"within_sites": {"auc": 0.7}, "site_alone": {"auc": 0.6}, "sites": [hospital()]},
    ),
    ("hardly-found", {"confusion": [[90, 10], [91, 9]]}, {"confusion": [[90, 10], [90, 10]]}),
    ("class-untested", {"confusion": [[90, 10], [0, 0]]}, {"confusion": [[90, 10], [0, 1]]}),
    (
        "accuracy",
        {"task": THREE, "test": {"samples": 180, "accuracy": 0.8}, "baseline": {"accuracy": 0.4}},
        {"task": THREE, "test": {"samples": 180, "accuracy": 0.8}, "baseline": {"accuracy": None}},
    ),
    ("brier", skill(0.01), skill(0.0)),
    ("brier-no-smaller", skill(0.0), skill(0.01)),
    ("upside-down", risks(slope=ends(-1, -2, -0.01)), risks(slope=ends(-1, -2, 0.0))),
    ("too-far-apart", risks(slope=ends(0.8, 0.7, 0.99)), risks(slope=ends(0.8, 0.7, 1.0))),
    ("too-far-apart", risks(slope=ends(0.89, 0.8, 0.99)), risks(slope=ends(0.91, 0.8, 0.99))),
    ("too-close", risks(slope=ends(1.2, 1.01, 1.3)), risks(slope=ends(1.2, 1.0, 1.3))),
    ("spread-right", risks(slope=ends(1.0, 0.5, 1.5)), risks(slope=ends(1.0, 0.49, 1.5))),
    ("spread-unknown", risks(slope=ends(1.0, 0.49, 1.5)), risks(slope=ends(1.0, 0.5, 1.5))),
    ("too-high", risks(large=ends(-1, -2, -0.01)), risks(large=ends(-1, -2, 0.0))),
    ("too-high", unsloped(ends(-1, -2, -0.01)), unsloped(ends(-1, -2, 0.0))),
    ("too-low", unsloped(ends(1, 0.01, 2)), unsloped(ends(1, 0.0, 2))),
    ("hospitals-none", of_one_kind(0, 0.0, 0.9), of_one_kind(0, 0.0, 1.0)),
    ("hospitals-none", of_one_kind(0, 0.0, 0.9), of_one_kind(1, 0.0, 0.9)),
    (
        "hospitals-none",
        of_one_kind(0, 0.0, 0.9) | {"task": THREE, "risks": [risk(), risk(outcome=2)]},
        of_one_kind(0, 0.0, 1.0) | {"task": THREE, "risks": [risk(), risk(outcome=2)]},
    ),
    ("hospitals-all", of_one_kind(90, 1.1, 3.0), of_one_kind(90, 1.0, 3.0)),
    ("too-low", risks(large=ends(1, 0.01, 2)), risks(large=ends(1, 0.0, 2))),
    ("hospitals-differ", apart(0.0249), apart(0.025)),
    ("too-high", apart(of_large=0.5, whole=ends(-1, -2, -0.01)), apart(whole=ends(-1, -2, -0.01))),
    ("hospitals-off", apart(), apart(of_large=0.5)),
    ("hospitals-off", apart(), apart(large=ends(-0.5, -0.9, -0.1))),
    ("hospitals-cancel", apart(large=ends(-0.5, -0.9, -0.1)), apart(large=ends(-0.5, -0.9, 0.0))),
    (
        "hospitals-cancel",
        apart(large=ends(-0.5, -0.9, -0.1), whole=ends(0.1, 0.0, 0.2)),
        apart(large=ends(-0.5, -0.9, -0.1), whole=ends(0.1, 0.01, 0.2)),
    ),
    (
        "hospitals-cancel",
        apart(large=ends(-0.5, -0.9, -0.1), whole=ends(-0.1, -0.2, 0.0)),
        apart(large=ends(-0.5, -0.9, -0.1), whole=ends(-0.1, -0.2, -0.01)),
    ),
    ("hospitals-upside-down", apart(slope=ends(-1, -2, -0.01)), apart(slope=ends(-1, -2, 0.0))),
    ("hospitals-too-far-apart", apart(slope=ends(0.5, 0.1, 0.99)), apart(slope=ends(0.5, 0.1, 1.0))),
    ("hospitals-too-close", apart(slope=ends(2, 1.01, 3)), apart(slope=ends(2, 1.0, 3))),
    ("r2", {"task": NUMBER, "test": {"samples": 9, "r2": 0.01}}, {"task": NUMBER, "test": {"samples": 9, "r2": 0.0}}),
    (
        "r2-no-smaller",
        {"task": NUMBER, "test": {"samples": 9, "r2": 0.0}},
        {"task": NUMBER, "test": {"samples": 9, "r2": 0.01}},
    ),
    (
        "between",
        {"task": NUMBER, "agreement": {"middle": {"low": -1, "high": 1, "share": 0.95}}},
        {"task": NUMBER, "agreement": {}},
    ),
    ("reference", alone(BETTER, reference="linear"), alone(BETTER, reference="linear", samples=179)),
    ("reference-in-part", alone(BETTER, reference="linear", samples=179), alone(BETTER, reference="linear")),
    ("reference", alone(WORSE), alone(WORSE, UNSURE)),
    ("reference-within", alone(BETTER, BETTER), alone(BETTER)),
    ("reference-within", alone(BETTER, BETTER), alone(BETTER, BETTER, reference="linear")),
    ("reference-everywhere", alone(BETTER, BETTER), alone(BETTER, UNSURE)),
    ("everywhere-misleads", alone(WORSE, UNSURE), alone(WORSE, WORSE)),
    ("everywhere-misleads", alone(WORSE, BETTER), alone(None, BETTER)),
    ("own-model-better", own_model(0.9, high=-0.01), own_model(0.9, high=0.0)),
    ("own-model-better-by-chance", own_model(0.9, high=0.0), own_model(0.9, high=-0.01)),
    ("own-model-no-better", own_model(0.8), own_model(0.801)),
    (
        "no-own-model",
        alone(None) | hospitals(auc=0.8, local_samples=0),
        alone(None) | hospitals(auc=0.8, local_samples=1),
    ),
    (
        "no-linear",
        alone(BETTER)
        | {"solver": {"name": "steps", "why": "policies", "code": "exact-solver-not-allowed"}, "asked": ["linear"]},
        alone(BETTER),
    ),
    (
        "unsolved",
        alone(BETTER) | {"solver": {"name": "exact", "unsolved": ["fold 1 of 5"]}},
        alone(BETTER) | {"solver": {"name": "exact", "unsolved": ["final model"]}},
    ),
    (
        "kept-unsolved",
        alone(BETTER) | {"solver": {"name": "exact", "unsolved": ["final model"]}},
        alone(BETTER) | {"solver": {"name": "exact", "unsolved": ["fold 1 of 5"]}},
    ),
    ("same-model", both_alone("exact"), both_alone("steps")),
    ("same-model", both_alone("exact"), both_alone("exact") | {"task": BALANCED}),
    ("in-folds", alone(BETTER | IN_FOLDS), alone(BETTER)),
    ("conditions", alone(BETTER), alone(None)),
    ("opposite-effects", effects(0.024), effects(0.025)),
    ("opposite-effects", effects(0.024), effects(0.024, estimate=1.0)),
    ("effects-not-compared", compared("separated"), compared()),
    ("effects-not-compared", compared(se=None), compared()),
    ("better-than-guess", guessed(-0.2, -0.001), guessed(-0.2, 0.0, both=True)),
    ("guess-undecided", guessed(-0.2, 0.0), guessed(-0.2, -0.001)),
    ("guess-undecided", guessed(0.0, 0.2), guessed(0.001, 0.2)),
    ("worse-than-guess", guessed(0.001, 0.2), guessed(0.0, 0.2)),
    ("guess-without-interval", hospitals(loss=0.5, baseline_loss=0.5), guessed(0.001, 0.2)),
    ("chance", hospitals(auc_low=0.5, auc_high=0.8), hospitals(auc_low=0.501, auc_high=0.8)),
    ("chance", hospitals(auc_low=0.2, auc_high=0.5), hospitals(auc_low=0.2, auc_high=0.499)),
    ("below-chance", hospitals(auc_low=0.2, auc_high=0.499), hospitals(auc_low=0.2, auc_high=0.5)),
    ("no-other-hospital", {}, {"evaluation": {"name": "leave-one-site-out"}}),
    ("hospitals-vary", {"evaluation": {"name": "leave-one-site-out"}}, {}),
    ("kept-untested", {"refit": True}, {"refit": False}),
    ("not-equal", alone(UNSURE), alone(BETTER)),
    ("not-equal", alone(WORSE, UNSURE), alone(UNSURE, BETTER)),
    ("not-equal", alone(UNSURE), alone(UNSURE, reference="linear")),
    ("no-ranking", ranked(0.8, 0.9), ranked(0.801, 0.9)),
    ("recalibrate", apart(0.0249), apart(0.025)),
    ("no-cause", {}, {"test": {"samples": 0}}),
    ("no-cause", {}, {"task": TEXTS, "test": {"samples": 9} | BITS}),
    ("repeats-texts", {"task": TEXTS, "test": {"samples": 9} | BITS}, {}),
    ("calibration-by-hospital", apart(), hospitals_calibrated(7)),
    ("calibration-of-many", hospitals_calibrated(7), hospitals_calibrated(6)),
    ("site-untested", hospitals(samples=0), hospitals(samples=1)),
]


def sentences(results: RunResults) -> list[Sentence]:
    return [*(one for part in topics(results).values() for one in part), *asides(results)]


@pytest.mark.parametrize(("code", "true", "near"), ROWS, ids=[code for code, *_ in ROWS])
def test_a_sentence_is_said_where_it_is_true_and_not_beside_it(code: Code, true: Changes, near: Changes) -> None:
    said, not_said = ([one.code for one in sentences(run(**own))] for own in (true, near))
    assert code in said
    assert code not in not_said
    assert len(said) == len(set(said)), "each once"


def test_a_terminal_names_opposite_effects_and_where_none_could_be_seen() -> None:
    (opposite,) = _effects(effects(0.024)["coefficients"], run().spec)
    assert [name in opposite for name in ("age", "north 1", "south -1")] == [True] * 3
    for problem, se, named in [("separated", None, False), ("", None, True)]:
        (unseen,) = _effects(compared(problem, se)["coefficients"], run().spec)
        assert [name in unseen for name in ("north", "south", "age")] == [False, True, named]
    assert not list(_effects(compared()["coefficients"], run().spec))


def test_no_sentence_is_left_out() -> None:
    assert {code for code, *_ in ROWS} == set(get_args(Code))
