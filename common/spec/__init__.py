"""The run's specification, one file a subject.

Every part is a frozen pydantic model that forbids unknown keys: a typing mistake is an error, never a default.
Unions are told apart by their field `name`, data by their `reader`.
"""

from __future__ import annotations

from rankdad.common.methods.dad import Dad
from rankdad.common.methods.dsgd import Dsgd
from rankdad.common.methods.edad import Edad
from rankdad.common.methods.local_steps import Average, LocalSteps, Nesterov, OuterAdam
from rankdad.common.methods.powersgd import PowerSgd
from rankdad.common.methods.rank_dad import RankDad
from rankdad.common.methods.top_k import TopK
from rankdad.common.numbers import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt
from rankdad.common.spec.evaluation import Holdout, KFold, LeaveOneSiteOut
from rankdad.common.spec.federation import ALONE, RESERVED, Federation, SiteName, site_name
from rankdad.common.spec.method import MethodSpec
from rankdad.common.spec.run import RunSpec
from rankdad.common.spec.training import Adam, Constant, Cosine, Training

__all__ = [
    "ALONE",
    "RESERVED",
    "Adam",
    "Average",
    "Constant",
    "Cosine",
    "Dad",
    "Dsgd",
    "Edad",
    "Federation",
    "Fraction",
    "Holdout",
    "KFold",
    "LeaveOneSiteOut",
    "LocalSteps",
    "MethodSpec",
    "Nesterov",
    "NonNegativeFloat",
    "OuterAdam",
    "PositiveFloat",
    "PositiveInt",
    "PowerSgd",
    "RankDad",
    "RunSpec",
    "SiteName",
    "TopK",
    "Training",
    "site_name",
]
