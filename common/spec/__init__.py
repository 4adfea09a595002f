"""The run's specification, one file per subject.

All models are frozen and forbid unknown keys, so that a typing mistake is an error, never a default. Members of a union
differ by their field `name`, data by their `reader`.
"""

from __future__ import annotations

from rankdad.common.spec.evaluation import Holdout, KFold, LeaveOneSiteOut
from rankdad.common.spec.federation import ALONE, RESERVED, Federation
from rankdad.common.spec.method import MethodSpec
from rankdad.common.spec.run import RunSpec
from rankdad.common.spec.training import Adam, Constant, Cosine, Training

__all__ = [
    "ALONE",
    "RESERVED",
    "Adam",
    "Constant",
    "Cosine",
    "Federation",
    "Holdout",
    "KFold",
    "LeaveOneSiteOut",
    "MethodSpec",
    "RunSpec",
    "Training",
]
