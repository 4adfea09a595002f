"""Carries out the aggregator's effects at once: where all contributions to a round are handed over together."""

from __future__ import annotations

import time

from common.errors import RunFailedError
from remote.aggregator import Aggregator
from remote.rounds import Answer, Effect, Ready


def carry_out(aggregator: Aggregator, effects: list[Effect]) -> dict[str, bytes]:
    """Aggregate what is ready, and return every site's answer by name."""
    answers: dict[str, bytes] = {}
    while effects:
        effect = effects.pop(0)
        if isinstance(effect, Answer):
            answers |= dict.fromkeys(effect.sites, effect.body)
        else:
            effects += _aggregate(aggregator, effect)
    return answers


def _aggregate(aggregator: Aggregator, ready: Ready) -> list[Effect]:
    began = time.perf_counter()
    try:
        update = aggregator.aggregate(ready)
    except RunFailedError as error:
        return aggregator.fail(error.site, error.reason)
    effects = aggregator.complete(ready, update)
    aggregator.follow(ready, update, time.perf_counter() - began)
    return effects
