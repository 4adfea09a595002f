"""Whole runs in one process: exactness over many steps, unequal sites, buffers, stopping, failures."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from rankdad.common.data import SiteData
from rankdad.common.documents import validate
from rankdad.common.errors import PolicyError, RunFailedError
from rankdad.common.lowrank.routes import Route
from rankdad.common.models import build_model
from rankdad.common.policy import EVERYTHING, MinLevel
from rankdad.common.preparation import in_memory
from rankdad.common.projections import projections_of
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.replica import Replica
from rankdad.common.seeds import derive
from rankdad.local.observer import Observer
from rankdad.local.site import site_of
from rankdad.simulations import lockstep
from rankdad.simulations.lockstep import run, simulate
from rankdad.simulations.spec import SimulationFile
from tests.conftest import SITES, part_of, run_document, run_spec, sampled
from tests.runs import final_weights, rows_of, summary_of

Data = Callable[..., dict[str, SiteData]]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["elementwise", "factored"])
def test_exact_methods_train_alike_over_many_steps(tmp_path: Path, site_data: Data, moment: str) -> None:
    weights = {}
    for name in ("dsgd", "dad", "edad"):
        training = {"dtype": "float64", "epochs": 3, "clip": 0.5, "schedule": {"name": "cosine", "warmup": 3}}
        training |= {"optimizer": {"name": "adam", "lr": 0.01, "weight_decay": 0.01, "second_moment": moment}}
        spec = run_spec(method={"name": name, "wire": "float64"}, training=training)
        weights[name] = final_weights(run(spec, site_data(spec), tmp_path / name))
    for name, value in weights["dsgd"].items():
        assert torch.allclose(weights["dad"][name], value, rtol=0, atol=1e-9), name
        assert torch.allclose(weights["edad"][name], value, rtol=0, atol=1e-9), name


@pytest.mark.slow
def test_accumulated_batches_are_one_large_batch(tmp_path: Path, site_data: Data) -> None:
    weights = []
    for size, accumulate in ((12, 1), (4, 3)):
        training = {"dtype": "float64", "batch_size": size, "accumulate": accumulate}
        spec = run_spec(method={"name": "rank-dad", "rank": 2, "wire": "float64"}, training=training)
        weights.append(final_weights(run(spec, site_data(spec), tmp_path / str(size))))
    assert summary_of(tmp_path / "4")["steps"] == summary_of(tmp_path / "12")["steps"]
    for name, value in weights[0].items():
        assert torch.allclose(weights[1][name], value, rtol=0, atol=1e-9), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [{"name": "rank-dad", "rank": 2}, {"name": "dsgd"}, {"name": "dsgd", "local_steps": 2}]
)
def test_a_patients_share_is_of_the_whole_batch_however_that_is_divided(
    tmp_path: Path, site_data: Data, method: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three parts of four samples: of each by itself seven could not share it, and nothing would be left."""
    weights, said = list[dict[str, Tensor]](), list[str]()
    noticed = partial(site_of, observer=Observer(notice=said.append))
    monkeypatch.setattr(lockstep, "site_of", lambda *given: noticed(*given[:5]))
    policy = EVERYTHING.model_copy(update={"min_rows": 7, "min_level": MinLevel(count=7)})
    for size, accumulate, policies in ((12, 1, policy), (4, 3, policy), (12, 1, EVERYTHING)):
        training = {"dtype": "float64", "batch_size": size, "accumulate": accumulate}
        training["optimizer"] = {"name": "sgd", "lr": 1.0}
        model = {"name": "mlp", "hidden": [30]}  # of so many units some answer to few
        spec = run_spec(method={"wire": "float64"} | method, model=model, training=training)
        own, folder = dict.fromkeys(spec.federation.sites, policies), tmp_path / str(len(weights))
        weights.append(final_weights(run(spec, site_data(spec, (48, 32, 32)), folder, policies=own)))
    assert any("of the loss's gradient" in one for one in said)
    assert any("a unit" in one for one in said)
    first = next(iter(weights[0]))
    assert not torch.allclose(weights[0][first], weights[2][first], rtol=0, atol=1e-4), "somebody had more"
    for name, value in weights[0].items():
        assert torch.allclose(weights[1][name], value, rtol=0, atol=1e-9), name


