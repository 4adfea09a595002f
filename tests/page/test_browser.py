"""The live page in a real Chromium, of a federation of real processes: what a person sees, and what nobody may."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rankdad.local.drivers.http_library import httpx
from rankdad.remote.auth import hashed
from tests.conftest import SITES
from tests.e2e.test_processes import rankdad, simulation, start, wait_for_line
from tests.page.looking import LOOKS, check_look, until
from tests.remote.report.browser import Browser
from tests.remote.report.test_browser import OUTSIDE
from tests.remote.serving import serving
from tests.warm import Warm

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.xdist_group("browser")]

DRAWN = "[...document.querySelectorAll('.chart')].filter(box => !box.hidden && box.querySelector('svg')).length"
VISIBLE = "[...document.querySelectorAll('.chart')].filter(box => box.clientWidth && box.querySelector('svg')).length"
FOCUSED = "(box => box.id || box.className || box.tagName)(document.activeElement)"
CHOOSE = "(box => { box.value = 'beta'; box.dispatchEvent(new Event('change')) })(document.getElementById('site'))"
REDRAW = """
(box => {
  const began = performance.now();
  box.dispatchEvent(new Event("change"));
  return performance.now() - began;
})(document.getElementById("site"))
"""
GONE = "document.querySelector('#hospitals-table tbody tr:nth-child(2) .gone')?.innerText ?? ''"


@dataclass
class Federation:
    """An aggregator and its sites."""

    address: str
    token: str
    sites: dict[str, Warm]

    def state(self) -> dict[str, Any]:
        """What the page is told."""
        headers = {"authorization": f"Bearer {self.token}"}
        answer = httpx.get(f"{self.address}page/state", headers=headers, trust_env=False, timeout=20)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three sites that train for longer than the tests take."""
    folder = tmp_path_factory.mktemp("federation")
    training = {"epochs": 100_000, "validation": 0.2}
    file = simulation(folder, 200, training=training, record={"spectra": 5})
    aggregator = start("aggregator", file, "--output", folder / "run", "--port", 0)
    processes = [aggregator]
    try:
        address = wait_for_line(aggregator, "listening on").split(";")[0].removeprefix("listening on ").strip()
        wait_for_line(aggregator, "the live page")
        assert rankdad("split", file, "--output", folder / "hand", "--aggregator", address).returncode == 0
        sites = {name: start("site", folder / "hand" / f"{name}.json") for name in SITES}
        processes += sites.values()
        yield Federation(f"{address}/", (folder / "run" / "viewer-token").read_text().strip(), sites)
    finally:
        for process in processes:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)
            process.kill()
            process.communicate()


def shown(chromium: Browser, federation: Federation, width: int = 1200, *, dark: bool = False, drawn: int = 1) -> None:
    """Open the page as a viewer."""
    page = f"{federation.address}page/"
    chromium.open(page, width, dark=dark)
    if chromium.evaluate("!!document.getElementById('token')"):
        token = json.dumps(federation.token)
        chromium.evaluate(f"document.getElementById('token').value = {token}; document.forms[0].submit()")
    until(
        lambda: chromium.evaluate(f"!!document.getElementById('verdict') && {DRAWN}") >= drawn, what="nothing is drawn"
    )


def technical(chromium: Browser, drawn: int = 4) -> None:
    """Choose the tab of technical figures."""
    chromium.evaluate("document.getElementById('tab-technical').click()")
    until(lambda: chromium.evaluate(VISIBLE) >= drawn, what="nothing is drawn")


def press(chromium: Browser, key: str, code: int) -> str:
    """Press a key and return what has the focus then."""
    for kind in ("keyDown", "keyUp"):
        chromium.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)
    focused: str = chromium.evaluate(FOCUSED)
    return focused


def text_of(chromium: Browser, element: str) -> str:
    found: str = chromium.evaluate(f"document.getElementById('{element}').innerText")
    return found


def test_curves_grow_and_nothing_comes_from_elsewhere(chromium: Browser, federation: Federation) -> None:
    until(lambda: federation.state()["stand"]["epoch"] >= 2, what="the run does not train")
    chromium.requests.clear()
    chromium.complaints.clear()
    shown(chromium, federation)
    assert chromium.evaluate("document.cookie") == "", "scripts can read the token"
    technical(chromium)
    last = "document.getElementById('steps-chart').data.at(-1).x.at(-1)"
    steps = chromium.evaluate(last)
    epochs = chromium.evaluate("document.getElementById('metric-chart').data.at(-1).x.at(-1)")
    until(lambda: chromium.evaluate(last) > steps, what="the curve does not grow")
    names = [trace["name"] for trace in chromium.evaluate("document.getElementById('metric-chart').data")]
    assert names[:4] == [*SITES, "all together"]
    assert names[4].startswith("best, epoch ")
    assert epochs >= 1
    until(lambda: chromium.evaluate("document.getElementById('spectrum-chart').data?.length > 0"))
    assert set(chromium.requests) >= {f"{federation.address}page/{name}" for name in ("events", "plotly.js")}
    assert not [one for one in chromium.requests if not one.startswith((federation.address, "data:"))]
    assert not [one for one in chromium.complaints if "401" not in one and "Password forms" not in one]


