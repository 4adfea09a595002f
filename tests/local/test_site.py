"""A site's own checks of what the aggregator offers."""

from __future__ import annotations

import pytest

from common.errors import UserError
from local.site import run_id


def test_a_runs_number_is_taken_as_it_is() -> None:
    assert run_id({"id": "0123456789abcdef"}) == "0123456789abcdef"


@pytest.mark.parametrize(
    "found", [None, "", "..", "../../../etc", "0123456789abcde/", "0123456789ABCDEF", "a" * 400, 7]
)
def test_a_number_that_could_lead_out_of_the_folder_is_refused(found: object) -> None:
    with pytest.raises(UserError, match="expected 16 hexadecimal digits"):
        run_id({"id": found})
