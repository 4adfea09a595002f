"""What the model is measured against: the same model alone, and linear models, each as somebody else would make it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, mean_absolute_error, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from rankdad.common.data import SiteData, read_site
from rankdad.common.errors import FewSamplesError, SpecError, UserError
from rankdad.common.policy import Policy
from rankdad.common.preparation import in_memory, linear
from rankdad.common.protocol.plan import make_plan
from rankdad.common.rounds.base import Due
from rankdad.common.rounds.evaluation import Evaluation
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.common.spec.solver import lines
from rankdad.common.spec.tasks import Classification, MultiLabel, Regression, TaskSpec
from rankdad.local.admission import admitted
from rankdad.local.alone import alone_spec, train_alone
from rankdad.local.contributions import Contributions
from rankdad.local.references import References
from rankdad.simulations.lockstep import run
from tests.conftest import SITES, part_of, run_spec, sampled
from tests.runs import summary_of

Data = Callable[..., dict[str, SiteData]]
K_FOLD: dict[str, Any] = {"name": "k-fold", "folds": 3, "refit": False}
HOLDOUT: dict[str, Any] = {"name": "holdout", "references": ["local"]}
MODEL = {"name": "mlp", "hidden": [16], "dropout": 0.3}


def referenced(*names: str, **changes: Any) -> RunSpec:
    evaluation = K_FOLD | {"references": list(names)}
    return run_spec(**({"evaluation": evaluation, "preparation": {"standardise": "federated"}} | changes))


DECAYS = {"weight_decay": [0.0, 0.5]}
ONE_STEP = {"epochs": 1, "batch_size": 64}  # what is compared trains by itself
LOCAL = {"local_steps": 2, "outer": {"name": "adam"}}


RUNS: dict[str, tuple[dict[str, Any], str, Any, Any]] = {
    "plain": ({}, "elementwise", None, None),
    "factored": ({}, "factored", None, None),
    "local steps": (LOCAL, "elementwise", None, None),
    "ranks": ({}, "elementwise", {"rank": [1, 2]}, None),
    "decays": ({}, "elementwise", {**DECAYS, "rank": [1, 2]}, DECAYS),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", sampled(RUNS, len(RUNS)))
def test_alone_is_a_run_of_one_site_bit_for_bit(
    tmp_path: Path, site_data: Data, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Dropout, early stopping, class weights, comparisons and means are those that a run of the site alone has.

    So are the settings that it chooses; ranks are none of them, as its gradients are full.
    """
    options, moment, tuning, own = RUNS[kind]
    changes: dict[str, Any] = {
        "model": MODEL,
        "task": {"name": "classification", "classes": 3, "class_weights": "balanced"},
        "training": {
            "epochs": 2,
            "early_stopping": {"patience": 1},
            "validation": 0.3,
            "optimizer": {"name": "adam", "lr": 0.01, "second_moment": moment},
        },
    }
    heard: dict[tuple[str, int], Tensor] = {}
    original = References._local_outputs

    def listening(self: References, prepared: Any) -> Tensor | None:
        found = original(self, prepared)
        assert found is not None
        heard[self._site, self._fold] = found
        return found

    monkeypatch.setattr(References, "_local_outputs", listening)
    federation = {"sites": list(SITES), "compare_every": 2}
    folds = K_FOLD | {"folds": 2}
    evaluation = folds | {"references": ["local"]}
    method = {"name": "rank-dad", "rank": 2} | options
    record = {"spectra": 5}  # which a site alone has none of
    spec = referenced(
        evaluation=evaluation, federation=federation, method=method, tuning=tuning, record=record, **changes
    )
    sizes = (48, 44, 40)  # each site has samples of its own to validate with
    data = site_data(spec, sizes)
    run(spec, data, tmp_path / "together")
    assert len(heard) == 6
    for site in SITES:
        one = referenced(evaluation=folds, federation=federation | {"sites": [site]}, tuning=own, **changes)
        outputs: dict[tuple[str, int], Tensor] = {}
        run(one, {site: site_data(one, sizes)[site]}, tmp_path / site, tested=partial(keep, outputs))
        last = [fold for fold in range(one.folds) if one.tests(fold)]
        assert all(torch.equal(heard[site, place], outputs[site, fold]) for place, fold in enumerate(last))