@pytest.mark.slow
@pytest.mark.parametrize(("scaling", "factor"), [("linear", 3.0), ("sqrt", 3**0.5)])
def test_the_learning_rate_grows_with_the_number_of_sites(
    tmp_path: Path, site_data: Data, scaling: str, factor: float
) -> None:
    weights = []
    for name, rate in ((scaling, 0.01), ("none", 0.01 * factor)):
        training = {"dtype": "float64", "optimizer": {"name": "sgd", "lr": rate}, "lr_scaling": name}
        spec = run_spec(method={"name": "dsgd", "wire": "float64"}, training=training)
        weights.append(final_weights(run(spec, site_data(spec), tmp_path / name)))
    for name, value in weights[0].items():
        assert torch.allclose(weights[1][name], value, rtol=0, atol=1e-12), name


@pytest.mark.slow
def test_autocast_trains_nearly_the_same(tmp_path: Path, site_data: Data) -> None:
    weights = []
    for autocast in (None, "bfloat16"):
        optimizer = {"name": "sgd", "lr": 0.1}
        spec = run_spec(method={"name": "dad"}, training={"autocast": autocast, "optimizer": optimizer})
        weights.append(final_weights(run(spec, site_data(spec), tmp_path / str(autocast))))
    for name, value in weights[0].items():
        assert weights[1][name].dtype == torch.float32
        distance = torch.linalg.vector_norm(weights[1][name] - value)
        assert 0 < distance <= 0.02 * torch.linalg.vector_norm(value), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    sampled(
        [
            {"name": "dsgd"},
            {"name": "dad", "wire": "float16"},
            {"name": "rank-dad", "rank": 2},
            {"name": "rank-dad", "rank": 2, "reducer": "spi", "residual": "dense"},
            {"name": "rank-dad", "rank": 2, "wire": "int8", "tolerance": 0.3},
            {"name": "powersgd", "rank": 2, "wire": "bfloat16"},
            {"name": "rank-dad", "rank": 2, "wire": "int4", "lazy": 2},
            {"name": "top-k", "density": 0.1, "wire": "int2"},
        ],
        3,
    ),
    ids=lambda method: f"{method['name']}-{method.get('wire', '')}",
)
def test_a_rerun_gives_the_same_bits_and_another_seed_does_not(
    tmp_path: Path, site_data: Data, method: dict[str, Any]
) -> None:
    model = {"name": "mlp", "hidden": [16, 16], "dropout": 0.2}
    digests = []
    for at, seed in enumerate((0, 0, 1)):
        spec = run_spec(method=method, model=model, seed=seed, training={"epochs": 1})
        torch.manual_seed(at)
        run(spec, site_data(spec), tmp_path / str(at))
        summary = summary_of(tmp_path / str(at))
        assert set(summary["weights_sha256"]) == set(SITES)
        assert set(summary["weights_sha256"].values()) == {summary["aggregator_sha256"]}
        digests.append(summary["aggregator_sha256"])
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.slow
def test_the_run_directory_says_what_happened(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training={"epochs": 2, "batches": "full"})
    data = site_data(spec)
    run(spec, data, tmp_path / "run")
    summary, steps, metrics = (
        summary_of(tmp_path / "run"),
        rows_of(tmp_path / "run" / "steps.csv"),
        rows_of(tmp_path / "run" / "metrics.csv"),
    )
    per_epoch = -(-max(len(site.splits[0].train) for site in data.values()) // 8)
    assert (summary["status"], summary["steps"], summary["epochs"]) == ("completed", 2 * per_epoch, 2)
    assert [int(row["step"]) for row in steps] == list(range(1, 2 * per_epoch + 1))
    assert sum(int(row["bytes_up"]) for row in steps) == round(summary["bytes_up_per_site_step"] * 3 * 2 * per_epoch)
    assert float(steps[-1]["norm:gamma"]) == 0.0  # the small site is out of data, and present
    assert float(steps[0]["norm:gamma"]) > 0.0
    assert [(row["split"], row["site"]) for row in metrics[:4]] == [("validation", s) for s in ("pooled", *SITES)]
    assert [row["split"] for row in metrics].count("test") == 4
    pooled = next(row for row in metrics if row["site"] == "pooled")
    assert int(pooled["samples"]) == sum(len(site.splits[0].validation) for site in data.values())
    assert json.loads((tmp_path / "run" / "run.json").read_text())["method"]["rank"] == 2
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["sites"] == list(SITES)


@pytest.mark.slow
def test_stopping_and_best_look_at_validation_only(tmp_path: Path, site_data: Data) -> None:
    """Other test data change nothing but the test metrics; other validation data move the best epoch and the end."""
    training = {
        "epochs": 12,
        "monitor": "loss",
        "early_stopping": {"patience": 2},
        "optimizer": {"name": "adam", "lr": 0.1},
    }
    spec = run_spec(training=training)
    ends = {}
    for changed in ("nothing", "test", "validation"):
        data = site_data(spec)
        for site in data.values():
            for part in ("test", "validation"):
                if part == changed:
                    in_memory(site.samples.inputs)[getattr(site.splits[0], part)] *= -1
        (result, *_) = run(spec, data, tmp_path / changed).values()
        ends[changed] = (result.best_epoch, result.epochs, result.test.values["loss"])
    assert ends["nothing"][:2] == ends["test"][:2]
    assert ends["nothing"][2] != ends["test"][2]
    assert ends["nothing"][1] == ends["nothing"][0] + 1 + 2 < 12, "this run is meant to stop early"
    assert ends["validation"][0] < ends["nothing"][0], "from the wrong labels' view nearly every step is a step back"
    assert ends["validation"][1] == ends["validation"][0] + 1 + 2


@pytest.mark.slow
def test_best_and_final_model_are_saved_and_best_is_tested(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(training={"epochs": 4, "monitor": "loss", "optimizer": {"name": "adam", "lr": 0.3}})
    results = run(spec, site_data(spec), tmp_path / "run")
    result = results["alpha"]
    rows = rows_of(tmp_path / "run" / "metrics.csv")
    losses = [float(row["loss"]) for row in rows if row["split"] == "validation" and row["site"] == "pooled"]
    assert result.best_epoch == losses.index(min(losses)) < 3, "this run is meant to overshoot"
    model = tmp_path / "run" / "model"
    for name, weights in (("best", result.best), ("final", result.final)):
        saved = load_file(model / f"{name}.safetensors")
        assert saved.keys() == weights.keys()
        assert all(torch.equal(saved[key], weights[key]) for key in weights)


@pytest.mark.slow
def test_buffers_are_averaged_and_equal_everywhere(tmp_path: Path, site_data: Data) -> None:
    """Of 65 samples in batches of 8 one would be left over, which BatchNorm could not take; a mask holds infinity."""
    factory = "tests.factories:masked"
    spec = run_spec(model={"name": "factory", "factory": factory}, method={"name": "rank-dad", "rank": 1})
    data = site_data(spec, (100, 60, 36))
    assert len(data["alpha"].splits[0].train) % 8 == 1
    results = run(spec, data, tmp_path / "run", allowed_factories=[factory])
    weights = final_weights(results)
    assert weights["1.running_mean"].abs().sum() > 0
    assert weights["mask"].tolist() == [0.0, float("-inf")]
    summary = summary_of(tmp_path / "run")
    assert set(summary["weights_sha256"].values()) == {summary["aggregator_sha256"]}


@pytest.mark.parametrize("ill", [("beta",), ("alpha", "beta", "gamma")])
def test_a_site_that_cannot_go_on_ends_the_run_also_if_it_is_every_site(
    tmp_path: Path, site_data: Data, ill: tuple[str, ...]
) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 2})
    data = site_data(spec)
    for site in ill:
        in_memory(data[site].samples.inputs)[:] = float("nan")
    with pytest.raises(RunFailedError, match=f"{ill[0]} failed: the training loss in step 1 holds NaN"):
        run(spec, data, tmp_path / "run")
    summary = summary_of(tmp_path / "run")
    assert summary["status"] == "failed"
    assert summary["reason"].startswith(f"{ill[0]}: ")


