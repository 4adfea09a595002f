"""What the live page says of a run that is over, from its directory: as `remote.live` tells of one that goes on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rankdad.common.documents import load_json, validate
from rankdad.common.spec import RunSpec
from rankdad.page.history import History
from rankdad.page.tail import Line
from rankdad.remote.page_document import page_document
from rankdad.remote.results.run_summary import RunSummary
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
    summary = validate(RunSummary, load_json(directory / "summary.json"), file=directory / "summary.json")
    head = text_of(directory, "steps").partition("\n")[0].split(",")
    layers = [name.removeprefix("rank:") for name in head if name.startswith("rank:")]
    history = History(summary.sites, layers, tuple(dict.fromkeys(("loss", spec.training.monitor))))
    retold(history, partial(rows_in, directory), layers)
    if summary.status == "running":
        summary = summary.model_copy(update={"status": state, "reason": reason})
    return page_document(summary, spec, layers, list(lines)), history
