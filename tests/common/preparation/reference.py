"""scikit-learn's model of a task, with the penalty and the preparation of ours."""

from __future__ import annotations

from typing import Any

from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from rankdad.common.spec.tasks import Regression, TaskSpec


def sklearn_model(task: TaskSpec) -> Any:
    if isinstance(task, Regression):
        return make_pipeline(StandardScaler(), Ridge(alpha=1.0))
    return make_pipeline(StandardScaler(), LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000))
