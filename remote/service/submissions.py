"""Validation of owners' submissions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rankdad.common.documents import validate
from rankdad.common.errors import ProtocolError, SpecError, UserError
from rankdad.common.protocol.service import Submission
from rankdad.common.spec import RunSpec
from rankdad.remote.tracking import check_trackers


def checked_run(submission: Submission, sites: Sequence[str]) -> tuple[RunSpec, dict[str, Any]]:
    """Validate a submission; return its spec, and its document for the queue. Thread-safe.

    Args:
        submission: the submission as received.
        sites: the consortium's.

    Raises:
        ProtocolError: it is invalid for this service.
    """
    try:
        spec = validate(RunSpec, submission.spec)
    except SpecError as error:
        raise ProtocolError(422, str(error), code=error.code, field=error.field) from None
    if strangers := sorted(set(spec.federation.sites) - set(sites)):
        raise ProtocolError(
            422,
            f"federation.sites: {', '.join(strangers)} not in this consortium, expected some of "
            f"{', '.join(sites[:20])}",
            code="site-unknown",
            field="federation.sites",
        )
    if spec.federation.regions:
        raise ProtocolError(
            422,
            "federation.regions: a service does not support regions; use `rankdad aggregator` for each region",
            code="regions-not-here",
            field="federation.regions",
        )
    try:
        check_trackers(spec)
    except UserError as error:
        raise ProtocolError(422, str(error), code=error.code, field=error.field) from None
    return spec, spec.document()
