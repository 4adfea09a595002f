"""What the live page says of a run that is over, from its directory: as `remote.live` tells of one that goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rankdad.common.documents import load_json, validate
from rankdad.common.errors import counted
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import shown
from rankdad.page.history import History
from rankdad.page.tail import Line
from rankdad.remote.retelling import retold
from rankdad.remote.tables import rows_in, text_of


def past(directory: Path, state: str, reason: str, lines: Sequence[Line]) -> tuple[dict[str, Any], History]:
    """Return what is said of a run, by part, and its curves.

    Args:
        directory: of the run.
        state: in which it ended, where its summary was written before.
        reason: likewise.
        lines: the last ones of its log.

    Raises:
        UserError: the spec cannot be read.
        OSError: nor can another file; `ValueError`, `KeyError` and `TypeError` where one holds something else.
    """
    spec = validate(RunSpec, load_json(directory / "run.json"), file=directory / "run.json")
    summary, sites = load_json(directory / "summary.json"), spec.federation.sites
    head = text_of(directory, "steps").partition("\n")[0].split(",")
    layers = [name.removeprefix("rank:") for name in head if name.startswith("rank:")]
    history = History(sites, layers, tuple(dict.fromkeys(("loss", spec.training.monitor))))
    last = retold(history, partial(rows_in, directory), layers)
    step, over = int(summary["steps"]), summary["status"] != "running"
    up, down = (float(summary[f"bytes_{way}_per_site_step"]) for way in ("up", "down"))
    validation = (summary["metrics"]["validation"] or {}).get(spec.training.monitor)
    status = summary["status"] if over else state
    document = {
        "run": {
            "name": spec.name,
            "method": summary["method"],
            "members": counted(len(sites), "site"),
            "noun": "site",
            "sites": list(sites),
            "layers": layers,
            "metric": str(spec.training.monitor),
            "metric_name": shown(spec.training.monitor),
        },
        "stand": {
            "status": status,
            "reason": summary["reason"] if over else reason,
            "where": "",
            "step": step,
            "steps": step if status == "completed" else 0,
            "epoch": summary["epochs"],
            "loss": last if math.isfinite(last) else None,
            "validation": validation,
            "best_epoch": summary["best_epoch"] if validation is not None else None,
            "best_value": None,
            "seconds": summary["seconds"],
            "step_seconds": summary["seconds_per_step"],
            "ends": None,
        },
        "waiting": {"sites": [], "since": 0, "without": []},
        "traffic": {
            "up": up * step * len(sites),
            "down": down * step * len(sites),
            "dense": summary["dense_bytes"],
            "step_up": round(up),
            "step_down": round(down),
            "ratio": summary["times_fewer_bytes_than_dense"] or 0.0,
        },
        "times": {},
        "sites": [
            {
                "name": site,
                "kind": "",
                "state": status,
                "rows": None,
                "version": summary["versions"]["rankdad"],
                "left_out": summary["left_out"].get(site, 0),
                "refused": 0,
                "refusal": "",
                "warnings": [name.replace("-", " ") for name, own in summary["warnings"].items() if site in own],
            }
            for site in sites
        ],
        "seen": {},
        "log": lines,
    }
    return document, history
