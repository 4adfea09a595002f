"""Runs one rank of a site that torchrun has started: rank 0 is the site, the others compute with it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rankdad.common.files import naming_the_disk
from rankdad.common.run.state import RunState
from rankdad.common.tensors import weights_sha256
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.drive import is_long
from rankdad.local.drivers.running import run_site
from rankdad.local.observer import Observer
from rankdad.local.ranks.group import Ranks
from rankdad.local.ranks.sharing import Sharing
from rankdad.local.shutdown_signals import ShutdownError, ShutdownSignals
from rankdad.local.site import site_of
from rankdad.local.starting import checkpoints_folder, save_state, shared_state
from rankdad.local.taking_part import taking_part

MAX_SECONDS = 20.0  # seconds after which a computing rank 0 ends after a signal; torchrun kills it after 30
_log = logging.getLogger(__name__)


def run_rank(read: Callable[[], SiteConfig]) -> None:
    """Run this process's rank: rank 0 is the site, and an error at one rank ends all.

    Args:
        read: returns the site's configuration.

    Raises:
        RankdadError: at rank 0: it, or another rank that is named, failed.
    """
    with Ranks() as ranks:
        if ranks.rank:
            config = _config(read, ranks)
            with naming_the_disk():
                follow(config, Sharing(ranks, config))
        else:
            with ShutdownSignals(ranks.look, ranks.leave, MAX_SECONDS) as signals:
                config = _config(read, ranks)
                run_site(config, signals, ranks=Sharing(ranks, config))


def _config(read: Callable[[], SiteConfig], ranks: Ranks) -> SiteConfig:
    config = read()
    return config.model_copy(update={"device": ranks.device(config.device)})


def follow(config: SiteConfig, ranks: Sharing) -> None:
    """Train as rank 0 does, with the aggregator's answers from rank 0; nothing is sent here.

    Args:
        config: of the site.
        ranks: of the site.

    Raises:
        RankdadError: this rank failed.
    """
    logging.getLogger("rankdad").setLevel(logging.ERROR)  # rank 0 logs everything else
    offered = json.loads(ranks.share() or b"")
    own = taking_part(config, offered)
    spec, plan = own.spec, own.plan
    run = RunState(spec, plan, ranks.replica(spec, plan, own.data, own.replica))
    checkpoints = ranks.checkpoints(checkpoints_folder(Path(config.output), offered), plan, config.name, own.data)
    state = shared_state(config.name, run, checkpoints, ranks.share())
    parts = own.data.parts
    data = replace(own.data, parts=None if parts is None else parts.unnoted())

    def between_steps() -> None:
        saves, stopped_by = ranks.pause()
        if saves:
            save_state(checkpoints, state)
        if stopped_by:
            ranks.share()  # until rank 0 has saved
            raise ShutdownError(stopped_by)

    site = site_of(spec, plan, data, state, own.policy, Observer(between_steps=between_steps), ranks=ranks)
    site.take()
    while site.due is not None:
        site.take(ranks.share(patiently=is_long(site.due)))
    result = site.result
    ranks.share()  # until rank 0 has written the results
    if not ranks.mesh.is_divided and weights_sha256(result.final) != result.weights_sha256[config.name]:
        _log.error("rank %d: ends with other weights than rank 0: do their machines compute differently?", ranks.rank)
