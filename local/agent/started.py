"""A site that an engine starts for one run, with policy, approval and disclosure log as for an agent.

Policy, data and folders come from the site's configuration, never from an engine's job. The files of a run are in their
own folder below `output`, as for an agent (`local.agent.state`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from rankdad.common.errors import PolicyError, RankdadError, UserError, visible
from rankdad.common.files import make_folder, naming_the_disk
from rankdad.common.logs import LogFile, LogOptions, log_names, set_up
from rankdad.common.protocol.service import Offer
from rankdad.common.protocol.versions import OUR_VERSION
from rankdad.local.agent.state import Considered, Decision, RunFolder, runs_folder
from rankdad.local.agent.words import what_leaves
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.connection import Connection
from rankdad.local.drivers.running import run_site
from rankdad.local.starting import run_id
from rankdad.local.taking_part import offered_spec, permitted

PATIENCE = 30.0  # seconds to wait for an earlier process of the site
_log = logging.getLogger(__name__)


class NotApprovedError(UserError):
    """The run has not been approved at the site yet, or was refused."""

    is_public = True


def take_part(config: SiteConfig, connection: Connection, owner: str) -> None:
    """Take part in an engine's run, unless this site has finished it.

    Args:
        config: of the site.
        connection: to the aggregator of the run.
        owner: of the run, as authenticated by the engine.

    Raises:
        NotApprovedError: the run has to be approved first.
        UserError: the site cannot take part for another reason.
        RankdadError: during training: this site or another failed.
    """
    offered = connection.run()
    folder = RunFolder(config, run_id(offered))
    if folder.finished:
        connection.done()
        return
    make_folder(runs_folder(config), private=True)
    make_folder(folder.path, private=True)
    with closing(LogFile(folder.log)) as log:
        set_up(LogOptions(), log)
        try:
            with naming_the_disk(), log_names(run=folder.run, site=config.name):
                _decide(config, folder, offered, owner[:63])
            own = config.model_copy(update={"output": str(folder.path), "spec": str(folder.spec)})
            _run(own, folder, Path(config.output), connection)
        except RankdadError as error:
            _log.error("%s [%s]", error, error.code)
            raise
        except Exception as error:
            _log.error("an unexpected error", exc_info=error)
            raise
        finally:
            set_up(LogOptions())


def _run(config: SiteConfig, folder: RunFolder, home: Path, connection: Connection) -> None:
    """Take part, once an earlier process of this site has released the run's folder."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            run_site(config, number=folder.run, saved=folder.finish, home=home, connection=connection)
        except UserError as error:
            if error.code != "folder-in-use" or time.monotonic() > until:
                raise
            time.sleep(0.5)
        else:
            return


def _decide(config: SiteConfig, folder: RunFolder, offered: Mapping[str, object], owner: str) -> None:
    """Return if the site takes part in a run, after recording what would leave it.

    Raises:
        NotApprovedError: it does not, or not yet.
        UserError: the policy refuses the run, or the site cannot take part in it.
    """
    known, decision = folder.considered(), folder.decision()
    spec = offered_spec(config, offered)
    if known is None or decision is None:
        try:
            policy, _, plan = permitted(config, spec, folder.run, owner)
        except PolicyError as error:
            folder.audit("refused", by="policy", reason=str(error))
            raise
        words = tuple(what_leaves(spec.at(config.name), plan, policy, owner))
        offer = Offer(run=folder.run, id=folder.run, owner=owner, spec=spec.document(), **OUR_VERSION)
        folder.keep(Considered(offer=offer, words=words))
        for line in words:
            _log.info("%s", line)
    if decision is None and config.approval == "policy":
        folder.decide(Decision(id=folder.run, decision="accepted", by="policy"))
    elif decision is None:
        folder.audit("asked")
        text = f"{config.name} waits for approval: `rankdad approve {folder.run} SITE.json` there, then submit again"
        raise NotApprovedError(text, code="not-approved")
    elif decision.decision == "refused":
        reason = f": {visible(decision.reason)}" if decision.reason else ""
        raise NotApprovedError(f"{config.name} takes no part in this run{reason}", code="run-refused")
