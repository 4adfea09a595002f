"""Disclosure by refusals: runs that isolate one patient, and the codes of their refusals.

All other patients lack a value by the spec, and so does the one patient where the age is among some: then no row is
left. Halving these some finds the age.
"""

from __future__ import annotations

from benchmarks.privacy.hospitals import SITES, Hospitals, Refused, document
from benchmarks.privacy.judge import Claim
from benchmarks.privacy.tables import BINARY, LEVELS

AGES = [tenth / 10 for tenth in range(150, 1101)]  # that anybody may have
TARGETS = 2


def refused(hospitals: Hospitals) -> list[Claim]:
    """Claim the ages of some patients of the first site.

    Of the second site no name is among those left out: only the first site's word counts.
    """
    claims = list[Claim]()
    for name in hospitals.names[SITES[0]][:TARGETS]:
        alone, gone = _heard(hospitals, name, []), _heard(hospitals, name, AGES)
        if alone == gone:
            continue  # refusals say the same, whatever the patient's age
        possible = AGES
        while len(possible) > 1:
            half = possible[: len(possible) // 2]
            possible = half if _heard(hospitals, name, half) == gone else possible[len(half) :]
        claims.append(Claim(SITES[0], name, "age", possible[0]))
    return claims


def _heard(hospitals: Hospitals, name: str, ages: list[float]) -> Refused | None:
    """Return the answer to a run that excludes all but one patient, and that one if the age is among some."""
    others = [other for other in hospitals.names[SITES[0]] if other != name]
    data = {
        "features": ["age", "height", *BINARY, *LEVELS, "pid"],
        "categorical": {**{column: list(levels) for column, levels in LEVELS.items()}, "pid": [name]},
        "categorical_other": ["pid"],
        "missing": "drop",
        "missing_values": {"pid": others, **({"age": list(map(str, ages))} if ages else {})},
    }
    training = {"validation": 0.0, "test": 0.0, "epochs": 1}
    found = hospitals.run(document(data=data, evaluation={"name": "holdout"}, training=training))
    return found if isinstance(found, Refused) else None
