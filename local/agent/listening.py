"""An agent's thread that waits for offers; the service holds each request until something changes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from rankdad.common.errors import RankdadError, one_line
from rankdad.common.protocol.service import Offers
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.service import ServiceClient

MIN_DELAY, MAX_DELAY = 1.0, 60.0  # seconds between two attempts
PAUSE = 0.2  # seconds between two requests for offers
_log = logging.getLogger(__name__)


def listen(config: SiteConfig, heard: Callable[[Offers], object]) -> None:
    """Pass on the service's offers to a site, forever."""
    known, delay, reported = "", MIN_DELAY, ""
    while True:
        try:
            with ServiceClient(config) as client:  # reads renewed tokens and certificates
                while True:
                    offers = client.offers(known)
                    if reported:
                        _log.info("the service answers again")
                    known, delay, reported = offers.digest, MIN_DELAY, ""
                    heard(offers)
                    time.sleep(PAUSE)  # a stopping service answers at once
        except Exception as error:
            reason = str(error) if isinstance(error, RankdadError) else one_line(error)
            if reason != reported:
                reported = reason
                _log.error("%s; retrying", reported)
            time.sleep(delay)
            known, delay = "", min(2 * delay, MAX_DELAY)
