"""`python -m benchmarks step`: it measures whatever the number of sites, and our barrier is near the barest one."""

from __future__ import annotations

import pytest

from benchmarks.cli import SPECS
from benchmarks.step import measure_barriers, measure_step
from rankdad.simulations.simulator import import_before_forking
from rankdad.simulations.spec import read_simulation

pytestmark = pytest.mark.slow


def test_a_site_whose_epoch_is_one_step_is_measured_too() -> None:
    file = read_simulation(SPECS / "digits.json", ["run.training.batch_size=2000"])
    *times, up, down = map(float, measure_step(file, 2))
    assert min(times) > 0
    assert up == down > 1000


@pytest.mark.alone
def test_a_step_without_training_costs_at_most_twice_the_barest_one() -> None:
    import_before_forking()
    found = measure_barriers(4, 200_000, 200)
    print(found)
    assert found.ratio <= 2
