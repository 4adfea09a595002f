"""What an owner submits, or asks about, is checked before a service takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rankdad.common.documents import validate
from rankdad.common.errors import ProtocolError, SpecError, UserError
from rankdad.common.protocol.service import Submission
from rankdad.common.spec import RunSpec
from rankdad.remote.tracking import check_trackers


def checked_run(submission: Submission, sites: Sequence[str]) -> tuple[RunSpec, dict[str, Any]]:
    """Return a run that is submitted, and its spec as the queue keeps it; a thread may do that.

    Args:
        submission: as it came.
        sites: of the consortium.

    Raises:
        ProtocolError: it is not one for this service, says what is wrong.
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
            "federation.regions: a service has none; use `rankdad aggregator` for each region",
            code="regions-not-here",
            field="federation.regions",
        )
    try:
        check_trackers(spec)
    except UserError as error:
        raise ProtocolError(422, str(error), code=error.code, field=error.field) from None
    return spec, spec.document()
