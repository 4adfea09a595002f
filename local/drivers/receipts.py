"""Receipts: what the aggregator says of a site's contributions after a run's end."""

from __future__ import annotations

import logging
from pathlib import Path

from rankdad.common.files import write_json
from rankdad.common.protocol.retention import FILE, Receipt

_log = logging.getLogger(__name__)


def keep_receipt(receipt: Receipt | None, results: Path, *, retain: bool) -> None:
    """Save the receipt next to a site's results, and warn if the aggregator keeps what the policy does not let it.

    Raises:
        UserError: the disk is full or broken.
    """
    if receipt is None:
        _log.warning("no receipt: the aggregator does not report what happens to this site's contributions")
        return
    write_json(results / FILE, receipt.model_dump(mode="json"), private=True)
    if not receipt.deleted and not retain:
        _log.warning(
            "the aggregator keeps this site's contributions beyond the run's end, although the policy forbids it "
            "(retain)"
        )