def test_no_text_is_clipped_in_any_look(chromium: Browser, federation: Federation, tmp_path: Path) -> None:
    for width, dark in LOOKS:
        shown(chromium, federation, width, dark=dark)
        for tab in ("run", "technical"):
            if tab == "technical":
                technical(chromium)
            time.sleep(1.5)  # a resize is drawn in the next frame
            chromium.screenshot(tmp_path / f"{width} {'dark' if dark else 'light'} {tab}.png")
            check_look(chromium, width, dark=dark)
    shown(chromium, federation, 680)
    chromium.call("Emulation.setEmulatedMedia", media="print", features=[])
    check_look(chromium, 680, dark=False)
    if kept := os.environ.get("RANKDAD_SCREENSHOTS"):
        shutil.copytree(tmp_path, kept, dirs_exist_ok=True)


def test_keys_reach_all_that_can_be_chosen(chromium: Browser, federation: Federation) -> None:
    shown(chromium, federation)
    reached = [press(chromium, "Tab", 9) for _ in range(6)]
    assert {"skip", "BUTTON", "tab-run", "site", "table"} <= set(reached)
    chromium.evaluate("document.getElementById('tab-run').focus()")
    assert press(chromium, "ArrowRight", 39) == "tab-technical"
    until(lambda: chromium.evaluate(VISIBLE) >= 4, what="the other tab does not open")
    assert {"layer", "table", "lines"} <= {press(chromium, "Tab", 9) for _ in range(6)}
    chromium.evaluate("document.getElementById('tab-technical').focus()")
    assert press(chromium, "ArrowLeft", 37) == "tab-run"
    chromium.evaluate(CHOOSE)
    names = [trace["name"] for trace in chromium.evaluate("document.getElementById('metric-chart').data")]
    assert names[:2] == ["beta", "all together"]


def test_64_sites_and_100_000_steps_stay_smooth(chromium: Browser, tmp_path: Path) -> None:
    sites = [f"hospital-{number:02}" for number in range(64)]
    token = "a viewer's token, which is long"
    with serving(tmp_path / "run", viewers={"pi": hashed(token)}, federation={"sites": sites}) as served:
        history = served.aggregator.recorder.history
        for step in range(100_000):
            losses = dict.fromkeys(sites, 1 / (1 + step)) if step % 100 == 0 else {}
            history.add_step(1 / (1 + step), 0.1, 0.01, [], losses, dict.fromkeys(sites, (0.1, 0.2, 0.3)))
            if step % 100 == 0:
                row = {"loss": 1 / (2 + step), "train_loss": 0.5}
                history.add_epoch(dict.fromkeys((*sites, "pooled"), row))
        address = f"http://127.0.0.1:{served.port}/"
        took = []
        for _ in range(5):
            began = time.perf_counter()
            state = httpx.get(f"{address}page/state", headers={"authorization": f"Bearer {token}"}, trust_env=False)
            took.append(time.perf_counter() - began)
        shown(chromium, Federation(address, token, {}))
        technical(chromium, drawn=3)
        drawn = sorted(chromium.evaluate(REDRAW) for _ in range(5))
        chromium.screenshot(tmp_path / "64 sites.png")
        assert chromium.evaluate(OUTSIDE) == []
    print(
        f"\n64 sites, 100,000 steps: the server answers in {1000 * min(took):.0f} to {1000 * max(took):.0f} ms "
        f"({len(state.content) / 1e6:.2f} MB), all is drawn again in {drawn[0]:.0f} to {drawn[-1]:.0f} ms"
    )
    assert min(took) < 0.5
    assert drawn[0] < 500


def test_a_site_that_is_waited_for_is_named_and_a_killed_one_is_gone(chromium: Browser, federation: Federation) -> None:
    """Last of all: the run stands still from here on."""
    shown(chromium, federation)
    os.kill(federation.sites["beta"].pid, signal.SIGSTOP)
    took = until(lambda: text_of(chromium, "awaited").startswith("beta, since "), 10)
    federation.sites["beta"].kill()
    gone = until(lambda: "disconnected" in chromium.evaluate(GONE), 10)
    assert "disconnected" not in chromium.evaluate("document.querySelector('#hospitals-table tbody tr').innerText")
    print(f"\na site that stands still is named after {took:.1f} s, a killed one is gone after {gone:.1f} s")
    assert took <= 2
    assert gone <= 2
