"""Calibration at each hospital, in words and as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rankdad.common.metrics.site_calibration import RIGHT
from rankdad.remote.report.metric_tables import NumberTable, estimate
from rankdad.remote.report.words import Sentence, listed, number
from rankdad.remote.results.run_results import RunResults

MAX_NAMED = 6  # hospitals in a sentence


def calibration_differences(run: RunResults, outcome: int, risks: str = "its risks") -> Iterator[Sentence]:
    """Yield the hospitals with miscalibrated risks, if hospitals differ; else nothing."""
    differ = run.miscalibrated(outcome)
    if not differ:
        return
    sites = run.site_calibration[outcome]
    measures = []
    for name, called in (("in_the_large", "observed/expected"), ("slope", "the calibration slope")):
        values = differ.get(name, {})
        furthest = sorted(values, key=lambda site: -_off(name, values[site]))
        if furthest:
            measures.append(f"{called} is {listed([f'{number(values[site], 2)} at {site}' for site in furthest])}")
    text = f"Whether {risks} are right depends on the hospital: {', and '.join(measures)}."
    yield Sentence("hospitals-differ", text, tuple(dict.fromkeys(site for own in differ.values() for site in own)))
    large, slope = (
        _beyond(sites, name, right) if name in differ else ([], []) for name, right in sorted(RIGHT.items())
    )
    if any(large):
        where = [f"too {word} at {listed(there)}" for word, there in zip(("high", "low"), large, strict=True) if there]
        whole = [
            one["recalibration"].get("in_the_large") for one in run.summary.metrics.risks if one["outcome"] == outcome
        ]
        even = any(one and one["low"] <= 0 <= one["high"] for one in whole)
        text, cancel = f"On the whole they are {' and '.join(where)}", all(large) and even
        cancels = ", errors that cancel in the figures of all rows together" * cancel
        yield Sentence("hospitals-cancel" if cancel else "hospitals-off", f"{text}{cancels}.")
    turned = _beyond(sites, "slope", 0.0)[0] if any(slope) else []
    if turned:
        text = f"Higher risks go with a rarer outcome at {listed(turned)} (calibration slope below 0)."
        yield Sentence("hospitals-upside-down", text)
    if flat := [site for site in slope[0] if site not in turned]:
        text = f"High risks are too high and low ones too low at {listed(flat)} (calibration slope below 1)."
        yield Sentence("hospitals-too-far-apart", text)
    if slope[1]:
        text = f"Risks are too close to the average at {listed(slope[1])} (calibration slope above 1)."
        yield Sentence("hospitals-too-close", text)


def of_one_kind(run: RunResults, outcome: int, name: str = "") -> Iterator[Sentence]:
    """Yield the hospitals where no row has an outcome that was expected, or all have it: tests leave them out."""
    found: dict[bool, dict[str, str]] = {False: {}, True: {}}
    for site, one in run.site_calibration.get(outcome, {}).items():
        ratio, events = one["observed_expected"], one["events"]
        if events in (0, one["samples"]) and ratio and not ratio["low"] <= 1 <= ratio["high"]:
            found[events > 0][site] = f"{site} ({number(one['expected'], 1)} of {one['samples']:,} were expected)"
    for every, named in found.items():
        if named:
            which, how = ("Every row has", "low") if every else ("No row has", "high")
            risks = f"the risks of {name}" if name else "its risks"
            text = f"{which} {name or 'the outcome'} at {listed(list(named.values()))}: {risks} are too {how} there."
            yield Sentence("hospitals-all" if every else "hospitals-none", text, tuple(named))


def side_by_side(run: RunResults, outcome: int) -> Iterator[Sentence]:
    """Yield observed/expected events by hospital, or their range if there are many."""
    sites = run.site_calibration.get(outcome, {})
    known = {site: ratio for site, one in sites.items() if (ratio := one["observed_expected"])}
    if len(known) < 2:
        return
    if len(known) <= MAX_NAMED:
        each = ", ".join(f"{site} {estimate(ratio)}" for site, ratio in known.items())
        yield Sentence("calibration-by-hospital", f"Observed/expected, 1 being right: {each}.")
        return
    off = [site for site, ratio in known.items() if not ratio["low"] <= 1 <= ratio["high"]]
    ends = [pick(known, key=lambda site: known[site]["value"]) for pick in (min, max)]
    between = " to ".join(f"{estimate(known[site])} at {site}" for site in ends)
    text = f"Observed/expected, 1 being right, is {between}; its interval excludes 1 at {len(off)} of {len(known)}."
    yield Sentence("calibration-of-many", text, tuple(ends))


def _beyond(sites: Mapping[str, Mapping[str, Any]], name: str, right: float) -> tuple[list[str], list[str]]:
    """Return the hospitals with an interval below the right value, and those above it."""
    known = {site: one["recalibration"][name] for site, one in sites.items() if name in one["recalibration"]}
    below = [site for site, one in known.items() if one["high"] < right]
    return below, [site for site, one in known.items() if one["low"] > right]


def _off(name: str, value: float) -> float:
    return abs(_log(value) if name == "in_the_large" else value - RIGHT[name])


def _log(ratio: float) -> float:
    return math.log(ratio) if ratio > 0 else -math.inf


def site_calibration_table(run: RunResults, outcome: int) -> NumberTable | None:
    """Build a row for every hospital: observed and expected events, calibration; None for one hospital."""
    sites = run.site_calibration.get(outcome, {})
    if len(sites) < 2:
        return None
    rows = [
        [
            site,
            f"{one['events']:,} of {one['samples']:,}",
            number(one["expected"], 1),
            *map(estimate, (one["observed_expected"], *map(one["recalibration"].get, ("in_the_large", "slope")))),
        ]
        for site, one in sites.items()
    ]
    head = ["hospital", "observed", "expected", "observed/expected", "in the large", "slope"]
    return NumberTable(head, rows)


def furthest_off(sites: Mapping[str, Mapping[str, Any]], most: int) -> Sequence[str]:
    """Return up to `most` hospitals, those with observed/expected furthest from 1, in their order."""
    off = {
        site: _off("in_the_large", (one["observed_expected"] or {"value": 1.0})["value"]) for site, one in sites.items()
    }
    chosen = sorted(off, key=lambda site: -off[site])[:most]
    return [site for site in sites if site in set(chosen)]
