"""Whose the processes and the results are: nobody's but the user's whose folder they are written into."""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path

import pytest

from tests.coinstac.nodes import ContainerNode
from tests.docker.images import ROOT, docker, image
from tests.platforms.test_service import platform_of, small, write_member

pytestmark = [
    *(pytest.mark.slow, pytest.mark.docker, pytest.mark.xdist_group("docker"), pytest.mark.timeout(600)),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to other users"),
]

CONSORTIUM = ROOT / "docker" / "consortium.json"
FIELDS = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")


class WatchedNode(ContainerNode):
    """Notes what the kernel says of the service's process."""

    def connected(self) -> None:
        super().connected()
        lines = docker("exec", self.containers[-1], "cat", "/proc/1/status").splitlines()
        self.process = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}


@pytest.mark.exhaustive
@pytest.mark.parametrize("user", [1001, 12345, 0])
def test_started_as_the_platform_does_it_is_the_folders_owner_without_any_power(tmp_path: Path, user: int) -> None:
    _, form = small(1)
    start = partial(WatchedNode, image=image(), files_owner=user)
    platform = platform_of(form, tmp_path / "platform", write_member, start=start)
    platform.run()
    for node in platform.nodes.values():
        assert isinstance(node, WatchedNode)
        who, nothing = [str(user)] * 4, ["0" * 16]
        group = [str(node.output.stat().st_gid)] * 4
        assert [node.process[field] for field in FIELDS] == [who, group, [], *[nothing] * 5, ["1"]]
        written = {path: path.lstat() for path in node.output.rglob("*")}
        assert {status.st_uid for status in written.values()} == {user}
        assert all(status.st_mode & stat.S_IRUSR for status in written.values())
    assert (platform.sites[0].output / "model" / "best.safetensors").exists()


@pytest.mark.parametrize(("place", "expected"), [("/result", 1001), ("/kit/result", 1001), ("/elsewhere", 1000)])
def test_without_user_a_command_is_the_result_folders_owner_or_nobody(
    tmp_path: Path, place: str, expected: int
) -> None:
    os.chown(tmp_path, expected, expected)
    mounts = ("--volume", f"{CONSORTIUM}:/consortium.json:ro", "--volume", f"{tmp_path}:{place}")
    docker("run", "--rm", *mounts, image(), "provision", "/consortium.json", "--output", f"{place}/kits")
    assert {path.stat().st_uid for path in (tmp_path / "kits").rglob("*")} == {expected}


def test_root_that_cannot_become_another_user_is_told_what_to_do(tmp_path: Path) -> None:
    for options in (["--cap-drop", "ALL"], ["--cap-drop", "ALL", "--cap-add", "DAC_OVERRIDE"]):
        said = docker("run", "--rm", *options, image(), "schema", check=False)
        assert said == 'error: root cannot become another user in this container: add --user "$(id -u):$(id -g)"'
