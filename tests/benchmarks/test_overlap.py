"""`python -m benchmarks overlap`: what is promised of a slow link, and the command's own sentences."""

from __future__ import annotations

import pytest

from benchmarks.overlap import hidden, measure
from tests.e2e.test_processes import benchmark


@pytest.mark.slow
@pytest.mark.alone
def test_buckets_hide_half_of_a_slow_links_time_on_the_papers_gru() -> None:
    """The best of three, since whatever else the machine does takes time from both."""
    method, shares = {"name": "dsgd"}, list[float]()
    while len(shares) < 3 and max(shares, default=0.0) < 0.5:
        one, many = (measure({**method, "buckets": count}, (51, 24), 64, 5) for count in (1, 16))
        assert one.exposed >= one.link, "nothing of a single message is hidden"
        shares.append(hidden(one, many))
    assert max(shares) >= 0.5, shares


def test_a_method_that_is_none_is_a_sentence() -> None:
    done = benchmark("overlap", "--method", "dsgd")
    assert done.returncode == 2
    assert "got 'dsgd', expected such as {" in done.stderr
