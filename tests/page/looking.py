"""What tests of pages in a browser wait for, and what holds of every look of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.remote.report.browser import Browser
from tests.remote.report.test_browser import CLIPPED, CONTRAST, OUTSIDE, OVERLAPPING

PATIENCE = 60.0
LOOKS = [(1200, True), (400, False)]
TEXT = "document.body?.innerText ?? ''"


def until(condition: Callable[[], Any], seconds: float = PATIENCE, what: str = "it does not come") -> float:
    """Wait for something, and return for how long."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, what
        time.sleep(0.05)
    return time.monotonic() - began


def check_look(chromium: Browser, width: int, *, dark: bool) -> None:
    """Check that nothing is clipped, lies on something else, or can hardly be read."""
    look = f"{width} {'dark' if dark else 'light'}"
    assert chromium.violations() == [], look
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width, look
    for script in (CLIPPED, OUTSIDE, OVERLAPPING):
        assert chromium.evaluate(script) == [], look
    assert chromium.evaluate(CONTRAST) > 80, f"{look}: some text has hardly any contrast"
    assert chromium.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(21, 23, 26)" if dark else "rgb(255, 255, 255)"
    )