@pytest.mark.slow
def test_one_site_alone_is_a_run(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(
        federation={"sites": ["alpha"]}, method={"name": "rank-dad", "rank": 2}, training={"validation": 0.0}
    )
    (result,) = run(spec, site_data(spec), tmp_path / "run").values()
    assert result.best_epoch == 1, "without validation the last epoch is the best"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["outside", "zeros", "channels last"])
def test_odd_models_train_as_with_full_gradients(tmp_path: Path, site_data: Data, kind: str) -> None:
    """At full rank, with plain gradient descent: the same weights as dsgd's, whatever capture could follow."""
    factory = "tests.factories:now"
    weights = []
    methods: list[dict[str, Any]] = [{"name": "dsgd"}, {"name": "rank-dad", "rank": 24}]
    for method in methods:
        spec = run_spec(
            model={"name": "factory", "factory": factory, "arguments": {"kind": kind}},
            method=method | {"wire": "float64"},
            training={"dtype": "float64", "optimizer": {"name": "sgd", "lr": 0.05}},
        )
        results = run(spec, site_data(spec), tmp_path / method["name"], allowed_factories=[factory])
        weights.append(final_weights(results))
    for name, value in weights[0].items():
        assert torch.allclose(weights[1][name], value, rtol=0, atol=1e-8), name


