"""A real Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from rankdad.local.drivers.http_library import httpx

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
AXE = """axe.run(document, {runOnly: RULES}).then(found => found.violations.map(
  one => `${one.id}: ${one.nodes.slice(0, 3).map(node => node.html.slice(0, 120)).join(" | ")}`))"""
PATIENCE = 30.0  # seconds for the browser to start


def find() -> str | None:
    """Return the browser of this machine."""
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


class Browser:
    """One page of a browser.

    Args:
        connection: to the page.

    Attributes:
        requests: addresses that the page has asked for since `Network.enable` was called.
        complaints: what the page has written to its console, and errors of its scripts.
    """

    def __init__(self, connection: ClientConnection) -> None:
        self._connection, self._numbers = connection, itertools.count(1)
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            answer = json.loads(self._connection.recv(timeout=PATIENCE))
            if answer.get("method") == "Network.requestWillBeSent":
                self.requests.append(answer["params"]["request"]["url"])
            elif answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(json.dumps(answer["params"]))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, path: Path | str, width: int, *, dark: bool = False, media: str = "screen") -> None:
        """Show a file or an address as a screen of this width, or a printed page, does."""
        address = path if isinstance(path, str) else path.as_uri()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.call("Page.enable")
        self.call("Page.navigate", url=address)
        deadline = time.monotonic() + PATIENCE
        while self.evaluate("document.readyState + location.href") != f"complete{address}":
            assert time.monotonic() < deadline, "the page does not load"
            time.sleep(0.02)

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def violations(self) -> list[str]:
        """Return what of the page breaks WCAG 2.1 at level AA, as far as axe-core can tell."""
        self.evaluate(f"{_axe()}; 0")
        script = AXE.replace("RULES", json.dumps(RULES))
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        names: list[str] = found["result"]["value"]
        return names

    def screenshot(self, path: Path) -> None:
        """Write the whole page as a picture."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@cache
def _axe() -> str:
    return (files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")


@contextmanager
def browser(program: str, folder: Path) -> Iterator[Browser]:
    """Start a browser with an empty profile in a folder, and end it."""
    arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--hide-scrollbars"]
    command = [program, *arguments, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port, deadline = folder / "DevToolsActivePort", time.monotonic() + PATIENCE
        while not port.exists() or not port.read_text().strip():
            assert process.poll() is None, "the browser has ended"
            assert time.monotonic() < deadline, "the browser does not start"
            time.sleep(0.05)
        address = f"http://127.0.0.1:{port.read_text().split()[0]}/json"
        page = next(one for one in httpx.get(address, trust_env=False).json() if one["type"] == "page")
        with connect(page["webSocketDebuggerUrl"], max_size=None, proxy=None) as connection:
            yield Browser(connection)
    finally:
        process.terminate()
        process.wait(PATIENCE)
