"""A site's policy: what it refuses, before which data are read, and who is told."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from rankdad.common.data import Samples, SiteData, split_samples
from rankdad.common.data.folds import Split
from rankdad.common.data.reading import Reading
from rankdad.common.documents import validate
from rankdad.common.errors import DataError, PolicyError, SpecError, UserError
from rankdad.common.lowrank.factors import Factor
from rankdad.common.methods import METHODS, MethodState
from rankdad.common.models import build_model
from rankdad.common.needs import Need
from rankdad.common.policy import EVERYTHING, Policy
from rankdad.common.policy_checks import check_run, check_step, rows_sent
from rankdad.common.protocol.codec import unpack
from rankdad.common.protocol.messages import Failure
from rankdad.common.protocol.plan import make_plan
from rankdad.common.protocol.versions import OUR_VERSION
from rankdad.common.refusals import refuse_together
from rankdad.common.run.batches import drawn_sizes
from rankdad.common.spec import MethodSpec, RunSpec
from rankdad.local.admission import admitted
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.running import run_site
from rankdad.local.taking_part import check_site, permitted
from tests.conftest import OPEN, SITES, run_spec, write_site
from tests.local.test_http import Server
from tests.local.test_http import server as server

RANK_DAD = {"name": "rank-dad", "rank": 2}
UNREDUCED = [name for name, options in METHODS.items() if options.sends_rows_as_they_are]
POWERSGD = {"methods": ["powersgd"]}
UNREDUCED_TOO = {"unreduced_factors": True}
DEFAULT = ["dsgd", "rank-dad"]
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str, dict[str, Any]]] = [  # with the change that would allow it
    ({}, {"name": "dsgd"}, "method.name", {"rows_per_rank": 1}),
    *(
        ({}, {"name": own}, "method.name", {"methods": [*DEFAULT, own], "rows_per_rank": None, **UNREDUCED_TOO})
        for own in UNREDUCED
    ),
    (OPEN | {"unreduced_factors": False}, {"name": "dad"}, "method.name", UNREDUCED_TOO),
    (OPEN | {"methods": ["rank-dad"]}, {"name": "dsgd"}, "method.name", {"methods": ["rank-dad", "dsgd"]}),
    ({"methods": []}, RANK_DAD, "method.name", {"methods": ["rank-dad"]}),
    ({"max_rank": 2}, RANK_DAD | {"rank": 3}, "method.rank", {"max_rank": 3}),
    ({}, {"name": "top-k"}, "method.name", {"methods": [*DEFAULT, "top-k"], "rows_per_rank": None}),
    ({}, {"name": "powersgd", "rank": 2}, "method.name", {"methods": [*DEFAULT, "powersgd"]}),
    (POWERSGD | {"max_rank": 2}, {"name": "powersgd", "rank": 3}, "method.rank", {"max_rank": 3}),
    ({"max_rank": 2}, {"name": "dsgd"}, "method.name", {"max_rank": 8}),
    ({"rows_per_rank": 9}, RANK_DAD, "method.rank", {"rows_per_rank": 8}),
    (POWERSGD, {"name": "powersgd", "rank": 3}, "method.rank", {"rows_per_rank": 2}),
    ({"rows_per_rank": 8}, RANK_DAD | {"rank": 3}, "method.rank", {"rows_per_rank": 4}),
    ({"min_rows": 9}, RANK_DAD, "training.batch_size", {"min_rows": 8}),
    ({"max_upload": 675}, RANK_DAD, "method", {"max_upload": 676}),
]
ALLOWED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, RANK_DAD),
    ({}, {"name": "rank-dad", "rank": 4}),  # of 8 samples it sends two rows
    (POWERSGD, {"name": "powersgd", "rank": 2}),
    (POWERSGD | {"rows_per_rank": None}, {"name": "powersgd", "rank": 16}),
    ({"rows_per_rank": None}, {"name": "dsgd"}),
    ({"rows_per_rank": None, "methods": ["top-k"]}, {"name": "top-k"}),
    *((OPEN, {"name": name}) for name in UNREDUCED),
    ({"max_rank": 2}, RANK_DAD),
    ({"rows_per_rank": 8}, RANK_DAD | {"rank": 1}),
]


def check(policy: dict[str, Any], spec: RunSpec) -> None:
    check_run(validate(Policy, policy), spec, make_plan(spec, build_model(spec)))


def refusal(policy: dict[str, Any], spec: RunSpec) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        check(policy, spec)
    return caught.value


def test_whole_gradients_of_a_linear_model_are_no_larger_than_its_rank() -> None:
    """The default policy lets out what dsgd sends of a model whose gradients have a rank of 2."""
    spec = run_spec(model={"name": "linear"}, task={"name": "classification", "classes": 2})
    assert spec.method.name == "dsgd"
    check({"max_rank": 1}, spec)


def test_units_of_a_layer_that_is_sent_whole_are_at_most_half_the_samples() -> None:
    """However few its columns are: units are told apart by the patients behind them, and 30 are too many of 32."""
    spec = run_spec(model={"name": "mlp", "hidden": [30]}, method={"name": "dsgd"})
    plan = make_plan(spec, build_model(spec))
    check_step(Policy(), spec, plan, 60)
    for samples, people in ((32, None), (60, 40)):
        with pytest.raises(PolicyError) as caught:
            check_step(Policy(), spec, plan, samples, people)
        assert (caught.value.field, list(caught.value.change)) == ("method.name", ["rows_per_rank"])


def test_a_policy_knows_every_method() -> None:
    names = {get_args(part.model_fields["name"].annotation)[0] for part in get_args(MethodSpec)}
    assert names == set(METHODS)


@pytest.mark.parametrize(("policy", "method", "field", "change"), REFUSED)
def test_what_asks_for_more_is_refused_with_the_lines_that_would_allow_it(
    policy: dict[str, Any], method: dict[str, Any], field: str, change: dict[str, Any]
) -> None:
    refused = refusal(policy, run_spec(method=method))
    assert (refused.code, refused.field, refused.change) == ("policy-refuses", field, change)
    assert all(line in str(refused) for line in change)
    if "max_rank" not in change:  # more rows than that, another line refuses
        check(policy | change, run_spec(method=method))


@pytest.mark.parametrize(("policy", "method"), ALLOWED)
def test_what_keeps_within_the_limits_is_allowed(policy: dict[str, Any], method: dict[str, Any]) -> None:
    check(policy, run_spec(method=method))


def test_every_line_of_every_site_that_refuses_is_told_at_once() -> None:
    spec = run_spec(method={"name": "top-k"})
    plan = make_plan(spec, build_model(spec))
    policies = {"alpha": Policy(max_upload=1), "beta": Policy(methods=("top-k",)), "gamma": EVERYTHING}
    with pytest.raises(PolicyError) as caught:
        refuse_together({site: lambda policy: check_run(policy, spec, plan) for site in policies}, policies)
    told = [(line.partition(": ")[0], re.findall(r'"(\w+)":', line)) for line in caught.value.quoted]
    assert told == [("alpha", ["methods", "rows_per_rank"]), ("alpha", ["max_upload"]), ("beta", ["rows_per_rank"])]
    assert (caught.value.code, caught.value.field, caught.value.site) == ("policy-refuses", "method.name", "alpha")


ENDED = {"alpha": {"epochs": 1}, "beta": {"epochs": 1}}
ONE_OUT = {"evaluation": {"name": "leave-one-site-out"}}


@pytest.mark.parametrize(
    ("sites", "federation", "others", "field"),
    [
        (1, {}, {}, "federation.sites"),
        (3, {"quorum": 1}, {}, "federation.quorum"),
        (3, {"quorum": 0.3}, {}, "federation.quorum"),
        (3, {"overrides": ENDED}, {}, "federation.overrides"),
        (3, {"quorum": 2, "overrides": {"alpha": {"epochs": 1}}}, {}, "federation.overrides"),
        (3, {"regions": {"north": ["alpha"]}}, {}, "federation.regions"),
        (3, {}, {"training": {"batches": "full"}}, "training.batches"),
        (2, {}, ONE_OUT, "evaluation.name"),
        (3, {"quorum": 2}, ONE_OUT, "evaluation.name"),
    ],
)
def test_a_run_that_may_fall_below_the_fewest_sites_is_refused(
    sites: int, federation: dict[str, Any], others: dict[str, Any], field: str
) -> None:
    """S11 and S12."""
    spec = run_spec(federation={"sites": SITES[:sites]} | federation, method=RANK_DAD, **others)
    assert refused_as({}, spec) == ("too-few-sites", field)
    assert refusal({}, spec).change == {"min_sites": 1}


@pytest.mark.parametrize(
    ("fewest", "federation", "others"),
    [
        (3, {}, {}),
        (2, {"quorum": 2, "staleness": 1}, {}),  # no quorum counts what comes late
        (2, {"regions": {"north": ["alpha", "beta"]}}, {}),
        (2, {}, ONE_OUT),
        (2, {"overrides": {"alpha": {"epochs": 1}}}, {}),
    ],
)
def test_a_run_that_keeps_to_the_fewest_sites_is_allowed(
    fewest: int, federation: dict[str, Any], others: dict[str, Any]
) -> None:
    spec = run_spec(federation={"sites": SITES} | federation, method=RANK_DAD, **others)
    check({"min_sites": fewest}, spec)
    refusal({"min_sites": fewest + 1}, spec)


TABLE: dict[str, Any] = {
    "reader": "csv",
    "file": "visits.csv",
    "covariates": ["people.csv"],
    "features": ["age", "sex", "seen", "a[*]b"],
    "categorical": {"sex": ["f", "m"], "ward": ["1", "2"]},
    "dates": {"seen": {"since": "born"}},
    "label": "ill",
    "values": ["0", "1"],
    "key": "visit",
    "group": "patient",
}
COLUMNS = ["ill", "patient", "age", "sex", "seen", "a[*]b", "visit", "born", "ward"]


def asking(**data: Any) -> RunSpec:
    """A run of two tables that reads columns for whatever a specification can name them for."""
    return run_spec(
        task={"name": "classification", "classes": 2},
        model={"name": "linear"},
        data=TABLE | data,
        preparation={"harmonise": {"keep": ["ward"]}},
    )


def refused_as(policy: dict[str, Any], spec: RunSpec) -> tuple[str, str]:
    """Return code and field of a refusal, which goes once the lines are changed as it says."""
    refused = refusal(policy, spec)
    check(policy | refused.change, spec)
    return refused.code, refused.field or ""


def test_a_run_reads_listed_columns_alone_whatever_it_reads_them_for() -> None:
    check({"columns": COLUMNS}, asking())
    check({"columns": ["*"]}, asking())
    fields = {
        "ill": "data.label",
        "patient": "data.group",
        "visit": "data.key",
        "born": "data.dates",
        "ward": "preparation.harmonise.keep",
    }
    for column in COLUMNS:
        others = [name for name in COLUMNS if name != column]
        expected = ("column-not-allowed", fields.get(column, "data.features"))
        assert refused_as({"columns": others}, asking()) == expected
    told = refusal({"columns": ["age", "secret"], "files": ["*"]}, asking()).public_message
    assert "patient" in told
    assert "secret" not in told, "others hear only of what the run names"


def test_a_run_reads_listed_files_alone_and_a_pattern_only_if_that_is_listed() -> None:
    for listed in (["visits.csv", "people.csv"], ["*.csv"]):
        check({"files": listed}, asking())
    assert refused_as({"files": ["visits.csv"]}, asking()) == ("file-not-allowed", "data.covariates")
    assert refused_as({"files": ["v*", "people.csv"]}, asking(file="vis*")) == ("file-not-allowed", "data.file")
    check({"files": ["vis*", "people.csv"]}, asking(file="vis*"))
    assert refused_as({"files": ["*.csv"]}, run_spec(method=RANK_DAD)) == ("file-not-allowed", "data.file")


@pytest.mark.parametrize("group", [None, "visit"])
def test_what_a_person_is_belongs_to_the_site(group: str | None) -> None:
    """S10."""
    check({"group": "patient"}, asking())
    others = {"group": group, "key": None, "covariates": None}
    assert refused_as({"group": "patient"}, asking(**others)) == ("group-differs", "data.group")
    assert refused_as({"group": "patient"}, run_spec(method=RANK_DAD)) == ("group-differs", "data.group")


def data_of(*sizes: int) -> SiteData:
    """So many samples to train on, to validate and to test."""
    samples = Samples(torch.ones(sum(sizes), 6), torch.zeros(sum(sizes)).long())
    return SiteData(samples, (Split(*torch.arange(sum(sizes)).split(list(sizes))),))


def admit(policy: dict[str, Any], data: SiteData) -> SiteData:
    spec = run_spec(method=RANK_DAD)
    return admitted(validate(Policy, policy), spec, make_plan(spec, build_model(spec)), data)


def admission(policy: dict[str, Any], data: SiteData) -> tuple[str, str, dict[str, Any]]:
    with pytest.raises(PolicyError) as caught:
        admit(policy, data)
    return caught.value.code, caught.value.field, caught.value.change


def test_an_epochs_smallest_step_decides() -> None:
    """33 samples in steps of at most 8 are 7, 7, 7, 6 and 6."""
    data = data_of(33, 0, 0)
    admit({"min_rows": 6}, data)
    few = ("steps-of-too-few", "training.batch_size", {"min_rows": 6})
    assert admission({"min_rows": 7}, data) == few
    assert admission({"min_rows": 1, "rows_per_rank": 7}, data)[1:] == ("method.rank", {"rows_per_rank": 6})
    check({"min_rows": 16}, run_spec(method=RANK_DAD, training={"accumulate": 2}))  # two batches are one step
    rows = [Policy(rows_per_rank=each).rank(samples) for each, samples in ((None, 1), (4, 33), (4, 3), (1, 0))]
    assert rows == [None, 8, 0, 0]


def test_a_split_that_is_too_small_is_not_evaluated() -> None:
    data = admit({"min_rows": 5}, data_of(30, 5, 4))
    (split,) = data.splits
    assert [len(rows) for rows in (split.train, split.validation, split.test)] == [30, 5, 0]
    assert data.fewest == 5


def grouped(data: SiteData, rows: int) -> SiteData:
    """Of so many rows each patient."""
    return replace(data, groups=torch.arange(len(data.samples)) // rows)


def test_a_policy_counts_patients_where_rows_have_one() -> None:
    """32 rows in 4 steps of 8 are of 8 patients with 4 rows each; with 8 rows each a patient is in every step twice."""
    admit({"min_rows": 8}, grouped(data_of(32, 0, 0), 4))
    assert admission({"min_rows": 5}, grouped(data_of(32, 0, 0), 8))[2] == {"min_rows": 4}
    data = admit({"min_rows": 3, "rows_per_rank": None}, grouped(data_of(64, 12, 8), 4))
    (split,) = data.splits
    assert [len(split.validation), len(split.test)] == [12, 0], "three patients, and two"


@pytest.mark.parametrize("groups", [1, 8, 30, 64])
@pytest.mark.parametrize(("batches", "largest"), [(4, 16), (7, 12), (1, 64), (9, 8), (11, 20), (40, 16), (40, 50)])
def test_batches_have_as_many_patients_as_the_policy_was_told(groups: int, batches: int, largest: int) -> None:
    generator = torch.Generator().manual_seed(0)
    data = data_of(64, 0, 0)
    data = replace(data, groups=torch.randint(0, groups, (64,), generator=generator))
    sites = {"sites": ["alpha", "beta"]}
    spec = run_spec(federation=sites, training={"batch_size": largest, "batches": "even"})
    sizes = drawn_sizes(spec, (64, batches * largest))[0]
    drawn = list(data.drawn(0, sizes, generator))
    assert [len(rows) for rows in drawn] == sizes
    assert len(drawn) == batches
    if sum(sizes) == 64:
        assert torch.cat(drawn).sort().values.tolist() == list(range(64)), "once each"
    else:
        assert set(sizes) == {min(largest, 32)}
        assert len({tuple(rows.sort().values.tolist()) for rows in drawn}) == batches, "no set twice"
    assert all(len(rows.unique()) == len(rows) for rows in drawn)
    assert data.groups is not None
    assert min(len(data.groups[rows].unique()) for rows in drawn) >= data.fewest_people(0, sizes)


def test_sums_of_many_repeats_are_refused_where_they_would_tell_samples() -> None:
    """10 repeats of 3 folds are 21 equations: for 90 samples, 4 each."""
    spec = run_spec(method=RANK_DAD, evaluation={"name": "k-fold", "folds": 3, "repeats": 10})
    data = split_samples(spec, Reading("x", np.ones((90, 6), np.float32), np.arange(90) % 3), 0)
    admitted(validate(Policy, {"min_rows": 4}), spec, make_plan(spec, build_model(spec)), data)
    with pytest.raises(PolicyError) as caught:
        admitted(validate(Policy, {"min_rows": 5}), spec, make_plan(spec, build_model(spec)), data)
    assert (caught.value.field, caught.value.change) == ("evaluation.repeats", {"min_rows": 4})


@pytest.mark.parametrize(
    ("columns", "told"),
    [([0.0, 1.0, float("nan"), 1.0], True), ([2.0, 2.0, 2.0, 2.0], False), ([0.0, 1.0, 2.0, float("nan")], False)],
)
def test_a_site_is_told_what_small_steps_tell_of_columns_of_two_values(columns: list[float], told: bool) -> None:
    spec = run_spec(method=RANK_DAD | {"rank": 4}, data={"shape": [40]})
    inputs = torch.randn(40, 40, generator=torch.Generator().manual_seed(0))
    inputs[:, :2] = torch.tensor(columns).repeat(10)[:, None]
    rows = torch.arange(40)
    data = SiteData(Samples(inputs, rows % 3), (Split(rows[:16], rows[16:28], rows[28:]),))
    rank, *binary = admitted(Policy(), spec, make_plan(spec, build_model(spec)), data).notes
    assert [rank.partition(":")[0], len(binary)] == ["method", told]


@pytest.mark.parametrize("reducer", ["auto", "block", "exact", "spi"])
def test_rank_dad_needs_no_permission_since_it_never_sends_samples_rows(reducer: str) -> None:
    """Three samples would fit into four rows as they are. What is sent is the same if they are mixed."""
    method = RANK_DAD | {"rank": 4, "reducer": reducer}
    spec = run_spec(model={"name": "mlp", "hidden": [40]}, data={"shape": [30]}, method=method)
    model = build_model(spec)
    routes = tuple(route for route in make_plan(spec, model).routes if route.up is not None)
    generator = torch.Generator().manual_seed(0)
    mixed = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))[0]
    sent = []
    shapes = [route.matrix for route in routes]
    drawn = [[torch.randn(3, n, generator=generator, dtype=torch.float64) for n in shape] for shape in shapes]
    for mix in (torch.eye(3, dtype=torch.float64), mixed):
        gradients = tuple(Factor(mix @ delta, mix @ activation) for delta, activation in drawn)
        sent.append(next(spec.method.method(routes, model, spec.seed).step(gradients, 1.0, MethodState(), 0)))
    assert routes
    for one, other in zip(*sent, strict=True):
        assert isinstance(one, Factor)
        assert isinstance(other, Factor)
        torch.testing.assert_close((one.activation * other.activation).sum(dim=1).abs(), torch.ones(3).double())


def test_lines_that_an_older_policy_does_not_have_are_todays_defaults(tmp_path: Path) -> None:
    """As the first version wrote it; what it allowed and today's does not stays allowed, since it is said there."""
    older = {"min_rows": 10, "rows_per_rank": 4, "max_rank": None, "methods": ["dsgd", "rank-dad", "powersgd"]}
    (tmp_path / "policy.json").write_text(json.dumps(older))
    policy = Policy.read(str(tmp_path / "policy.json"))
    assert set(policy.others()) == {"min_rows", "methods"}
    assert policy.min_level.count == 3
    (tmp_path / "policy.json").write_text(json.dumps(older | {"min_samples": 8}))
    with pytest.raises(UserError) as raised:
        Policy.read(str(tmp_path / "policy.json"))
    assert (raised.value.code, raised.value.field) == ("field-unknown", "min_samples")


