"""The service in containers of the image, as the platform starts them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.coinstac.nodes import ContainerNode
from tests.coinstac.platform import Faults, Platform, When
from tests.conftest import write_site
from tests.docker.images import docker, image
from tests.platforms.test_service import digests, small, without_the_platform

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.timeout(600)]


def test_containers_end_with_the_weights_of_the_run_over_http(tmp_path: Path) -> None:
    """Four sites; one container dies between two iterations, one in the middle of one, and the aggregator's twice."""
    spec, form = small(4)
    kills: list[tuple[int, str, When]] = [
        (4, "local0", "before"),
        (6, "local3", "during"),
        (5, "remote", "before"),
        (8, "remote", "answered"),
    ]
    user = int(docker("run", "--rm", "--entrypoint", "id", image(), "-u"))
    start = partial(ContainerNode, image=image(), files_owner=user)
    platform = Platform(form, tmp_path / "platform", start, faults=Faults(kills=kills))
    for place, node in enumerate(platform.sites):
        write_site(node.input, 70 - 9 * place, place)
    platform.run()
    folders = [node.input for node in platform.sites]
    assert digests(platform) == without_the_platform(spec, folders, tmp_path / "http")
    opened = max(accepted for node in platform.nodes.values() for accepted in node.accepted)
    first = opened + sum(one.seconds for one in platform.iterations[:3])
    print(f"\ncontainers: socket open after {opened:.2f} s at most, first round complete {first:.1f} s after the start")
    assert opened <= 3
    assert first <= 15
    assert all(stop.seconds < 5 and stop.status == 0 for stop in platform.stops.values()), platform.stops
