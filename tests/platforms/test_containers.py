"""The service in containers of the image, as the platform starts them."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path

import pytest

from tests.coinstac.nodes import ContainerNode
from tests.coinstac.platform import Faults, Platform, When
from tests.conftest import write_site
from tests.docker.images import image
from tests.platforms.test_service import digests, small, without_the_platform

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.docker, pytest.mark.timeout(600)]


def run(folder: Path, sites: int, kills: Collection[tuple[int, str, When]] = ()) -> Platform:
    spec, form = small(sites)
    start = partial(ContainerNode, image=image())
    platform = Platform(form, folder / "platform", start, faults=Faults(kills=kills))
    for place, node in enumerate(platform.sites):
        write_site(node.input, 70 - 9 * place, place)
    platform.run()
    folders = [node.input for node in platform.sites]
    assert digests(platform) == without_the_platform(spec, folders, folder / "http")
    assert all(stop.seconds < 5 and stop.status == 0 for stop in platform.stops.values()), platform.stops
    return platform


def test_containers_begin_soon_and_end_with_the_weights_of_the_run_over_http(tmp_path: Path) -> None:
    platform = run(tmp_path, 2)
    opened = max(accepted for node in platform.nodes.values() for accepted in node.accepted)
    first = opened + sum(one.seconds for one in platform.iterations[:2])  # the second carries hello
    print(f"\ncontainers: socket open after {opened:.2f} s at most, first round complete {first:.1f} s after the start")
    assert opened <= 3
    assert first <= 15


def test_containers_that_are_killed_change_nothing(tmp_path: Path) -> None:
    """Four sites; one dies between two iterations, one in the middle of one, and the aggregator twice."""
    run(
        tmp_path,
        4,
        [(4, "local0", "before"), (6, "local3", "during"), (5, "remote", "before"), (8, "remote", "answered")],
    )
