"""An agent's files about runs, in the site's output folder.

audit.jsonl             every decision, one JSON object per line
runs/RUN/offer.json     the run as offered, and a description of what would leave
runs/RUN/spec.json      its spec: the site takes part in no other under this name
runs/RUN/decision.json  whether the site takes part, and who decided
runs/RUN/finished       exists when the site has finished the run
runs/RUN/log.txt        the log of the training process, next to its checkpoints and results
"""

from __future__ import annotations

import errno
import fcntl
import getpass
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from rankdad.common.documents import Part, load_json, validate
from rankdad.common.errors import UserError, visible
from rankdad.common.files import cannot_write, give_to_owner, make_folder, sync_path, write_json, write_whole
from rankdad.common.protocol.retention import FILE as RECEIPT
from rankdad.common.protocol.service import Offer
from rankdad.local.config import SiteConfig

AUDIT = "audit.jsonl"


class Considered(Part):
    """The result of considering a run, before any data are read."""

    offer: Offer
    words: tuple[str, ...]
    """A description of what would leave the site."""
    refusal: str = ""
    """Why the site cannot take part, for its staff; "" if it can."""
    told: str = ""
    """Why the site cannot take part, for the owner."""
    retain: bool = False
    """Whether the policy lets the aggregator keep contributions."""


class Decision(Part):
    """Whether a site takes part in a run."""

    id: str
    decision: Literal["accepted", "refused"]
    by: str
    reason: str = ""


def offered_to(config: SiteConfig) -> dict[str, tuple[str, str]]:
    """Return name and owner of each run in the site's audit log, by the run's identity."""
    try:
        lines = (Path(config.output) / AUDIT).read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}  # a site without an agent has none
    found = dict[str, tuple[str, str]]()
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):  # a line cut off on a full disk
            told = json.loads(line)
            found[told["id"]] = told.get("run", ""), told["owner"]
    return found


class RunFolder:
    """The folder of one run at a site.

    Args:
        config: of the site.
        run: its name, which is valid as a folder's.
    """

    def __init__(self, config: SiteConfig, run: str) -> None:
        self.run, self._site = run, config.name
        self._output = Path(config.output)
        self.path = runs_folder(config) / run

    @property
    def spec(self) -> Path:
        """The file with the run's spec."""
        return self.path / "spec.json"

    @property
    def log(self) -> Path:
        """The log file of the training process."""
        return self.path / "log.txt"

    def considered(self) -> Considered | None:
        """Return the result of considering the run; None before."""
        path = self.path / "offer.json"
        return validate(Considered, load_json(path), file=path) if path.exists() else None

    def keep(self, considered: Considered) -> None:
        """Write the result of considering the run.

        Raises:
            UserError: the disk is full or broken.
        """
        make_folder(self.path, private=True)
        write_json(self.spec, considered.offer.spec, private=True)
        write_json(self.path / "offer.json", considered.model_dump(mode="json"), private=True)

    def decision(self) -> Decision | None:
        """Return the decision; None before."""
        path = self.path / "decision.json"
        return validate(Decision, load_json(path), file=path) if path.exists() else None

    def decide(self, decision: Decision) -> None:
        """Write a decision to the audit log, then to its file.

        Raises:
            UserError: the disk is full or broken.
        """
        self.audit(decision.decision, by=decision.by, reason=decision.reason)
        write_json(self.path / "decision.json", decision.model_dump(mode="json"), private=True)

    @property
    def finished(self) -> bool:
        """Whether the site has finished the run."""
        return (self.path / "finished").exists()

    def finish(self) -> None:
        """Record that the site has finished the run."""
        self.audit("finished")
        write_whole(self.path / "finished", "", private=True)

    def remove_checkpoints(self) -> None:
        """Remove what a run that has ended here would continue from."""
        shutil.rmtree(self._checkpoints, ignore_errors=True)

    @property
    def _checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def is_over(self) -> bool:
        """Whether the run has ended for this site: it has finished, or takes no part."""
        decision = self.decision()
        return self.finished or (decision is not None and decision.decision == "refused")

    @property
    def is_settled(self) -> bool:
        """Whether nothing is owed of a run that is over: no checkpoint is left, and what was sent has a receipt."""
        has_receipt = not self.log.exists() or (self.path / RECEIPT).exists()  # its process may have sent something
        return self.is_over and has_receipt and not self._checkpoints.exists()

    def audit(self, what: str, **details: str) -> None:
        """Append a line to the site's audit log, and sync it to the disk.

        Raises:
            UserError: the disk is full or broken.
        """
        path, considered = self._output / AUDIT, self.considered()
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "what": what, "run": self.run}
        if considered is not None:
            line |= {"id": considered.offer.id, "owner": considered.offer.owner}
        line |= {key: visible(value) for key, value in details.items() if value}
        document = line | ({"leaves": list(considered.words)} if what == "accepted" and considered else {})
        try:
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                give_to_owner(path)
                fcntl.flock(file, fcntl.LOCK_EX)  # the agent, its processes and commands write here
                text, before = json.dumps(document).encode() + b"\n", os.fstat(file).st_size
                if os.write(file, text) < len(text):  # the disk was full before the line's end
                    os.ftruncate(file, before)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file)
            finally:
                os.close(file)
            sync_path(path.parent)
        except OSError as error:
            raise cannot_write(path, error) from None


def runs_folder(config: SiteConfig) -> Path:
    """Return the folder with the folders of a site's runs."""
    return Path(config.output) / "runs"


def unsettled(config: SiteConfig) -> Iterator[RunFolder]:
    """Yield the folders of a site's runs that are not known to be settled."""
    for path in sorted(runs_folder(config).glob("*/offer.json")):
        folder, is_settled = RunFolder(config, path.parent.name), False
        with suppress(UserError):  # a damaged file is named when the run is settled
            is_settled = folder.is_settled
        if not is_settled:
            yield folder


def user_name() -> str:
    """Return the user's name, for the audit log."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return f"user {os.getuid()}"
