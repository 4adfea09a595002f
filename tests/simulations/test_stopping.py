"""Stop signals of a simulation: what they meet in a process takes them for no error of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from rankdad.simulations import simulator, star
from rankdad.simulations.simulator import SimulationError


def test_a_rank_that_is_told_to_stop_ends_by_no_error_that_could_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(star, "ENDING", 0.01)
    swallowed = list[Exception]()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)}
    signal.signal(signal.SIGTERM, star._stop_soon)

    def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            time.sleep(0.5)
        except Exception as error:
            swallowed.append(error)

    try:
        with pytest.raises(SystemExit) as ended:
            work()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert ended.value.code == 128 + signal.SIGTERM
    assert not swallowed


class Ending:
    """A process that has ended; while it is waited for, a signal comes."""

    name, exitcode = "alpha", 0

    def __init__(self) -> None:
        self.sentinel, self._writing = os.pipe()
        os.close(self._writing)
        self.swallowed = list[Exception]()

    def join(self) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
        except Exception as error:
            self.swallowed.append(error)


def test_a_simulation_is_stopped_whatever_it_is_at(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, ends = Ending(), list[tuple[str, ...]]()

    def stop(processes: Iterable[BaseProcess], acts: Iterable[str]) -> None:
        ends.append(tuple(acts))

    monkeypatch.setattr(simulator, "stop", stop)
    processes = simulator._Processes.__new__(simulator._Processes)
    vars(processes).update(_aggregators={}, _sites={"alpha": ended}, _lifelines={}, _died=0, _required=1)
    processes._first = "alpha"
    monkeypatch.setattr(processes, "_how_to_resume", lambda: "")
    vars(processes)["_directory"] = Path("run")
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SimulationError) as stopped:
        processes.run()
    os.close(ended.sentinel)
    assert not ended.swallowed
    assert stopped.value.exit_code == 130
    assert ends[0][0] == "terminate"
    assert signal.getsignal(signal.SIGTERM) is before
