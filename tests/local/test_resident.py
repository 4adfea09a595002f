"""A site's process that stays, and the processes that come to it: calls are lost, repeated, and taken over."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rankdad.common.protocol.calls import Call, Reply, packed, unpacked
from rankdad.local.drivers import resident

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # processes outlive who starts them
]
SITE = """
import os, sys
from pathlib import Path
from rankdad.local.drivers.resident import serve

def work(connection):
    with open(sys.argv[3], "a") as file:
        print(os.getpid(), file=file)
    connection.run()
    connection.recorded(1)

serve("alpha", sys.argv[1], Path(sys.argv[2]), work)
"""


class Site:
    """What an engine's process does for one job after the other."""

    def __init__(self, folder: Path) -> None:
        self.pids, self.address = folder / "pids", folder / "socket"
        self.script = folder / "site.py"
        self.script.write_text(SITE)

    def advance(self, job: str, reply: Reply) -> Call:
        words = [sys.executable, str(self.script), job, str(self.address), str(self.pids)]
        return unpacked(Call, resident.advance(words, self.address, job, packed(reply)), 1000)

    def started(self) -> list[int]:
        return [int(line) for line in self.pids.read_text().splitlines()]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    root = Path(__file__).parent.parent.parent
    monkeypatch.setenv("PYTHONPATH", str(root))
    site = Site(tmp_path)
    yield site
    for pid in site.started():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_process_stays_until_the_run_ends_gives_the_same_call_again_and_is_missed_when_it_is_killed(
    site: Site,
) -> None:
    answer = Reply(number=1, body=b'{"id": "0123"}')
    assert site.advance("1", Reply(number=0)).what == "run"
    assert site.advance("1", Reply(number=0)).what == "run"
    assert site.advance("1", answer).what == "ask"
    (first,) = site.started()
    os.kill(first, signal.SIGKILL)
    assert site.advance("1", Reply(number=2)).what == "run"  # the new one knows nothing
    assert site.advance("2", Reply(number=0)).number == 1  # another job has another process
    assert len(set(site.started())) == 3
    assert site.advance("2", answer).what == "ask"
    assert site.advance("2", Reply(number=2)).what == "end"
    until = time.monotonic() + 30
    while site.address.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not site.address.exists()


def test_a_folder_that_others_can_enter_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    address = resident.address_of("/etc/rankdad/site.json", "0123456789abcdef")
    assert address != resident.address_of("/etc/rankdad/site.json", "fedcba9876543210")
    assert address.parent.stat().st_mode & 0o777 == 0o700
    address.parent.chmod(0o755)
    with pytest.raises(PermissionError):
        resident.address_of("/etc/rankdad/site.json", "0123456789abcdef")
