"""Runs one rank of a site that torchrun has started."""

from __future__ import annotations

from collections.abc import Callable

from rankdad.local.config import SiteConfig
from rankdad.local.ranks.follower import follow
from rankdad.local.ranks.group import Ranks
from rankdad.local.ranks.sharing import Leader
from rankdad.local.shutdown_signals import ShutdownSignals
from rankdad.local.site import run_site


def run_rank(read: Callable[[], SiteConfig]) -> None:
    """Run this process's rank: rank 0 is the site to all others, and what ends one rank ends all.

    Args:
        read: returns the site's own file.

    Raises:
        RankdadError: at rank 0: it, or another rank that is named, could not go on.
    """
    with Ranks() as ranks:
        config = read()
        config = config.model_copy(update={"device": ranks.device(config.device)})
        if ranks.rank:
            follow(config, ranks)
        else:
            with ShutdownSignals() as signals:
                run_site(config, signals, ranks=Leader(ranks, config))