@pytest.mark.slow
@pytest.mark.parametrize("most", [None, 2, "epoch"])
def test_a_model_alone_is_trained_when_the_run_is(
    tmp_path: Path, site_data: Data, monkeypatch: pytest.MonkeyPatch, most: int | str | None
) -> None:
    """Step by step beside the run, so that at the test nobody waits for more than a site's own test."""
    waited: list[str] = []
    original = References._advance

    def noting(self: References) -> None:
        due = self._run.due
        if due is not None and due.split == "test":
            waited.append(self._site)
        original(self)

    monkeypatch.setattr(References, "_advance", noting)
    spec = referenced("local", evaluation=HOLDOUT, method={"name": "dsgd", "local_steps": most})
    run(spec, site_data(spec), tmp_path)
    assert len(set(waited)) == len(waited) > 0


def test_a_site_that_comes_back_in_a_later_fold_makes_the_same_model_again(site_data: Data) -> None:
    spec = referenced("local", model=MODEL)
    data, own = site_data(spec)["alpha"], alone_spec(spec, "alpha")
    undisturbed, again = (
        [one for one in train_alone(own, data, Replica(own).model, fold) if one is not None] for fold in (0, 1)
    )
    assert [fold for fold, _ in undisturbed] == [0, 1, 2]
    for (fold, outputs), (its, its_outputs) in zip(undisturbed[1:], again, strict=True):
        assert fold == its
        assert torch.equal(outputs, its_outputs)