def site(tmp_path: Path, server: Server, spec: RunSpec, policy: dict[str, Any]) -> SiteConfig:
    """A site whose aggregator offers a run and takes one contribution."""
    offered = {**OUR_VERSION, "run": spec.model_dump(mode="json"), "id": "0" * 16}
    server.script = [(200, json.dumps(offered).encode()), (200, b"")]
    (tmp_path / "policy.json").write_text(json.dumps(policy))
    address = f"http://127.0.0.1:{server.server_port}"
    document = {"name": "alpha", "aggregator": address, "data": "data", "output": "out", "policy": "policy.json"}
    (tmp_path / "alpha.json").write_text(json.dumps(document))
    return SiteConfig.read(tmp_path / "alpha.json")


def test_a_site_is_told_all_lines_that_refuse_before_it_reads_any_data(tmp_path: Path, server: Server) -> None:
    lines: dict[str, Any] = {"columns": ["age"], "files": [], "group": "family", "min_sites": 4, "methods": []}
    with pytest.raises(PolicyError) as caught:
        check_site(site(tmp_path, server, asking(), lines), asking())
    told = [line for said in caught.value.quoted for line in lines if f"({line})" in said]
    assert told == ["min_sites", "files", "columns", "group", "methods"]


def test_a_check_looks_whether_results_can_be_written(tmp_path: Path, server: Server) -> None:
    config, blocked = site(tmp_path, server, asking(), {}), tmp_path / "file" / "out"
    blocked.parent.write_text("")
    with pytest.raises(UserError) as error:
        check_site(config.model_copy(update={"output": str(blocked)}), asking())
    assert (error.value.code, error.value.field) == ("cannot-write", "output")


