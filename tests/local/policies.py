"""A policy's checks of a run, and a run that asks for columns of two tables."""

from __future__ import annotations

from typing import Any

from rankdad.common.documents import validate
from rankdad.common.models import build_model
from rankdad.common.policy import Policy
from rankdad.common.policy_checks import check_run
from rankdad.common.protocol.plan import make_plan
from rankdad.common.spec import RunSpec
from tests.conftest import run_spec

RANK_DAD = {"name": "rank-dad", "rank": 2}


def check(policy: dict[str, Any], spec: RunSpec) -> None:
    check_run(validate(Policy, policy), spec, make_plan(spec, build_model(spec)))


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
