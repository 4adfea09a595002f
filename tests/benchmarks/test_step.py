"""`python -m benchmarks step`: it measures whatever the number of sites, and our barrier is near the barest one."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from benchmarks import floor
from benchmarks.against import HERE as ROOT
from benchmarks.options import SPECS
from benchmarks.step import barrier_seconds, measure_barriers, measure_step
from benchmarks.turns import NETWORKS
from rankdad.common.errors import UserError
from rankdad.simulations.simulator import import_before_forking
from rankdad.simulations.spec import read_simulation
from tests.e2e.test_processes import benchmark

pytestmark = pytest.mark.slow


def test_a_site_whose_epoch_is_one_step_is_measured_too() -> None:
    file = read_simulation(SPECS / "digits.json", ["run.training.batch_size=2000"])
    *times, up, down = map(float, measure_step(file, 2))
    assert min(times) > 0
    assert up == down > 1000


@pytest.mark.exhaustive
@pytest.mark.parametrize("sites", ["1,2", pytest.param("4,16,48", marks=pytest.mark.exhaustive)])
def test_the_command_measures_few_and_many_sites_in_the_fewest_steps(sites: str) -> None:
    done = benchmark("step", "--sites", sites, "--steps", "10", "--bytes", "1000", timeout=280)
    assert (done.returncode, done.stderr) == (0, "")
    measured = re.findall(r"^│ (\d+) ", done.stdout, flags=re.MULTILINE)
    assert measured == 2 * sites.split(",")


@pytest.mark.exhaustive
def test_no_sites_and_a_client_that_ends_early_are_sentences() -> None:
    done = benchmark("step", "--sites", "0", timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("error: federation.sites: got []")
    with pytest.raises(UserError, match="a client of the barrier for 1 sites has ended before all was measured"):
        barrier_seconds(floor.streams_server, lambda *arguments: os._exit(1), 1, 1000, 10)


@pytest.mark.exhaustive
@pytest.mark.alone
def test_a_step_without_training_costs_at_most_three_times_the_barest_one() -> None:
    import_before_forking()
    found = measure_barriers(4, 200_000, 200)
    print(found)
    assert found.ratio <= 3


@pytest.mark.exhaustive
def test_a_tree_against_itself_costs_as_much(tmp_path: Path) -> None:
    changes = ("--set", "run.training.epochs=1", "--set", 'run.federation.sites=["a", "b"]')
    done = benchmark("step", "--against", ROOT, "--turns", "3", *changes, timeout=280)
    assert (done.returncode, done.stderr) == (0, "")
    assert "here / there" in done.stdout
    refused = benchmark("low-rank", "--against", str(tmp_path), timeout=60)
    assert refused.returncode == 2
    assert "[not-a-tree]" in refused.stderr


@pytest.mark.exhaustive
def test_low_rank_is_measured_in_turns_on_three_networks() -> None:
    done = benchmark("low-rank", "--against", str(ROOT), "--turns", "3", "--steps", "5", timeout=280)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(done.stdout.count(name) == 2 for name in NETWORKS)


@pytest.mark.exhaustive
def test_options_of_low_rank_send_fewer_bytes_than_gradients() -> None:
    done = benchmark("settings", "--tables", "bytes", "--ranks", "2", timeout=280)
    assert (done.returncode, done.stderr) == (0, "")
    sent = dict(re.findall(r"│ (\S.*?) +│ (\d+) \(", done.stdout))
    assert (len(sent), 20 * int(sent["LowRank, gathering"]) < int(sent["DistributedDataParallel"])) == (7, True)
