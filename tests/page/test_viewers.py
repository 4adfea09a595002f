"""What viewers cost the run: processor time of the aggregator with ten of them, and with none, one after the other."""

from __future__ import annotations

import os
import statistics
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from rankdad.local.drivers.http_library import httpx
from rankdad.remote.tables import count_of
from tests.conftest import SITES
from tests.e2e.test_processes import rankdad, simulation, start, wait_for_line
from tests.warm import Warm

pytestmark = [pytest.mark.slow, pytest.mark.alone]

VIEWERS, WINDOW = 10, 4.0
PAIRS, MOST = 6, 0.02
SAMPLED = 2, 0.06  # pairs in the sample, too few for the promise itself
TICKS = os.sysconf("SC_CLK_TCK")


def processor(pid: int) -> float:
    """Seconds that a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def look_on(address: str, token: str, leave: threading.Event, came: threading.Semaphore) -> None:
    """Read the page's events until told to leave."""
    headers = {"authorization": f"Bearer {token}"}
    with (
        httpx.Client(trust_env=False, timeout=30, headers=headers) as client,
        client.stream("GET", f"{address}/page/events") as events,
    ):
        came.release()
        for _ in events.iter_bytes():
            if leave.is_set():
                return


def end(process: Warm) -> None:
    process.kill()
    process.communicate()


def test_ten_viewers_cost_a_step_two_percent_at_most(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Windows with and without viewers take turns: what a step computes is compared, in what a step takes."""
    pairs, most = SAMPLED if request.config.getoption("--sample") else (PAIRS, MOST)
    file = simulation(tmp_path, 400, training={"epochs": 100_000, "validation": 0.2}, record={"spectra": 50})
    aggregator = start("aggregator", file, "--output", tmp_path / "run", "--port", 0, "-q")
    with ExitStack() as stack:
        stack.callback(end, aggregator)
        address = wait_for_line(aggregator, "listening on").split(";")[0].removeprefix("listening on ").strip()
        assert rankdad("split", file, "--output", tmp_path / "hand", "--aggregator", address).returncode == 0
        for name in SITES:
            site = start("site", tmp_path / "hand" / f"{name}.json", "-q")
            stack.callback(end, site)
        token = (tmp_path / "run" / "viewer-token").read_text().strip()
        deadline = time.monotonic() + 120
        while count_of(tmp_path / "run", "steps") < 200:
            assert time.monotonic() < deadline
            time.sleep(0.2)

        def window() -> tuple[float, float]:
            """Return seconds of the aggregator's processor, and of the clock, for each step of some seconds."""
            count, computed, began = count_of(tmp_path / "run", "steps"), processor(aggregator.pid), time.perf_counter()
            time.sleep(WINDOW)
            done = count_of(tmp_path / "run", "steps") - count
            return (processor(aggregator.pid) - computed) / done, (time.perf_counter() - began) / done

        costs, clocks = list[float](), list[float]()
        for pair in range(pairs):
            found = {}
            for looked in (False, True) if pair % 2 else (True, False):
                leave, came = threading.Event(), threading.Semaphore(0)
                words = (address, token, leave, came)
                viewers = [threading.Thread(target=look_on, args=words) for _ in range(VIEWERS * looked)]
                for viewer in viewers:
                    viewer.start()
                for _ in viewers:
                    assert came.acquire(timeout=30)
                time.sleep(1.5)  # the first of all that they are told is not a step's
                found[looked] = window()
                leave.set()
                for viewer in viewers:
                    viewer.join(30)
            costs.append((found[True][0] - found[False][0]) / found[False][1])
            clocks.append(found[True][1] / found[False][1])
    cost = statistics.median(costs)
    print(
        f"\nten viewers: {100 * cost:.2f} % of a step's {1000 * found[False][1]:.1f} ms (pairs "
        f"{', '.join(f'{100 * one:.1f}' for one in costs)}), by the clock a factor of {statistics.median(clocks):.3f}"
    )
    assert cost <= most
