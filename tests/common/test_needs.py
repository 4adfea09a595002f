"""Every line of a policy that a run needs is found at once, with the strictest value that lets it in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankdad.common.data import read_site
from rankdad.common.errors import FewSamplesError, PolicyError
from rankdad.common.models import build_model
from rankdad.common.needs import Need, needs
from rankdad.common.policy import MinLevel, Policy
from rankdad.common.policy_checks import check_run
from rankdad.common.privacy.parts import Secret
from rankdad.common.protocol.plan import make_plan
from rankdad.common.refusals import refusals
from rankdad.local.admission import admitted, checks
from rankdad.local.privacy.assigning import PartAssigner
from tests.conftest import run_spec

EDAD: dict[str, Any] = {"name": "edad"}
RANK_DAD: dict[str, Any] = {"name": "rank-dad", "rank": 3}


def found(policy: Policy, **changes: Any) -> dict[str, Need]:
    spec = run_spec(**changes)
    plan = make_plan(spec, build_model(spec))
    return {one.line: one for one in needs(policy, lambda one: check_run(one, spec.at("alpha"), plan))}


@pytest.mark.parametrize("method", [EDAD, RANK_DAD], ids=lambda method: method["name"])
def test_each_line_has_the_strictest_value_that_lets_the_run_in(method: dict[str, Any]) -> None:
    spec = run_spec(method=method)
    plan = make_plan(spec, build_model(spec))
    asked = found(Policy(), method=method)
    least = Policy().model_copy(update={line: one.needed for line, one in asked.items()})
    check_run(least, spec.at("alpha"), plan)
    assert {"min_rows", "methods", "max_rank", "min_sites"} <= asked.keys()
    assert ("unreduced_factors" in asked) == (method is EDAD)
    assert all(one.lets_out for one in asked.values())
    ranked = [("max_rank", -1)] if method is RANK_DAD else []
    for line, stricter in (("min_rows", 1), ("min_sites", 1), *ranked):
        needed = asked[line].needed
        assert isinstance(needed, int)
        with pytest.raises(Exception, match=line):
            check_run(least.model_copy(update={line: needed + stricter}), spec.at("alpha"), plan)


def test_what_a_site_refuses_is_told_beside_what_it_allows() -> None:
    asked = found(Policy(min_rows=500, min_sites=2), method=EDAD)
    assert {line: one.code for line, one in asked.items() if one.refused} == {
        "min_rows": "policy-refuses",
        "methods": "policy-refuses",
        "rows_per_rank": "policy-refuses",
        "unreduced_factors": "policy-refuses",
    }
    assert (asked["min_sites"].refused, asked["min_sites"].here) == (False, 2)
    assert asked["min_rows"].here == 500


def test_a_line_that_holds_a_part_is_mended_by_the_number_that_a_refusal_names() -> None:
    """The next question of the mended policy ended with an AttributeError."""

    def check(policy: Policy) -> None:
        if policy.min_level.count > 2:
            raise PolicyError("data", "sets 2 apart", change={"min_level": 2}, code="sums-of-too-few")

    assert [one.code for one in refusals(check, Policy())] == ["sums-of-too-few"]
    assert Policy().mended({"min_level": 2, "max_rank": None}) == Policy(min_level=MinLevel(count=2))


@pytest.mark.parametrize(("patients", "exact"), [(60, False), (240, True)])
def test_of_a_sites_data_each_line_has_the_strictest_value_over_all_folds_sums_and_tests(
    tmp_path: Path, patients: int, exact: bool
) -> None:
    """A policy that lets nothing out evaluates nothing either, so that tests asked for nothing; nor did exact sums."""
    rng = np.random.default_rng(0)
    rows = [f"{a:.2f},{b:.2f},{'ab'[int(a + b > 0)]}" for a, b in rng.normal(size=(patients, 2))]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,ill", *rows]))
    data = {"reader": "csv", "file": "t.csv", "features": ["a", "b"], "label": "ill", "values": ["a", "b"]}
    spec = run_spec(
        task={"name": "classification", "classes": 2},
        data=data,
        model={"name": "linear"},
        evaluation={"name": "k-fold", "folds": 5},
        training={"solver": "auto", "batch_size": 1000},
    )
    plan = make_plan(spec, build_model(spec))
    read = read_site(spec, tmp_path, 0, assigner=PartAssigner(spec, Secret(bytes(32)), 8))
    own = checks(spec, plan, read)
    asked = {one.line: one for one in needs(Policy(), lambda one: check_run(one, spec, plan), *own)}
    tested = [len(split.test) for split in read.splits if len(split.test)]
    few, per_rank = asked["min_rows"].needed, asked["rows_per_rank"].needed
    assert isinstance(few, int)
    assert isinstance(per_rank, int)
    assert few <= min(tested)
    assert not asked["min_rows"].refused
    lines = {line: one.needed for line, one in asked.items()}
    assert not [one.code for check in own for one in refusals(check, Policy().mended(lines))]
    assert asked["rows_per_rank"].field == "training.solver"
    stricter = Policy().mended(lines | {"rows_per_rank": per_rank + 1})
    assert [one.code for check in own for one in refusals(check, stricter)] == ["exact-solver-not-allowed"]
    code = "" if exact else "exact-solver-not-allowed"
    assert (asked["rows_per_rank"].refused, asked["rows_per_rank"].code) == (False, code)


@pytest.mark.parametrize("stratified", [False, True])
def test_a_refusal_says_what_the_owner_can_change_before_it_names_a_line_of_the_policy(
    tmp_path: Path, stratified: bool
) -> None:
    """It advised the hospital to let out sums of two rows, where stratified folds hold out more of a class."""
    rows = [f"{row},{row % 7},{'ab'[row % 7 == 0]}" for row in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["k,a,ill", *rows]))
    data = {"reader": "csv", "file": "t.csv", "key": "k", "features": ["a"], "label": "ill", "values": ["a", "b"]}
    spec = run_spec(
        task={"name": "classification", "classes": 2},
        data=data,
        evaluation={"name": "k-fold", "folds": 5, "repeats": 2, "references": ["linear"], "stratified": stratified},
        training={"batch_size": 1000},
    )
    plan, policy = make_plan(spec, build_model(spec)), Policy(keyed_folds=True, rows_per_rank=None)
    with pytest.raises(FewSamplesError) as refused:
        admitted(policy, spec, plan, read_site(spec, tmp_path, 0))
    assert refused.value.code == "sums-of-too-few"
    advice = str(refused.value)
    assert ('"stratified": true' in advice) == (not stratified)
    assert 0 < advice.index("fewer folds") < advice.index('"min_level"')
