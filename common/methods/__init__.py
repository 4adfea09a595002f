"""Methods: how a site's gradients become the gradients that all apply."""

from __future__ import annotations

from common.methods.base import Method, State, Weighted
from common.methods.dad import DadMethod
from common.methods.dsgd import DsgdMethod
from common.methods.rank_dad import RankDadMethod
from common.plan import Plan
from common.spec import Dad, Dsgd, RunSpec

__all__ = ["Method", "State", "Weighted", "method_for"]


def method_for(spec: RunSpec, plan: Plan) -> Method:
    """Return the method that the spec names."""
    if isinstance(spec.method, Dsgd):
        return DsgdMethod()
    if isinstance(spec.method, Dad):
        return DadMethod(plan.routes)
    return RankDadMethod(spec.method, plan.routes)
