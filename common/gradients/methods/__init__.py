"""Methods: how a site's gradients become the gradients that all apply."""

from __future__ import annotations

from torch import nn

from rankdad.common.gradients.methods.base import Contribution, Method, MethodState
from rankdad.common.gradients.methods.dad import DadMethod
from rankdad.common.gradients.methods.dsgd import DsgdMethod
from rankdad.common.gradients.methods.edad import EdadMethod
from rankdad.common.gradients.methods.powersgd import PowerSgdMethod
from rankdad.common.gradients.methods.rank_dad import RankDadMethod
from rankdad.common.gradients.methods.top_k import TopKMethod
from rankdad.common.gradients.methods.top_rows import TopRowsMethod
from rankdad.common.gradients.routes import Route
from rankdad.common.spec import Dad, Dsgd, Edad, RunSpec, TopK, TopRows
from rankdad.common.spec import PowerSgd as PowerSgdSpec

__all__ = ["Contribution", "Method", "MethodState", "method_for"]


def method_for(spec: RunSpec, routes: tuple[Route, ...], model: nn.Module) -> Method:
    """Return the method that the spec names.

    Args:
        spec: of the run.
        routes: of the plan.
        model: of the replica; edad propagates deltas through its weights as they are at that moment.
    """
    method = spec.method
    if isinstance(method, Dsgd):
        return DsgdMethod()
    if isinstance(method, Dad):
        return DadMethod(routes)
    if isinstance(method, Edad):
        return EdadMethod(model, routes)
    if isinstance(method, TopRows):
        return TopRowsMethod(method, routes)
    if isinstance(method, TopK):
        return TopKMethod(method, routes)
    if isinstance(method, PowerSgdSpec):
        return PowerSgdMethod(method, routes, spec.seed)
    return RankDadMethod(method, routes)
