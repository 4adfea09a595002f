"""Checkpoints of a site of several ranks: of a divided replica, each rank writes its parts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from rankdad.common import shards
from rankdad.common.collectives import all_gather_bytes
from rankdad.common.errors import UserError
from rankdad.common.run.checkpoints import PARTS, Checkpoints, digest_of
from rankdad.common.run.state_format import DIVIDED
from rankdad.local.ranks.group import Ranks


class SharedCheckpoints(Checkpoints):
    """A site's checkpoints, for one of its ranks; all call each method at the same time.

    Args:
        ranks: of the site.
        divided: whether they divide the replica, and so share the folder.
        folder: as for `Checkpoints`, like the others.
    """

    def __init__(self, ranks: Ranks, folder: Path, *given: Any, divided: bool, **named: Any) -> None:
        super().__init__(folder, *given, **named)
        self._ranks, self._divided = ranks, divided

    def save(self, *given: Any, **named: Any) -> None:
        """Write a checkpoint; see `Checkpoints.save`. Of a replica that is not divided, rank 0 writes all."""
        if self._divided or not self._ranks.rank:
            super().save(*given, **named)

    def _write(
        self, round_: int, tensors: dict[str, Tensor], metadata: dict[str, str], parts: Path | None = None
    ) -> None:
        if not self._divided:
            super()._write(round_, tensors, metadata)
            return
        own = {name: value for name, value in tensors.items() if name.startswith(DIVIDED) and not value.is_meta}
        rest = {name: value for name, value in tensors.items() if not name.startswith(DIVIDED)}
        parts, rank, size = self.folder / f"new.{PARTS}", self._ranks.rank, self._ranks.size
        with self._ranks.together(), self._ranks.patient():
            if not rank:
                shutil.rmtree(parts, ignore_errors=True)
            all_gather_bytes(b"")  # waits for rank 0
            try:
                shards.write(parts, own)
                names = sorted(path.name for path in parts.iterdir())
                if len(set(all_gather_bytes(json.dumps(names).encode()))) > 1:
                    problem = f"output: ranks see different files in {parts}, expected one folder for all: share it"
                    raise UserError(f"{problem} between their machines", code="folder-not-shared", field="output")
                mine = {name: digest_of(parts / name) for name in names[rank::size]}
            except OSError as error:
                raise self._not_written(parts, error) from None
            digests = [json.loads(each) for each in all_gather_bytes(json.dumps(mine).encode())]
            if not rank:
                listed = {name: digest for each in digests for name, digest in each.items()}
                super()._write(round_, rest, metadata | {PARTS: json.dumps(listed)}, parts)
