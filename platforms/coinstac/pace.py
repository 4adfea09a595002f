"""How many rows a step has, and how many epochs a run, so that small members do not make it shorter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rankdad.platforms.coinstac.table_profile import Profile

ROWS = 32  # of the largest member in a step
SPARE = 1.3  # rows of the smallest member in a step over what its policy asks for: splits are not exact
MAX_EPOCHS = 1_000_000


def set_pace(training: dict[str, Any], profiles: Sequence[Profile], evaluation: str) -> int | None:
    """Put the size of a batch into a draft that has none, and as many epochs as keep the number of steps.

    Each member's share of a step has as many rows as its policy asks for. So a small member makes steps large, and an
    epoch has fewer of them; the rate of learning suits as many as steps of `ROWS` rows make.

    Args:
        training: of the draft; changed in place.
        profiles: of all members' tables.
        evaluation: its name.

    Returns:
        Place of the member that makes steps larger; None if none does.
    """
    if "batch_size" in training:  # the owner's own: so are the epochs
        return None
    share = 0.85 * (1.0 if evaluation == "leave-one-site-out" else 0.8)  # what is neither tested nor validated
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
    """Tell whether a run's batches and epochs may be what `set_pace` makes of a draft, whatever other members' tables.

    Args:
        training: of the draft.
        opened: of the run.
    """
    most = 1 if "batch_size" in training else -(-opened["batch_size"] // ROWS)
    pairs = [(training["epochs"], opened["epochs"])]
    if stopping := training.get("early_stopping"):
        pairs.append((stopping["patience"], (opened["early_stopping"] or {}).get("patience", 0)))
    return all(asked <= given <= min(MAX_EPOCHS, asked * most) for asked, given in pairs)