def test_the_policy_speaks_before_the_data_and_to_the_aggregator(tmp_path: Path, server: Server) -> None:
    """There are no data here at all."""
    spec = run_spec(method={"name": "dad"})
    with pytest.raises(PolicyError) as error:
        run_site(site(tmp_path, server, spec, {}))
    assert error.value.exit_code == 2
    told = unpack(server.bodies[0], make_plan(spec, build_model(spec)), up=True).body
    assert told == Failure(
        site="alpha", reason=str(error.value), code="policy-refuses", field="method.name", final=False
    )


def test_the_policy_speaks_before_the_weights_to_begin_with(tmp_path: Path, server: Server) -> None:
    """There is no such file."""
    pretrained = {"file": "gone.safetensors", "sha256": "0" * 64}
    spec = run_spec(method={"name": "dad"}, model={"name": "mlp", "hidden": [4], "pretrained": pretrained})
    with pytest.raises(PolicyError) as error:
        run_site(site(tmp_path, server, spec, {"pretrained": None}))
    assert (error.value.code, error.value.field) == ("policy-refuses", "method.name")


@pytest.mark.parametrize("listed", [[], ["1" * 64]])
def test_weights_that_no_policy_lists_are_refused_before_they_are_read(
    tmp_path: Path, server: Server, listed: list[str]
) -> None:
    """There is no such file; a policy that lists its digest gets as far as looking for it."""
    digest = "0" * 64
    spec = run_spec(
        method=RANK_DAD,
        model={"name": "mlp", "hidden": [4], "pretrained": {"file": "gone.safetensors", "sha256": digest}},
    )
    with pytest.raises(PolicyError) as error:
        run_site(site(tmp_path, server, spec, {"pretrained": listed}))
    assert (error.value.code, error.value.field) == ("weights-not-listed", "model.pretrained.sha256")
    assert error.value.change == {"pretrained": [*listed, digest]}
    with pytest.raises(SpecError) as found:
        check_site(site(tmp_path, server, spec, error.value.change), spec)
    assert found.value.code == "weights-missing"


