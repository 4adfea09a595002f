"""What sums of a linear model's study tell: an aggregator's own, or a member's, who takes its own part away.

One ordinary run: five folds, a validation set, a model of all at the end, the references if the policy allows them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from benchmarks.privacy.hospitals import SITES, Hospitals, Refused, Seen, document
from benchmarks.privacy.judge import Claim
from benchmarks.privacy.rows import PLACES, distinct, is_row, named
from benchmarks.privacy.tables import NUMBERS
from rankdad.common.preparation import Preparing
from rankdad.common.protocol.messages import Kind, Message
from rankdad.common.rounds.step import Step
from rankdad.common.rounds.sums import Sums

FOLDS = {"name": "k-fold", "folds": 5}
Sites = Mapping[str, Mapping[str, Tensor]]  # every stage's sums [folds, …], by site and stage
Rows = Iterator[tuple[Tensor, float | None]]


def aggregator(hospitals: Hospitals) -> list[Claim]:
    """Return the claims of an honest-but-curious aggregator from its messages."""
    seen = study(hospitals)
    return [] if seen is None else list(itertools.chain(*(of_site(seen, site, seen.up[site]) for site in SITES)))


def member(hospitals: Hospitals) -> list[Claim]:
    """Return the claims of the second of two hospitals from the updates minus its own part."""
    seen = study(hospitals)
    if seen is None:
        return []
    rest = [_without(heard, own) for heard, own in zip(seen.down, seen.up[SITES[1]], strict=False)]
    return of_site(seen, SITES[0], [message for message in rest if message is not None])


def study(hospitals: Hospitals) -> Seen | None:
    """Run an ordinary study, with as many references as the hospitals' policies let it have."""
    for references in (["local", "site", "linear"], ["local", "site"], []):
        found = hospitals.run(document(evaluation=FOLDS | {"references": references}))
        if not isinstance(found, Refused):
            return found
    return None


def of_site(seen: Seen, site: str, messages: list[Message]) -> list[Claim]:
    """Return the claims of rows in one site's messages."""
    found = {m.body.stage: m.body.values for m in messages if isinstance(m.body, Sums)}
    totals = {m.body.stage: m.body.values for m in seen.down if isinstance(m.body, Sums)}
    steps = [message.body for message in messages if isinstance(message.body, Step)]
    rows = itertools.chain(in_differences(seen, found), in_products(seen, found, totals), in_steps(seen, steps, totals))
    return named(site, distinct(rows))


def in_differences(seen: Seen, found: Mapping[str, Tensor]) -> Rows:
    """Yield rows that are left of two or three training sets' sums, or of these and Table 1."""
    preparing, sets = Preparing(seen.spec), list[Tensor]()
    for fold in range(seen.plan.folds):
        label, sums = (preparing.unpack(stage, found[stage][fold]) for stage in ("labels", "sums"))
        sets.append(torch.cat([label["rows"].reshape(1), label["counts"], sums["sums"]]))
    whole = preparing.unpack("labels", found["labels"][-1])
    sets.append(torch.cat([whole["table-rows"].reshape(1), whole["table-label"], whole["table-sums"]]))
    for signs in itertools.product((1, 0, -1), repeat=len(sets)):
        if sum(map(abs, signs)) > 3:
            continue
        left = sum((sign * one for sign, one in zip(signs, sets, strict=True) if sign), torch.zeros_like(sets[0]))
        if left[0] == 1 and is_row(left[3:]):
            yield left[3:], float(left[2])


def in_products(seen: Seen, found: Mapping[str, Tensor], totals: Mapping[str, Tensor]) -> Rows:
    """Yield rows in the products of columns, where a level, a class, or what is left of two sets has one patient.

    At weights 0, with which Newton's method begins, every patient counts a quarter, and the slope tells of the class.
    """
    if "linear-1" not in found:
        return
    products = [_products(seen, fold, found["linear-1"][fold], totals) for fold in range(seen.plan.folds)]
    pairs = [(a - b, c - d) for (a, c), (b, d) in itertools.permutations(products, 2)]
    for matrix, events in [*products, *pairs]:
        total = matrix[0]
        levels = [place for place in range(1, len(total)) if PLACES[place - 1] not in NUMBERS]
        sets = [(matrix[place], float(events[place])) for place in levels]
        sets += [(total - own, float(events[0]) - label) for own, label in sets]
        sets += [(events, 1.0), (total - events, 0.0)]
        for own, label in sets:
            if abs(float(own[0]) - 1) < 1e-6 and is_row(own[1:]):
                yield own[1:], label


def _products(seen: Seen, fold: int, vector: Tensor, totals: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return a fold's sums of products of columns as they were read, one of ones first, and of columns and class."""
    preparing = Preparing(seen.spec)
    sums = preparing.unpack("linear-1", vector)
    size = len(PLACES) + 1
    matrix = torch.zeros(size, size, dtype=torch.float64)
    places = torch.triu_indices(size, size)
    matrix[tuple(places)] = matrix[tuple(places.flip(0))] = 4 * sums["curvature"]
    back = _back(seen, fold, totals)
    matrix = back @ matrix @ back.T
    return matrix, matrix[0] / 2 - back @ sums["slope"]


def _back(seen: Seen, fold: int, totals: Mapping[str, Tensor]) -> Tensor:
    """Return a function from a prepared row, preceded by a one, to the original row."""
    fit = Preparing(seen.spec).fit({name: own[fold] for name, own in totals.items() if not name.startswith("linear")})
    assert fit.mean is not None
    assert fit.scale is not None
    scale = torch.where(fit.scale.isinf(), 0.0, fit.scale)  # of a column that is its mean in all rows
    back = torch.diag(torch.cat([torch.ones(1, dtype=torch.float64), scale]))
    back[1:, 0] = fit.mean
    return back


def in_steps(seen: Seen, steps: list[Step], totals: Mapping[str, Tensor], near: float = 1e-3) -> Rows:
    """Yield rows that are a gradient of some output or unit alone: that of its weights over that of its bias."""
    backs = [_back(seen, fold, totals) for fold in range(seen.plan.folds)] if "squares" in totals else []
    if not backs:
        return
    per_fold = -(-len(steps) // len(backs))
    for number, step in enumerate(steps):
        weights, bias = (matrix if isinstance(matrix, Tensor) else matrix.gradient() for matrix in step.payload[:2])
        for own, intercept in zip(weights.double(), bias.double().flatten(), strict=True):
            if abs(float(intercept)) < 1e-9:
                continue
            prepared = torch.cat([torch.ones(1, dtype=torch.float64), own / intercept])
            row = (backs[number // per_fold] @ prepared)[1:]
            if is_row(row, near):
                yield row, None


def _without(heard: Message, own: Message) -> Message | None:
    """Derive one site's message from the common update and the other site's message."""
    body, mine = heard.body, own.body
    if heard.kind is Kind.SUMS and isinstance(body, Sums) and isinstance(mine, Sums):
        return Message(heard.kind, heard.round, Sums(stage=body.stage, values=body.values - mine.values))
    if isinstance(body, Step) and isinstance(mine, Step) and all(isinstance(one, Tensor) for one in mine.payload):
        share = mine.weight / body.weight
        pairs = zip(body.payload, mine.payload, strict=True)
        rest = tuple(a - share * b for a, b in pairs if isinstance(a, Tensor) and isinstance(b, Tensor))
        return Message(heard.kind, heard.round, Step(body.weight - mine.weight, 0.0, 0.0, rest))
    return None
