"""The page of all measurements: each claim of the paper, its result, and the command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.paper import page_tables
from benchmarks.paper.claims import NOISE, Verdict, claims
from benchmarks.paper.comparing import Tables, filled
from benchmarks.paper.panels import BATCH, FOLDS, RATE, SITES
from benchmarks.paper.settings import Setting
from rankdad.remote.report.rendering import render

TEMPLATES = Path(__file__).parent / "templates"
TITLES = {
    "figure-2": "Figure 2: AUC over epochs",
    "figure-3": "Figure 3: effective rank",
    "figure-4": "Figure 4: AUC over epochs, further data",
    "figure-5": "Figure 5: time to the baseline's AUC",
    "figure-6": "Figure 6: bytes by the layer's size",
    "table-3": "Table 3: time per batch by number of sites",
}
VERDICTS: Mapping[Verdict, str] = {
    "holds": "holds",
    "equal": "within the noise",
    "misses": "misses",
    "open": "not measured",
}


@dataclass(frozen=True)
class Meta:
    """What the tables do not say.

    Args:
        setting: of the measurements.
        options: of the command, such as " --quick".
        machine: that made the tables, in words.
        pictures: stems of the files that have been drawn.
    """

    setting: Setting
    options: str
    machine: str
    pictures: frozenset[str] = frozenset()

    def command(self, name: str) -> str:
        """Return the command that makes a table."""
        return f"`python -m benchmarks paper {name}{self.options}`"


def write(tables: Tables, meta: Meta) -> str:
    """Return the page in GitHub's markdown.

    Args:
        tables: by the name of their file. Where one is missing, the page names the command that makes it.
        meta: what the tables do not say.
    """
    tables = filled(tables)
    judged = claims(tables)
    verdicts = {name: [claim.verdict for claim in judged if claim.figure == name] for name in TITLES}
    return render(
        TEMPLATES,
        "page.md",
        tables=tables,
        claims=judged,
        counts=[[TITLES[name], *(str(of.count(kind)) for kind in VERDICTS)] for name, of in verdicts.items() if of],
        titles=TITLES,
        verdicts=list(VERDICTS.values()),
        meta=meta,
        setting=meta.setting,
        constants={"folds": FOLDS, "sites": len(SITES), "batch": BATCH, "rate": RATE, "noise": NOISE},
        rows=page_tables,
    )
