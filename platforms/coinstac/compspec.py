"""The description that is uploaded to COINSTAC: what to start, what people fill in, what they are shown."""

from __future__ import annotations

from typing import Any

from common import __version__
from platforms.coinstac.fields import FIELDS
from platforms.coinstac.form import Field

IMAGE = f"rankdad:{__version__}"
COMMAND = ["rankdad", "coinstac"]  # which the service of version 2 never uses: the image's own command runs
METRICS = {
    "samples": "Samples",
    "loss": "Loss",
    "accuracy": "Accuracy",
    "auc": "AUC",
    "auc_error": "Largest error of AUC",
}
NUMBERS = {"minimum": "min", "exclusiveMinimum": "min", "maximum": "max", "exclusiveMaximum": "max"}


def compspec(image: str = IMAGE, repository: str = "") -> dict[str, Any]:
    """Return the description as JSON.

    Args:
        image: of site and aggregator.
        repository: address of the source code.
    """
    shown = [field for field in FIELDS if not field.fixed]
    return {
        "meta": {
            "id": "rankdad",
            "name": "rank-dAD: federated training of neural networks",
            "description": "Trains one PyTorch model over the data of all sites. Nothing but a few rows of every "
            "layer's gradient leaves a site, hundreds of times fewer bytes than the gradient itself, and sums for the "
            "metrics.",
            "repository": repository or "not published",
            "version": __version__,
            "compspecVersion": 2,
        },
        "computation": {
            "type": "docker",
            "dockerImage": image,
            "command": COMMAND,
            "remote": {"type": "docker", "dockerImage": image, "command": COMMAND},
            "input": {field.variable: described(field, order) for order, field in enumerate(shown)},
            "output": {
                "global_metrics": _table("Global test metrics"),
                "site_metrics": _table("Test metrics by site"),
                "global_stats": {"label": "Figures", "type": "object"},
                "local_stats": {"label": "Figures by site", "type": "object"},
            },
            "display": [
                {
                    "type": "table",
                    "tables": [{"source": "global_metrics"}, {"source": "site_metrics", "subtables": "by-key"}],
                },
                {"type": "images"},
            ],
        },
    }


def described(field: Field, order: int) -> dict[str, Any]:
    """Return how the platform draws a field."""
    found: dict[str, Any] = {
        "label": field.label,
        "type": field.kind,
        "source": field.source,
        "group": field.group,
        "order": order,
        "tooltip": field.help,
    }
    if field.initial is not None:
        found["default"] = field.initial
    if field.choices:
        found["values"] = list(field.choices)
    if field.kind == "number":
        found |= {name: field.schema[key] for key, name in NUMBERS.items() if key in field.schema}
        found["step"] = 1 if field.schema.get("type") == "integer" else 0.000001
    if field.when is not None and len(field.when[1]) == 1:  # the platform knows equality alone
        found["conditional"] = {"variable": field.when[0], "value": field.when[1][0]}
    return found | dict(field.more or {})


def _table(label: str) -> dict[str, Any]:
    items = {name: {"label": text, "type": "number"} for name, text in METRICS.items()}
    return {"label": label, "type": "object", "items": items}
