from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.remote.report.browser import Browser, browser, find


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find()
    if program is None:
        pytest.skip("there is no Chromium on this machine (Debian: apt-get install chromium)")
    with browser(program, tmp_path_factory.mktemp("profile")) as started:
        for domain in ("Network", "Runtime", "Log"):
            started.call(f"{domain}.enable")
        yield started
