"""The description to upload to COINSTAC: image, form and outputs."""

from __future__ import annotations

from typing import Any

from rankdad.common import __version__
from rankdad.common.errors import UserError
from rankdad.platforms.coinstac.fields import shown
from rankdad.platforms.coinstac.form import FormField
from rankdad.platforms.coinstac.result_tables import TABLES

IMAGE = "rankdad"  # without a tag: the platform appends :latest
COMMAND = ["rankdad", "coinstac"]  # unused by version 2, which runs the image's own command


def compspec(image: str = IMAGE, repository: str = "", *, folder: bool = False) -> dict[str, Any]:
    """Return the description as JSON.

    Args:
        image: image of sites and aggregator, without a tag.
        repository: address of the source code.
        folder: whether members choose a folder, for volumes and pictures, instead of files.

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
            "description": "Trains one PyTorch model over the data of all sites. Only a few rows for every "
            "layer's gradient, and sums for the metrics, leave a site.",
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
                **{table.key: table.described() for table in TABLES},
                "global_stats": {"label": "Figures", "type": "array"},
                "local_stats": {"label": "Figures by site", "type": "object"},
            },
            "display": [
                {"type": "table", "tables": [table.source for table in TABLES]},
                {"type": "images"},
                {"type": "iframe"},
            ],
        },
    }


def described(field: FormField, order: int) -> dict[str, Any]:
    """Return a field's description for the platform."""
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
    if field.step is not None:
        drawn |= {"min": 0, "step": field.step}
    if field.extensions:
        drawn |= {"extensions": list(field.extensions), "items": list(field.extensions)}
    return drawn
