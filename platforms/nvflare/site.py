"""A site's life in a job, and the names that server and clients share. Nothing here is the engine's.

Heavy imports wait until a job begins: the engine gives a node a minute to load one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankdad.local.drivers.carried import CarriedConnection

KEY = "rankdad"  # of the bytes in what the engine carries, and the name of its tasks
RUN = "run.json"  # in a job's config folder: the run and its identity
_log = logging.getLogger(__name__)


def site_life(node: str, kit: str | None, owner: str) -> Callable[[CarriedConnection], None]:
    """Return the life of a site in a job.

    Args:
        node: the site's name, as the engine has checked it.
        kit: the folder `local` of its startup kit.
        owner: who has submitted the job.
    """

    def live(connection: CarriedConnection) -> None:
        from rankdad.common.logs import LogOptions, set_up
        from rankdad.local.agent.started import take_part
        from rankdad.platforms.nvflare.settings import site_settings

        set_up(LogOptions())
        try:
            config = site_settings(node, kit)
        except Exception as error:
            _log.error("%s", error)
            raise
        take_part(config, connection, owner)

    return live
