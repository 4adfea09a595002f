"""The aggregator as a ServerApp: a message for every reply, and its answer is the site's next call.

What ends a job is said in a sentence, which Flower shows in the job's log and status.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from queue import SimpleQueue

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from rankdad.common.errors import RankdadError
from rankdad.platforms.flower.site import ID, RUN

app = ServerApp()
_log = logging.getLogger("flwr")


class JobError(Exception):
    """What has ended a job, in words that may be shown."""


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """Run a job."""
    try:
        _log.info(_run(grid, context))
    except RankdadError as error:
        raise JobError(f"{error} [{error.code}]") from None
    except Exception as error:
        _log.error("an error of the aggregator's own", exc_info=error)
        raise JobError(f"an error of the aggregator's own ({type(error).__name__})") from None


def _run(grid: Grid, context: Context) -> str:
    from rankdad.platforms.flower.nodes import Nodes
    from rankdad.platforms.flower.settings import server_settings
    from rankdad.remote.hosted import host

    document: dict[str, object] = dict(context.run_config)
    if set(document) == {ID, RUN}:
        with suppress(ValueError):
            document[RUN] = json.loads(str(document[RUN]))
    settings, inbox = server_settings(), SimpleQueue[tuple[str, object]]()
    nodes = Nodes(grid, inbox, settings, _log.info)
    with nodes.working():
        return host(document, settings, inbox, nodes.post, nodes.stops, _log.info)
