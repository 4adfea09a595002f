"""Receipts: what the aggregator says of a site's contributions after a run's end."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from rankdad.common.files import write_json
from rankdad.common.protocol.retention import FILE, Receipt

_log = logging.getLogger(__name__)


def keep_receipt(receipt: Receipt | None, results: Path, *, retain: bool) -> None:
    """Save the receipt next to a site's results, and warn if the aggregator keeps what the policy does not let it."""
    if receipt is None:
        _log.warning("no receipt: the aggregator does not report what happens to this site's contributions")
        return
    if not receipt.deleted and not retain:
        _log.warning(
            "the aggregator keeps this site's contributions beyond the run's end, although the policy forbids it "
            "(retain)"
        )
    with suppress(OSError):  # the run has ended, and its results are written
        write_json(results / FILE, receipt.model_dump(mode="json"), private=True)