@pytest.mark.slow
def test_dad_says_that_no_factor_covers_a_weight(tmp_path: Path, site_data: Data) -> None:
    factory = "tests.factories:now"
    model = {"name": "factory", "factory": factory, "arguments": {"kind": "outside"}}
    spec = run_spec(model=model, method={"name": "dad"})
    with pytest.raises(RunFailedError, match=r"middle\.weight outside its layer in this step"):
        run(spec, site_data(spec), tmp_path / "run", allowed_factories=[factory])


@pytest.mark.parametrize("name", ["dsgd", "rank-dad", "powersgd"])
def test_a_gradient_that_is_not_finite_is_named_with_site_and_step(tmp_path: Path, site_data: Data, name: str) -> None:
    method: dict[str, Any] = {"name": name} | ({} if name == "dsgd" else {"rank": 1})
    factory = "tests.factories:root"
    spec = run_spec(model={"name": "factory", "factory": factory}, method=method)
    with pytest.raises(RunFailedError, match=r"alpha failed: the gradient of scale in step 1 holds NaN"):
        run(spec, site_data(spec), tmp_path / "run", allowed_factories=[factory])
    assert rows_of(tmp_path / "run" / "steps.csv") == [], "nothing of it was applied"


@pytest.mark.slow
def test_unequal_sites_train_as_one_pooled_batch_clipped_after_pooling(tmp_path: Path, site_data: Data) -> None:
    """One batch of everything a step, against plain torch on all samples together."""
    training = {"dtype": "float64", "epochs": 4, "batch_size": 500, "clip": 0.05, "validation": 0.0}
    spec = run_spec(
        method={"name": "dad", "wire": "float64"},
        training=training | {"optimizer": {"name": "sgd", "lr": 0.5}},
    )
    data = site_data(spec)
    found = final_weights(run(spec, data, tmp_path / "run"))
    model = build_model(spec)
    train = [part_of(site, "train") for site in data.values()]
    inputs, labels = (torch.cat([getattr(own, name) for own in train]) for name in ("inputs", "labels"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        assert nn.utils.clip_grad_norm_(model.parameters(), 0.05) > 0.05
        optimizer.step()
    for key, value in model.state_dict().items():
        assert torch.allclose(found[key], value, rtol=0, atol=1e-12), key


@pytest.mark.slow
def test_unequal_sites_divide_by_the_squares_of_one_pooled_batch(tmp_path: Path, site_data: Data) -> None:
    """A factored second moment is that of all samples together, however they are dealt out."""
    adam = {"name": "adam", "lr": 0.01, "second_moment": "factored"}
    training = {"dtype": "float64", "epochs": 4, "batch_size": 500, "clip": 0.05, "validation": 0.0, "optimizer": adam}
    spec = run_spec(method={"name": "dad", "wire": "float64"}, training=training)
    data = site_data(spec)
    found = final_weights(run(spec, data, tmp_path / "run"))
    replica = Replica(spec)
    plan = make_plan(spec, replica.model)
    train = [part_of(site, "train") for site in data.values()]
    inputs, labels = (torch.cat([getattr(own, name) for own in train]) for name in ("inputs", "labels"))
    for step in range(1, 5):
        replica.model.zero_grad()
        nn.functional.cross_entropy(replica.model(inputs), labels).backward()
        gradients = {name: p.grad.clone() for name, p in replica.trained.items() if p.grad is not None}
        matrices = {name: gradient for name, gradient in gradients.items() if gradient.ndim > 1}
        routes = [Route(name, tuple(matrix.shape)) for name, matrix in matrices.items()]
        own = projections_of(routes, tuple(matrices.values()), derive(plan.seed, step))
        replica.apply(gradients, dict(zip(matrices, own, strict=True)))
    for key, value in replica.model.state_dict().items():
        assert torch.allclose(found[key], value, rtol=0, atol=1e-10), key


def test_the_policy_speaks_before_the_data(tmp_path: Path) -> None:
    """There are none."""
    source = {"source": {"name": "folders", "path": str(tmp_path / "gone")}, "partition": {"name": "folder"}}
    document = {"run": run_document(method={"name": "dad"}), "simulation": source | {"policy": {"min_rows": 1}}}
    with pytest.raises(PolicyError) as error:
        simulate(validate(SimulationFile, document), tmp_path / "run", quiet=True)
    assert (error.value.code, error.value.field) == ("policy-refuses", "method.name")
