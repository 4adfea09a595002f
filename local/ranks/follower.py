"""A rank other than 0: it computes its part of every batch, and follows the updates that rank 0 follows."""

from __future__ import annotations

import json
import logging

from rankdad.common.collectives import broadcast_bytes
from rankdad.common.protocol.codec import unpack
from rankdad.common.run.checkpoints import take_over
from rankdad.common.run.replica import unpack_parameters
from rankdad.local.config import SiteConfig
from rankdad.local.passes import Passes
from rankdad.local.ranks.group import Ranks
from rankdad.local.ranks.sharing import END, FOLLOW, START, STEP, Sharing
from rankdad.local.site import taking_part

_log = logging.getLogger(__name__)


def follow(config: SiteConfig, ranks: Ranks) -> None:
    """Do what rank 0 tells this rank, until the run is over; it writes nothing and talks to no aggregator.

    Args:
        config: the site's own file.
        ranks: of the site.

    Raises:
        RankdadError: this rank could not go on.
    """
    logging.getLogger("rankdad").setLevel(logging.ERROR)  # rank 0 logs all that they have in common
    sharing = Sharing(ranks, config)
    offered = json.loads(broadcast_bytes(b""))
    site = taking_part(config, offered)
    sharing.compare(site.spec, site.plan, site.data, site.replica.model)
    run, index = sharing.state(site.spec, site.plan, site.replica), site.plan.sites.index(config.name)
    replica = run.replica
    passes = Passes(site.spec, site.plan, site.data, run, index, sharing, site.policy.sharing)
    while (order := broadcast_bytes(b""))[:1] != END:
        if order[:1] == START:
            take_over(run, order[1:])
        elif order[:1] == FOLLOW:
            run.follow(unpack(order[1:], site.plan, up=False, device=replica.device))
        elif order[:1] == STEP:
            passes.step(passes.batch(), unpack_parameters(order[1:]))
        else:
            sharing.join(order)
    if order[1:] and order[1:].decode() != replica.digest():
        _log.error("rank %d: ends with other weights than rank 0: do their machines compute alike?", ranks.rank)