def test_repeats_that_are_alike_at_a_site_alone_have_models_of_their_own(
    site_data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The federation runs them, since they are not alike elsewhere: a site left them out and had none to compare."""
    spec = referenced("local", evaluation={"name": "k-fold", "folds": 2, "repeats": 2}, training={"epochs": 1})
    data, own = site_data(spec)["alpha"], alone_spec(spec, "alpha")
    monkeypatch.setattr(SiteData, "alike", lambda data, spec: (0, 1, 0, 1))
    tested = [one[0] for one in train_alone(own, data, Replica(own).model) if one is not None]
    assert tested == [0, 1, 2, 3]


@pytest.mark.exhaustive
def test_what_does_not_count_any_more_trains_nothing_alone(tmp_path: Path, site_data: Data) -> None:
    """A site that only catches up needs its predictions, and nothing to compare them with."""
    spec, bodies = referenced("local", training=ONE_STEP), list[Evaluation]()
    original = Contributions.body

    def late(self: Contributions, due: Due, *, counts: bool = True) -> Any:
        if due.split == "test" and self.plan.references:
            found = original(self, due, counts=False)
            assert isinstance(found, Evaluation)
            bodies.append(found)
        return original(self, due, counts=counts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Contributions, "body", late)
        run(spec, site_data(spec), tmp_path / "run")
    assert len(bodies) == 9
    assert all(body.tally.samples and body.references == () for body in bodies)


def keep(outputs: dict[tuple[str, int], Tensor], site: str, fold: int, given: Tensor) -> None:
    outputs[site, fold] = given


@pytest.mark.exhaustive
def test_who_does_not_ask_for_references_trains_the_same_weights(tmp_path: Path, site_data: Data) -> None:
    for names in ((), ("local", "site")):
        spec = referenced(*names, model=MODEL, training={"epochs": 1})
        run(spec, site_data(spec), tmp_path / "-".join(("run", *names)))
    one, other = (summary_of(tmp_path / name) for name in ("run", "run-local-site"))
    assert one["weights_sha256"] == other["weights_sha256"]
    assert one["metrics"]["references"] == {}
    assert one["metrics"]["test"] == other["metrics"]["test"]


def sklearn_model(task: TaskSpec) -> Any:
    if isinstance(task, Regression):
        return make_pipeline(StandardScaler(), Ridge(alpha=1.0))
    return make_pipeline(StandardScaler(), LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000))


def apart(task: TaskSpec, given: Tensor, model: Any, inputs: Any) -> float:
    """Return how far a linear model's outputs are from scikit-learn's predictions."""
    if isinstance(task, Regression):
        return float(np.abs(given[:, 0].numpy() - model.predict(inputs)).max())
    return float(np.abs(given.softmax(1).numpy() - model.predict_proba(inputs)).max())


@pytest.mark.parametrize("task", [Classification(classes=2), Classification(classes=3), Regression(name="regression")])
def test_sums_of_sites_lead_to_the_model_of_all_rows_together(task: TaskSpec) -> None:
    draw = np.random.default_rng(1)
    inputs = draw.normal(size=(150, 5)) * [1, 10, 0.1, 1, 3] + [0, 100, 5, 0, 2020]
    inputs[:, 3] = inputs[:, 3] > 0
    inputs = np.c_[inputs, np.ones(150)]  # a constant column says nothing
    score = StandardScaler().fit_transform(inputs) @ [2.0, 3, -1, 1, 0.5, 0] + draw.normal(size=150) / 2
    labels = score if isinstance(task, Regression) else np.digitize(score, [-1, 1][: task.outputs - 1])
    rows, known = torch.tensor(inputs), torch.tensor(labels)
    totals, shape = list[dict[str, Tensor]](), (lines(task), 7)
    at = torch.zeros(shape, dtype=torch.float64)
    for number in range(1 if isinstance(task, Regression) else linear.ROUNDS):
        curved = number < linear.CURVED
        halves = (slice(0, 40), slice(40, 150))
        parts = [linear.sums(task, rows[half], known[half], at, curved=curved) for half in halves]
        assert not any(linear.contradiction(task, part, count) for part, count in zip(parts, (40, 110), strict=True))
        totals.append({name: parts[0][name] + parts[1][name] for name in parts[0]})
        variance = linear.variances(linear.square(totals[0]["curvature"]), 7)
        at = linear.descend(task, totals, variance).at.reshape(shape)
    given = linear.outputs(task, rows, at)
    assert apart(task, given, sklearn_model(task).fit(inputs, labels), inputs) < 1e-6


@pytest.mark.parametrize("rows", [8, math.inf])
def test_a_loss_that_no_float32_holds_is_checked_as_any_other(rows: float) -> None:
    """A site whose answer would tell of few says a loss so large; of weighted classes no number of rows bounds it."""
    slope = torch.ones(4, dtype=torch.float64)
    sums = {"loss": torch.tensor([1e300], dtype=torch.float64), "slope": slope}
    assert linear.contradiction(Classification(classes=2), sums, rows) is None
    assert linear.contradiction(Classification(classes=2), {**sums, "slope": slope * 1e301}, rows) is not None


def test_labels_have_a_line_each() -> None:
    draw, task = np.random.default_rng(2), MultiLabel(name="multi-label", labels=2)
    inputs = draw.normal(size=(80, 3))
    labels = (inputs[:, :2] + draw.normal(size=(80, 2)) > 0).astype(float)
    weights = linear.fitted(task, torch.tensor(inputs), torch.tensor(labels))
    assert weights is not None
    given = linear.outputs(task, torch.tensor(inputs), weights)
    for label in range(2):
        expected = sklearn_model(task).fit(inputs, labels[:, label]).predict_proba(inputs)[:, 1]
        assert np.abs(given[:, label].sigmoid().numpy() - expected).max() < 1e-6


@pytest.mark.parametrize("task", [Classification(classes=2), Regression(name="regression")])
@pytest.mark.parametrize("steady", [0.0, 1e-15, 7.0])
def test_what_does_not_vary_where_a_model_is_trained_has_no_weight_elsewhere(task: TaskSpec, steady: float) -> None:
    """A level that no training row has is 0 in all of them: 1 in a test row made an output of 1e20."""
    draw = np.random.default_rng(3)
    inputs = np.c_[draw.normal(size=(200, 12)), np.full((200, 3), steady)]
    score = inputs[:, 0] - inputs[:, 1] + draw.normal(size=200)
    labels = score if isinstance(task, Regression) else (score > 0).astype(int)
    weights = linear.fitted(task, torch.tensor(inputs[:150]), torch.tensor(labels[:150]))
    assert weights is not None
    assert float(weights.abs().max()) < 10
    inputs[150:, 12:] = 1.0
    given = linear.outputs(task, torch.tensor(inputs[150:]), weights)
    model = sklearn_model(task).fit(inputs[:150, :12], labels[:150])
    assert apart(task, given, model, inputs[150:, :12]) < 1e-6


def test_classes_that_are_told_apart_without_error_converge() -> None:
    task, inputs = Classification(classes=2), torch.cat([torch.full((20, 3), -1.0), torch.full((20, 3), 1.0)])
    labels = torch.arange(40) // 20
    weights = linear.fitted(task, inputs, labels)
    assert weights is not None
    model = sklearn_model(task).fit(inputs, labels)
    assert weights[0, 1:].sum() == pytest.approx(model[-1].coef_.sum(), rel=1e-6)


@pytest.mark.slow
def test_a_linear_model_that_does_not_converge_is_left_out_with_a_notice(
    tmp_path: Path, site_data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "MOST_ROUNDS", 2)
    told, original = list[str](), References.__init__

    def listening(self: References, spec: RunSpec, data: SiteData, run: RunState, site: str, _: Any) -> None:
        original(self, spec, data, run, site, told.append)

    monkeypatch.setattr(References, "__init__", listening)
    spec = referenced("site", training=ONE_STEP)
    run(spec, site_data(spec), tmp_path / "run")
    assert summary_of(tmp_path / "run")["metrics"]["references"]["site"]["samples"] == 0
    assert {line.partition(":")[0] for line in told} == set(SITES)


@pytest.mark.slow
@pytest.mark.shared_data
def test_the_reference_site_is_scikit_learns_on_a_hospital_with_levels_that_a_fold_lacks(tmp_path: Path) -> None:
    """Hungarian's rows of UCI heart: levels of slope and ca, and indicators of gaps, are constant in some folds."""
    source = Path(__file__).parents[3] / "shared" / "data" / "heart" / "processed.hungarian.data"
    if not source.is_file():
        pytest.skip(f"{source} is absent")
    names = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca"]
    table = pd.read_csv(source, header=None, names=[*names, "thal", "num"], na_values="?")
    table["sick"] = np.where(table["num"] > 0, "yes", "no")
    table[[*names, "sick"]].to_csv(tmp_path / "table.csv", index=False)
    data: dict[str, Any] = {"reader": "csv", "file": "table.csv", "features": names, "label": "sick"}
    data["values"] = ["no", "yes"]
    data |= {"missing": "impute", "missing_indicators": ["*"], "categorical_other": ["slope", "ca"]}
    data |= {"categorical": {"slope": ["1", "2", "3"], "ca": ["0", "1", "2", "3"]}}
    spec = referenced("site", task={"name": "classification", "classes": 2}, data=data, training=ONE_STEP)
    spec = spec.model_copy(update={"federation": spec.federation.model_copy(update={"sites": ("hungarian",)})})
    read = read_site(spec, tmp_path, 0)
    run(spec, {"hungarian": read}, tmp_path / "run")
    found = summary_of(tmp_path / "run")["metrics"]["references"]["site"]["values"]
    true, scores = [], []
    for fold in range(3):
        train, test = fold_of(read, fold)
        model = make_pipeline(SimpleImputer(keep_empty_features=True), sklearn_model(spec.task)).fit(*train)
        true.append(test[1])
        scores.append(model.predict_proba(test[0])[:, 1])
    known, risks = np.concatenate(true), np.concatenate(scores)
    assert found["auc"] == pytest.approx(roc_auc_score(known, risks), abs=2e-3)
    assert found["loss"] == pytest.approx(log_loss(known, risks), abs=0.005)
    assert found["loss"] < 0.5


Rows = tuple[NDArray[Any], NDArray[Any]]


def fold_of(data: SiteData, fold: int) -> tuple[Rows, Rows]:
    pairs = [part_of(data, name, fold) for name in ("train", "test")]
    train, test = [(in_memory(pair.inputs).double().numpy(), pair.labels.numpy()) for pair in pairs]
    return train, test


@pytest.mark.exhaustive
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_linear_references_are_those_of_scikit_learn(tmp_path: Path, site_data: Data, task: str) -> None:
    """Pooled over the sites for `linear`, each site's own for `site`; each row predicted by a model of other rows."""
    described: dict[str, Any] = {"name": task} | ({"classes": 3} if task == "classification" else {})
    spec = referenced("linear", "site", task=described, training=ONE_STEP | {"validation": 0})
    data = site_data(spec)
    if task == "regression":
        for one in data.values():
            noise = torch.from_numpy(np.random.default_rng(0).normal(size=len(one.samples)))
            one.samples.labels.copy_(3 * in_memory(one.samples.inputs)[:, 0].double() + noise + 40)
    run(spec, data, tmp_path / "run")
    references = summary_of(tmp_path / "run")["metrics"]["references"]
    predicted: dict[str, list[NDArray[Any]]] = {"linear": [], "site": []}
    true = []
    for fold in range(3):
        folds = [fold_of(one, fold) for one in data.values()]
        inputs, labels = (np.concatenate([train[part] for train, _ in folds]) for part in (0, 1))
        pooled = sklearn_model(spec.task).fit(inputs, labels)
        for train, test in folds:
            own = sklearn_model(spec.task).fit(*train)
            true.append(test[1])
            for name, model in (("linear", pooled), ("site", own)):
                predict = model.predict if task == "regression" else model.predict_proba
                predicted[name].append(predict(test[0]))
    known = np.concatenate(true)
    for name, parts in predicted.items():
        found, scores = references[name], np.concatenate(parts)
        assert found["samples"] == len(known) == 97
        if task == "regression":
            assert found["values"]["mae"] == pytest.approx(mean_absolute_error(known, scores), rel=1e-4)
        else:
            loss = -np.log(scores[np.arange(len(known)), known]).mean()
            assert found["values"]["loss"] == pytest.approx(loss, abs=1e-4)
            assert found["values"]["auc"] == pytest.approx(roc_auc_score(known, scores, multi_class="ovr"), abs=2e-3)


@pytest.mark.exhaustive
def test_a_site_that_cannot_train_alone_says_so_and_the_run_goes_on(tmp_path: Path, site_data: Data) -> None:
    """A model that diverges alone is no reason to end everybody's run."""
    spec = referenced("local", training=ONE_STEP)
    data = site_data(spec)
    labels = data["gamma"].samples.labels
    empty = data["gamma"].splits[1]
    object.__setattr__(empty, "train", torch.arange(0))
    run(spec, data, tmp_path / "run")
    local = summary_of(tmp_path / "run")["metrics"]["references"]["local"]
    assert local["samples"] == 97 - len(labels)


def test_products_of_more_columns_than_samples_allow_stay_at_the_site(site_data: Data) -> None:
    """With 17 rows, 4 of them for each row that leaves, the products of 7 columns say too much."""
    sent = {"training": {"batch_size": 32, "validation": 0}, "method": {"name": "rank-dad", "rank": 2}}
    sent["model"] = {"name": "mlp", "hidden": [8]}
    spec = referenced("linear", **sent)
    plan = make_plan(spec, Replica(spec).model)
    with pytest.raises(FewSamplesError) as refused:
        admitted(Policy(min_rows=1), spec, plan, site_data(spec)["gamma"])
    assert (refused.value.code, refused.value.field) == ("linear-needs-samples", "evaluation.references")
    local = referenced("local", "site", **sent)
    admitted(Policy(min_rows=1), local, plan, site_data(spec)["gamma"])


def test_what_cannot_be_measured_is_refused_by_name() -> None:
    for evaluation in ({"name": "leave-one-site-out", "references": ["local"]}, HOLDOUT | {"references": ["site"] * 2}):
        with pytest.raises(UserError) as refused:
            run_spec(evaluation=evaluation)
        assert refused.value.field.startswith("evaluation")
    wide = run_spec(data={"shape": [300]}, evaluation={"name": "holdout", "references": ["site"]})
    with pytest.raises(SpecError, match=r"references: a linear model of 903 weights, expected .* at most 256"):
        make_plan(wide, Replica(wide).model)
