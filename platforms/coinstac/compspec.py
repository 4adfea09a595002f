"""The description that is uploaded to COINSTAC: what to start, what people fill in, what they are shown."""

from __future__ import annotations

from typing import Any

from rankdad.common import __version__
from rankdad.common.errors import UserError
from rankdad.platforms.coinstac.fields import shown
from rankdad.platforms.coinstac.form import FormField

IMAGE = "rankdad"  # without a tag: the platform appends :latest
COMMAND = ["rankdad", "coinstac"]  # which the service of version 2 never uses: the image's own command runs
METRICS = {
    "samples": "Samples",
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


def compspec(image: str = IMAGE, repository: str = "", *, folder: bool = False) -> dict[str, Any]:
    """Return the description as JSON.

    Args:
        image: of site and aggregator, without a tag.
        repository: address of the source code.
        folder: whether members choose a folder, for volumes and pictures, in place of files.

    Raises:
        UserError: the image has a tag.
    """
    if ":" in image.rpartition("/")[2] or "@" in image:
        raise UserError(
            f"image: got {image}, expected a name without a tag: the platform appends :latest to it",
            code="image-has-tag",
            field="image",
        )
    return {
        "meta": {
            "id": "rankdad-folder" if folder else "rankdad",
            "name": "rank-dAD: federated training of neural networks" + ", data in folders" * folder,
            "description": "Trains one PyTorch model over the data of all sites. Nothing but a few rows for every "
            "layer's gradient leaves a site, and sums for the metrics.",
            "repository": repository or "none: the source code is not published",
            "version": __version__,
            "compspecVersion": 2,
        },
        "computation": {
            "type": "docker",
            "dockerImage": image,
            "command": COMMAND,
            "remote": {"type": "docker", "dockerImage": image, "command": COMMAND},
            "input": {field.variable: described(field, order) for order, field in enumerate(shown(folder=folder))},
            "output": {
                "global_metrics": _table("Global test metrics"),
                "warnings": {"label": "Global warnings", "type": "object", "items": {}},
                "site_metrics": _table("Test metrics by site"),
                "global_stats": {"label": "Figures", "type": "array"},
                "local_stats": {"label": "Figures by site", "type": "object"},
            },
            "display": [
                {
                    "type": "table",
                    "tables": [
                        {"source": "global_metrics"},
                        {"source": "warnings"},
                        {"source": "site_metrics", "subtables": "by-key"},
                    ],
                },
                {"type": "images"},
                {"type": "iframe"},
            ],
        },
    }


def described(field: FormField, order: int) -> dict[str, Any]:
    """Return how the platform draws a field."""
    drawn: dict[str, Any] = {
        "label": field.label,
        "type": field.kind,
        "source": field.source,
        "group": "Your site" if field.source == "member" else "Study",
        "order": order,
        "tooltip": field.tooltip,
        "default": field.default,
    }
    if field.choices:
        drawn["values"] = list(field.choices)
    if field.minimum is not None:
        drawn |= {"min": field.minimum, "step": 1}
    if field.extensions:
        drawn |= {"extensions": list(field.extensions), "items": list(field.extensions)}
    return drawn


def _table(label: str) -> dict[str, Any]:
    items = {name: {"label": text, "type": "number"} for name, text in METRICS.items()}
    return {"label": label, "type": "object", "items": items}
