"""What is compared, on which sites and up to which targets, where the command does not say otherwise."""

from __future__ import annotations

from typing import Any

METHODS = (  # `run.method` of each, as JSON
    '{"name":"dsgd"}',
    '{"name":"dsgd","preset":"fedavg"}',
    '{"name":"dsgd","preset":"fedprox"}',
    '{"name":"dsgd","preset":"diloco"}',
    '{"name":"powersgd","rank":4}',
    '{"name":"top-k","density":0.0128,"wire":"int2","local_steps":118}',
    '{"name":"top-k","preset":"sparseloco"}',
    '{"name":"rank-dad","rank":4,"wire":"int8"}',
    '{"name":"rank-dad","rank":16,"wire":"int4","local_steps":118}',
)
DSGD, FEDAVG = METHODS[:2]  # what others are measured against: after all epochs, and at equal bytes
TARGETS = ("auc=0.995", "auc=0.998", "auc=0.9993", "mae=5", "mae=4", "pearson_r=0.6", "pearson_r=0.75")
SITES = ("even", "unequal", "dirichlet", "own")  # the last as the file deals samples out
ALPHA = 0.2  # of the Dirichlet distribution of labels
LARGEST = 8.0  # times as many samples at the largest of unequal sites as at the smallest


def partition(sites: str, count: int, minimum: int) -> dict[str, Any]:
    """Return how samples are dealt out.

    Args:
        sites: of `SITES`, but own.
        count: of the sites.
        minimum: samples that each has at least, where chance decides.
    """
    shares = [LARGEST ** (1 - place / max(1, count - 1)) for place in range(count)]
    named: dict[str, dict[str, Any]] = {
        "even": {"name": "iid"},
        "unequal": {"name": "iid", "shares": shares},
        "dirichlet": {"name": "dirichlet", "alpha": ALPHA, "minimum": minimum},
    }
    return named[sites]
