"""A run against a policy: what it refuses, by code and field, and the lines that would allow it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from rankdad.common.errors import PolicyError, UserError
from rankdad.common.lowrank.factors import Factor
from rankdad.common.methods import METHODS, MethodState
from rankdad.common.models import build_model
from rankdad.common.policy import EVERYTHING, Policy
from rankdad.common.policy_checks import check_run, check_step, rows_sent
from rankdad.common.protocol.plan import make_plan
from rankdad.common.refusals import refuse_together
from rankdad.common.spec import MethodSpec, RunSpec
from tests.conftest import OPEN, SITES, run_spec
from tests.local.policies import COLUMNS, RANK_DAD, asking, check

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
    ({"min_rows": 9}, RANK_DAD, "training.batch_size", {"min_rows": 8}),
    ({"max_upload": 675}, RANK_DAD, "method", {"max_upload": 676}),
]
ALLOWED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, RANK_DAD),
    ({}, {"name": "rank-dad", "rank": 4}),  # of 8 samples it sends two rows
    ({"rows_per_rank": 8}, RANK_DAD | {"rank": 3}),  # and of a matrix that is smaller than its factors one
    (POWERSGD, {"name": "powersgd", "rank": 2}),
    (POWERSGD | {"rows_per_rank": None}, {"name": "powersgd", "rank": 16}),
    ({"rows_per_rank": None}, {"name": "dsgd"}),
    ({"rows_per_rank": None, "methods": ["top-k"]}, {"name": "top-k"}),
    *((OPEN, {"name": name}) for name in UNREDUCED),
    ({"max_rank": 2}, RANK_DAD),
    ({"rows_per_rank": 8}, RANK_DAD | {"rank": 1}),
]


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


def test_projections_are_one_of_the_rows_that_a_policy_lets_out() -> None:
    optimizer = {"name": "adam", "lr": 0.01, "second_moment": "factored"}
    for moment, most in (("elementwise", 3), ("factored", 4)):
        training = {"optimizer": optimizer | {"second_moment": moment}}
        spec = run_spec(method={"name": "rank-dad", "rank": 3}, training=training)
        assert rows_sent(spec) == most
        check({"max_rank": most, "rows_per_rank": None}, spec)
        assert refusal({"max_rank": most - 1, "rows_per_rank": None}, spec).change == {"max_rank": most}
