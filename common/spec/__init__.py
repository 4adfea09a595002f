"""The run's specification, one file a subject.

Every part is a frozen pydantic model that forbids unknown keys: a typing mistake is an error, never a default.
Unions are told apart by their field `name`, data by their `reader`.
"""

from __future__ import annotations

from rankdad.common.spec.evaluation import EvaluationSpec, Holdout, KFold, LeaveOneSiteOut
from rankdad.common.spec.federation import RESERVED, Federation, SiteName
from rankdad.common.spec.method import Dad, Dsgd, Edad, MethodSpec, PowerSgd, RankDad, TopRows, Wire
from rankdad.common.spec.model import ModelSpec
from rankdad.common.spec.numbers import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt
from rankdad.common.spec.preparation import Combat, Preparation
from rankdad.common.spec.run import RunSpec
from rankdad.common.spec.training import Adam, Constant, Cosine, EarlyStopping, Sgd, StepDecay, Training

__all__ = [
    "RESERVED",
    "Adam",
    "Combat",
    "Constant",
    "Cosine",
    "Dad",
    "Dsgd",
    "EarlyStopping",
    "Edad",
    "EvaluationSpec",
    "Federation",
    "Fraction",
    "Holdout",
    "KFold",
    "LeaveOneSiteOut",
    "MethodSpec",
    "ModelSpec",
    "NonNegativeFloat",
    "PositiveFloat",
    "PositiveInt",
    "PowerSgd",
    "Preparation",
    "RankDad",
    "RunSpec",
    "Sgd",
    "SiteName",
    "StepDecay",
    "TopRows",
    "Training",
    "Wire",
]
