"""Batch size and number of epochs, such that small members do not shorten training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rankdad.platforms.coinstac.table_profile import Profile

ROWS = 32  # rows of the largest member in a step
SPARE = 1.3  # margin over the smallest member's required rows in a step, as splits are not exact
MAX_EPOCHS = 1_000_000


def set_pace(training: dict[str, Any], profiles: Sequence[Profile], evaluation: str) -> int | None:
    """Set the batch size of a draft without one, and scale epochs to keep the number of steps.

    Each member's share of a step must have the rows that its policy requires, so a small member enlarges steps and
    reduces their number in an epoch. The learning rate suits the number of steps with `ROWS` rows.

    Args:
        training: the draft's training; changed in place.
        profiles: profiles of all members' tables.
        evaluation: name of the evaluation.

    Returns:
        Index of the member that enlarges steps; None if none does.
    """
    if "batch_size" in training:  # set by the owner, like the epochs
        return None
    share = 0.85 * (1.0 if evaluation == "leave-one-site-out" else 0.8)  # training share of the rows
    largest = max(1.0, *(share * profile.rows for profile in profiles))
    possible = [share * profile.rows / (SPARE * profile.min_rows) for profile in profiles]
    wanted = math.ceil(largest / ROWS)
    steps = max(1, min(wanted, math.floor(min(possible))))
    training["batch_size"] = math.ceil(largest / steps)
    training["epochs"] = min(MAX_EPOCHS, -(-training["epochs"] * wanted // steps))
    if stopping := training.get("early_stopping"):
        stopping["patience"] = min(MAX_EPOCHS, -(-stopping["patience"] * wanted // steps))
    return None if steps == wanted else possible.index(min(possible))


def may_be(training: Mapping[str, Any], opened: Mapping[str, Any]) -> bool:
    """Return whether a run's batches and epochs are possible results of `set_pace`, for any tables of other members.

    Args:
        training: the draft's training.
        opened: the run's training.
    """
    most = 1 if "batch_size" in training else -(-opened["batch_size"] // ROWS)
    pairs = [(training["epochs"], opened["epochs"])]
    if stopping := training.get("early_stopping"):
        pairs.append((stopping["patience"], (opened["early_stopping"] or {}).get("patience", 0)))
    return all(asked <= given <= min(MAX_EPOCHS, asked * most) for asked, given in pairs)