def test_a_site_and_its_aggregator_begin_with_the_same_weights_of_a_file(tmp_path: Path, server: Server) -> None:
    """The site's plan named the digest of random ones: no such run could begin."""
    alone = run_spec(method=RANK_DAD, model={"name": "mlp", "hidden": [4]})
    path = tmp_path / "w.safetensors"
    save_file(build_model(run_spec(method=RANK_DAD, model={"name": "mlp", "hidden": [4]}, seed=7)).state_dict(), path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    model = alone.model.model_dump() | {"pretrained": {"file": path.name, "sha256": digest}}
    spec = run_spec(method=RANK_DAD, model=model)
    config = site(tmp_path, server, spec, {"pretrained": [digest]}).model_copy(update={"weights": str(tmp_path)})
    _, _, plan = permitted(config, spec)
    assert plan.sha256() == make_plan(spec, build_model(spec, weights=tmp_path)).sha256()


def test_refused_runs_count_until_an_owner_has_had_enough(tmp_path: Path, server: Server) -> None:
    """An aggregator may give two runs one number: the second counts, too; one that comes back does not."""
    codes = list[str]()
    for lr in (0.1, 0.1, 0.2, 0.3):
        spec = run_spec(method={"name": "dad"}, training={"optimizer": {"name": "sgd", "lr": lr}})
        with pytest.raises(PolicyError) as error:
            run_site(site(tmp_path, server, spec, {"runs_per_day": 2}))
        codes.append(error.value.code)
    assert codes == ["policy-refuses"] * 3 + ["too-many-runs"]


def test_the_aggregator_is_not_told_how_few_samples_there_are(tmp_path: Path, server: Server) -> None:
    spec = run_spec(method=RANK_DAD)
    write_site(tmp_path / "data", 10, 0)
    with pytest.raises(PolicyError, match="7"):
        run_site(site(tmp_path, server, spec, {"min_rows": 8, "keyed_folds": True}))
    told = unpack(server.bodies[0], make_plan(spec, build_model(spec)), up=True).body
    assert isinstance(told, Failure)
    assert (told.site, told.final) == ("alpha", False)
    assert (told.code, told.field) == ("steps-of-too-few", "training.batch_size")
    assert not re.search(r"\d", told.reason)


@pytest.mark.slow
def test_a_check_says_what_the_policy_makes_of_the_run(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    spec = run_spec(method=RANK_DAD)
    with pytest.raises(DataError):  # nothing in the policy's way
        check_site(site(tmp_path, server, spec, {}))
    write_site(tmp_path / "data", 34, 0)
    asked = list[Need]()
    with pytest.raises(PolicyError):
        check_site(site(tmp_path, server, spec, {"max_rank": 1}), show=asked.extend)
    assert [(one.line, one.needed, one.here) for one in asked if one.refused] == [("max_rank", 2, 1)]
    assert {"min_rows", "methods", "min_sites"} < {one.line for one in asked}
    check_site(site(tmp_path, server, spec, {"min_rows": 7, "max_rank": 2, "rows_per_rank": 1, "keyed_folds": True}))
    assert "22 samples to train on" in capsys.readouterr().out
    assert "validation: 5 samples are left out" in caplog.text
    assert not server.bodies


def test_projections_are_one_of_the_rows_that_a_policy_lets_out() -> None:
    optimizer = {"name": "adam", "lr": 0.01, "second_moment": "factored"}
    for moment, most in (("elementwise", 3), ("factored", 4)):
        training = {"optimizer": optimizer | {"second_moment": moment}}
        spec = run_spec(method={"name": "rank-dad", "rank": 3}, training=training)
        assert rows_sent(spec) == most
        check({"max_rank": most, "rows_per_rank": None}, spec)
        assert refusal({"max_rank": most - 1, "rows_per_rank": None}, spec).change == {"max_rank": most}


def test_the_first_remedy_is_enough_where_a_later_check_needs_more_of_the_same_line(tmp_path: Path) -> None:
    """`rows_per_rank` 2 was to be 1, which the next check refused, and so on."""
    model = {"name": "mlp", "hidden": [64, 64]}
    spec = run_spec(model=model, method={"name": "dsgd"}, data={"shape": [12]}, training={"batch_size": 50})
    generator = np.random.default_rng(0)
    reading = Reading("x", generator.normal(size=(150, 12)).astype(np.float32), generator.integers(0, 3, 150))
    data, plan, policy = split_samples(spec, reading, 0), make_plan(spec, build_model(spec)), Policy(rows_per_rank=2)

    def admits(own: Policy) -> None:
        admitted(own, spec, plan, data)

    with pytest.raises(PolicyError) as caught:
        admits(policy)
    with pytest.raises(PolicyError, match="model"):
        admits(policy.mended(caught.value.change))
    with pytest.raises(PolicyError) as caught:
        refuse_together({"alpha": admits}, {"alpha": policy})
    admits(policy.mended(caught.value.change))
    assert json.dumps(caught.value.change["rows_per_rank"]) in str(caught.value)
