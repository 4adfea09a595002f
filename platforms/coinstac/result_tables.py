"""Tables of results for people. The uploaded description and the results are both generated from `TABLES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rankdad.common.spec import RunSpec
from rankdad.common.spec.model import Mlp
from rankdad.common.spec.tasks import Classification
from rankdad.remote.report import narrative
from rankdad.remote.report.coefficient_tables import displayed_coefficients
from rankdad.remote.report.words import listed
from rankdad.remote.results.run_results import RunResults, class_names

Content = dict[str, Any]
METRICS = {
    "samples": "Rows tested",
    "groups": "Groups tested, such as patients",
    "loss": "Loss",
    "accuracy": "Accuracy",
    "balanced_accuracy": "Balanced accuracy",
    "auc": "AUC",
    "auc_error": "Largest error of AUC",
    "absent": "Classes without AUC",
    "f1": "F1",
    "calibration_error": "Calibration error",
    "mae": "Mean absolute error",
    "r2": "R²",
    "pearson_r": "Correlation",
}
ENDS = {"low": "lower", "high": "upper"}
MEASURES = METRICS | {
    f"{name}_{end}": f"{METRICS[name]}: {words} end of the 95 % interval"
    for name in ("auc", "accuracy", "mae", "pearson_r", "r2")
    for end, words in ENDS.items()
}
STUDY = {
    "predicted": "What is predicted",
    "outcome": "Outcome whose risk is predicted",
    "others": "Everything else",
    "classes": "Classes",
    "inputs": "Inputs",
    "training": "Training",
    "tested": "Test",
}
NAMED = "called"  # key of a member's name in figures and the report


@dataclass(frozen=True)
class ResultTable:
    """One table.

    Args:
        key: its key in the results.
        label: its title.
        content: returns its content, from a run and the warnings before the first round.
        items: labels of its rows by key; none if keys are numbers.
        by_key: whether it has a table for each member.
    """

    key: str
    label: str
    content: Callable[[RunResults, Sequence[str]], Content]
    items: Mapping[str, str] = field(default_factory=dict)
    by_key: bool = False

    def described(self) -> Content:
        """Return its description for the platform."""
        return {"label": self.label, "type": "object", "items": {key: _item(text) for key, text in self.items.items()}}

    @property
    def source(self) -> Content:
        """Its reference for the platform."""
        return {"source": self.key} | ({"subtables": "by-key"} if self.by_key else {})


def _item(label: str) -> Content:
    return {"label": label, "type": "number" if label in MEASURES.values() else "string"}


def named(row: Mapping[str, Any]) -> Content:
    """Return a row's measures that have a label, in the order of labels."""
    return {name: row[name] for name in MEASURES if row.get(name) is not None}


def studied(spec: RunSpec) -> Content:
    """Return the label, the outcome and the inputs of a run."""
    label, names = getattr(spec.data, "label", None), class_names(spec)
    inputs = getattr(spec.data, "inputs", None)
    found: Content = {"predicted": label} if isinstance(label, str) else {}
    if isinstance(spec.task, Classification) and len(names) == 2:
        column = f"{label} = " if isinstance(label, str) else ""
        found |= {"outcome": f"{column}{names[1]}", "others": f"{column}{names[0]}"}
    elif names:
        found |= {"classes": ", ".join(names)}
    return found if inputs is None else found | {"inputs": listed([str(name) for name in inputs])}


def study(run: RunResults, _: Sequence[str]) -> Content:
    """Return the label, outcome and inputs of a run, and its training and test."""
    spec = run.spec
    hidden = "-".join(map(str, spec.model.hidden)) if isinstance(spec.model, Mlp) else ""
    batches = f"steps of up to {spec.training.batch_size} rows of each member"
    found = studied(spec) | {
        "training": f"{spec.model.name} {hidden}".strip() + f", {narrative.extent(run)}, {batches}"
    }
    return found | ({"tested": narrative.tested(run)} if run.test.get("samples") else {})


def overall(run: RunResults, _: Sequence[str]) -> Content:
    """Return the pooled metrics."""
    return named(run.test)


def warned(run: RunResults, warnings: Sequence[str]) -> Content:
    """Return warnings from before the first round and about the result."""
    return numbered([*warnings, *narrative.warnings(run)])


def numbered(lines: Sequence[str]) -> Content:
    """Number lines for the platform's table; "none" without lines."""
    return {str(number): line for number, line in enumerate(lines, start=1)} or {"1": "none"}


def by_member(run: RunResults, _: Sequence[str]) -> Content:
    """Return the metrics of each member with its name in figures, as the platform shows users' names."""
    return {site: {NAMED: site, **named(row)} for site, row in run.by_site.items()}


def coefficients(run: RunResults, _: Sequence[str]) -> Content:
    """Return a linear model's coefficients, pooled and by member."""
    return dict(displayed_coefficients(run))


TABLES = (
    ResultTable("study", "Study", study, STUDY),
    ResultTable("global_metrics", "Global test metrics", overall, MEASURES),
    ResultTable("warnings", "Global warnings", warned),
    ResultTable("site_metrics", "Test metrics by site", by_member, {NAMED: "Name in figures"} | MEASURES, by_key=True),
    ResultTable("coefficients", "Coefficients of a linear model", coefficients, by_key=True),
)
