"""`python -m benchmarks overlap`: what is promised of a slow link, and the command's own sentences."""

from __future__ import annotations

import pytest

from benchmarks.overlap import hidden, measure
from tests.e2e.test_processes import benchmark


@pytest.mark.slow
@pytest.mark.alone
def test_buckets_hide_half_of_a_slow_links_time_on_the_papers_gru() -> None:
    one, many = (measure({"name": "dsgd", "buckets": count}, (51, 24), 64, 5) for count in (1, 16))
    assert one.exposed >= one.link, "nothing of a single message is hidden"
    assert hidden(one, many) >= 0.5


@pytest.mark.slow
def test_a_method_that_is_none_is_a_sentence() -> None:
    done = benchmark("overlap", "--method", "dsgd")
    assert done.returncode == 2
    assert "got 'dsgd', expected such as {" in done.stderr
