"""A folder that results are written into has one owner at a time, and is no other's afterwards."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankdad.common.errors import UserError
from rankdad.common.files import LOCK, owned
from rankdad.common.logs import LogOptions
from rankdad.local.agent.agent import Agent
from rankdad.local.drivers.running import run_site
from rankdad.remote.beginning import Options
from rankdad.remote.config import Access
from rankdad.remote.consortium import Consortium
from rankdad.remote.run_directory import own_directory
from rankdad.remote.server import listen
from rankdad.remote.service.process import serve_consortium
from tests.common.faults import fault
from tests.conftest import site_config, write_policy, write_site
from tests.remote.serving import serving


@contextmanager
def elsewhere(folder: Path, owner: str) -> Iterator[int]:
    """Another process has a folder; yield its number."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def keep() -> None:
        here.close()
        with owned(folder, owner):
            there.send("")
            there.recv()

    process = context.Process(target=keep, daemon=True)
    process.start()
    there.close()
    try:
        here.recv()
        assert process.pid is not None
        yield process.pid
    finally:
        process.kill()
        process.join()


def test_a_folder_is_one_process_s_and_free_once_that_is_killed(tmp_path: Path) -> None:
    with elsewhere(tmp_path, "beta") as number:
        with pytest.raises(UserError) as refused, owned(tmp_path, "alpha"):
            pass
        error = refused.value
        assert (error.code, error.field, error.site) == ("folder-in-use", "output", "beta")
        os.kill(number, signal.SIGKILL)
        for _ in range(100):
            try:
                with owned(tmp_path, "beta"):
                    break
            except UserError:
                time.sleep(0.02)
        else:
            pytest.fail("it is still kept")


def test_a_child_process_keeps_no_folder(tmp_path: Path) -> None:
    """Such as one that reads ahead, and outlives a site that was killed for some seconds."""
    context = multiprocessing.get_context("fork")
    with owned(tmp_path, "alpha"):  # forked with the lock's file open
        child = context.Process(target=time.sleep, args=(60,), daemon=True)
        child.start()
    with elsewhere(tmp_path, "alpha"):
        child.kill()
        child.join()


def test_a_folder_stays_its_owner_s(tmp_path: Path) -> None:
    for _ in range(2):
        with owned(tmp_path, "beta"):
            assert (tmp_path / LOCK).read_text() == "beta\n"
            (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(UserError) as refused, owned(tmp_path, "alpha"):
        pass
    assert (refused.value.code, refused.value.site) == ("folder-of-another", "beta")
    (tmp_path / "link").symlink_to(tmp_path)
    for same in (tmp_path / "link", tmp_path / "link" / ".." / tmp_path.name):
        with pytest.raises(UserError) as refused, owned(same, "alpha"):
            pass
        assert (refused.value.code, refused.value.site) == ("folder-of-another", "beta")
    (tmp_path / LOCK).unlink()
    (tmp_path / LOCK).mkdir()
    with pytest.raises(UserError) as refused, owned(tmp_path, "alpha"):
        pass
    assert refused.value.code == "cannot-write"


@pytest.mark.slow
@pytest.mark.parametrize("owner", ["beta", "alpha"])
def test_a_second_site_in_one_output_folder_is_refused(tmp_path: Path, owner: str) -> None:
    write_site(tmp_path / "data", 30, 0)
    (tmp_path / "out").mkdir()
    with serving(tmp_path / "run") as served, elsewhere(tmp_path / "out", owner):
        places = {"data": str(tmp_path / "data"), "output": str(tmp_path / "out"), "policy": write_policy(tmp_path)}
        with pytest.raises(UserError) as refused:
            run_site(site_config(served.port, **places))
        assert (refused.value.code, refused.value.site) == ("folder-in-use", owner)
        problems = served.aggregator.recorder.progress.problems
        assert set(problems) == ({"alpha"} if owner == "beta" else set()), "who takes part already has no problem"
        assert str(tmp_path) not in problems.get("alpha", "")


def test_agents_services_and_aggregators_have_their_folders_for_themselves(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    with elsewhere(tmp_path / "agent", "beta"):
        assert (
            fault(lambda: Agent(site_config(1, output=str(tmp_path / "agent")), LogOptions(), tmp_path).run())[0]
            == "folder-in-use"
        )
    with elsewhere(tmp_path, "aggregator"):
        for new in (True, False):
            with pytest.raises(UserError) as refused, own_directory(tmp_path, "aggregator", new=new):
                pass
            assert (refused.value.code, refused.value.field) == ("folder-in-use", "--output")
        consortium = Consortium(name="test", aggregator="https://unused.example", sites=("alpha",))
        with listen("127.0.0.1", 0) as listening, pytest.raises(UserError) as refused:
            serve_consortium(consortium, tmp_path, listening, Access(), Options())
        assert refused.value.code == "folder-in-use"


def test_a_folder_without_results_is_nobodys(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="refused"), owned(tmp_path, "beta"):
        raise ValueError("refused")
    with owned(tmp_path, "alpha"):
        assert (tmp_path / LOCK).read_text() == "alpha\n"
