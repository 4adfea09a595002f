"""`rankdad check-run`: verify all digests of a run's directory."""

from __future__ import annotations

from pathlib import Path

from rankdad.common.errors import UserError, counted
from rankdad.common.run.checkpoints import is_checkpoint, is_whole, round_of
from rankdad.remote.journal import dropped
from rankdad.remote.persistence import CHECKPOINTS
from rankdad.remote.retention import retained, retention
from rankdad.remote.run_reader import FILE, TABLE_NAMES, reading


def faults_of(directory: Path) -> tuple[list[str], str]:
    """Return the faults of a run's directory, a sentence each, and a count of its contents.

    Args:
        directory: the run's; the run may be active.

    Raises:
        UserError: the run's file is missing or cannot be opened.
    """
    faults, end = list[str](), None
    with reading(directory) as file:
        faults += file.faults()
        known = retained(file)
        if known is not None and (known.deleted or known.forgotten) and known != retention(directory):
            faults.append(
                f"{file.path}: contributions are deleted, but may still be in the file: `rankdad forget {directory}`"
            )
        try:
            end = file.end
            counts = [
                counted(file.end - file.oldest, "update"),
                *(f"{file.count(name):,} {name}" for name in TABLE_NAMES),
            ]
        except UserError as error:
            counts, faults = [], faults or [str(error)]
    if dropped(directory / FILE) == 1:
        counts.append("a last round that was cut short by a power failure, or else by the disk")
    checkpoints = [path for path in sorted((directory / CHECKPOINTS).glob("*")) if is_checkpoint(path)]
    faults += [f"{path}: the checkpoint is damaged" for path in checkpoints if not is_whole(path)]
    faults += [
        f"{path}: the checkpoint is of a later round than {FILE}, which has {counted(end, 'round')}: one is an older "
        "copy, or another run's"
        for path in checkpoints
        if end is not None and round_of(path) > end
    ]
    return faults, ", ".join([*counts, counted(len(checkpoints), "checkpoint")])
