"""Makes the pictures of README and documentation: `python -m tests.pictures [step] [roc] [live]`, into docs/pictures.

`step` is drawn here. `roc` is the curve of the report on examples/tables, `live` the live page of the digits while they
train: both need Chromium, and take a minute.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.remote.report import browser as driver
from tests.remote.report.browser import Browser, browser, find

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
LEARNT = 6  # epochs, before the live page is taken
PATIENCE = 1800.0
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2328; text-anchor: middle }
.name { font-weight: 600 } .small { font-size: 12px; fill: #59636e }
.page { fill: #ffffff } .box { fill: #f6f8fa; stroke: #8c959f } .ours { fill: #ddf4ff; stroke: #0969da }
.way { fill: none; stroke: #0969da; stroke-width: 1.5 } .head { fill: #0969da }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9198a1 } .page { fill: #0d1117 }
  .box { fill: #161b22; stroke: #6e7681 } .ours { fill: #12305a; stroke: #58a6ff }
  .way { stroke: #58a6ff } .head { fill: #58a6ff }
}
"""


def box(x: int, y: int, width: int, lines: list[str], kind: str = "box", height: int = 56) -> str:
    """Draw a box with its middle at (x, y)."""
    drawn = (
        f'<rect class="{kind}" x="{x - width // 2}" y="{y - height // 2}" width="{width}" height="{height}" rx="6"/>'
    )
    for place, line in enumerate(lines):
        below = y + 5 + round(18 * (place - (len(lines) - 1) / 2))
        kind = ' class="small"' if place else ""
        drawn += f'<text{kind} x="{x}" y="{below}">{line}</text>'
    return drawn


def way(x: int, y: int, to_x: int, to_y: int) -> str:
    """Draw an arrow, level at both ends."""
    middle = (x + to_x) // 2
    return f'<path class="way" marker-end="url(#head)" d="M{x} {y} C{middle} {y} {middle} {to_y} {to_x - 7} {to_y}"/>'


def step() -> str:
    """Return one step as a picture: what each hospital computes, and what travels."""
    rows = {"a": 85, "b": 165, "c": 245}
    parts = ['<rect class="page" width="980" height="310" rx="8"/>']
    for x, name in ((150, "backward pass"), (375, "reduce"), (605, "aggregator"), (850, "the same step everywhere")):
        parts.append(f'<text class="name" x="{x}" y="32">{name}</text>')
    for site, y in rows.items():
        parts += [
            f'<text class="name" x="32" y="{y + 5}">{site}</text>',
            box(150, y, 180, ["activations A, deltas Δ", "gradient = Δᵀ A"]),
            way(240, y, 310, y),
            box(375, y, 130, ["r rows", "of A and of Δ"], "ours"),
            way(440, y, 530, rows["b"]),
            way(680, rows["b"], 755, y),
            box(850, y, 190, ["r rows for all", "optimizer's step"]),
        ]
    parts.append(box(605, rows["b"], 150, ["concatenate,", "then reduce to r rows"], "ours"))
    parts.append('<text class="small" x="485" y="292">sent: r (in + out) numbers a layer</text>')
    parts.append('<text class="small" x="718" y="292">received: the same</text>')
    title = "One step of rank-dAD at three hospitals"
    head = '<marker id="head" viewBox="0 0 8 8" refX="1" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    arrow = f'<defs>{head}<path class="head" d="M0 0 8 4 0 8z"/></marker></defs>'
    opened = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 980 310" role="img">'
    return "\n".join([opened, f"<title>{title}</title><style>{STYLE}</style>{arrow}", *parts, "</svg>", ""])


def rankdad(*words: object, folder: Path) -> None:
    """Run a command of ours."""
    command = [sys.executable, "-m", "rankdad", *map(str, words)]
    subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, stdout=-1)


@contextmanager
def chromium() -> Iterator[Browser]:
    driver.PATIENCE = 300.0  # a busy machine still draws
    program = find()
    if program is None:
        sys.exit("there is no Chromium on this machine")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, browser(program, Path(folder)) as started:
        yield started


def shoot(page: Browser, name: str, x: float, y: float, width: float, height: float) -> None:
    """Write a part of the page as a picture."""
    clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
    shot = page.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
    (PICTURES / name).write_bytes(base64.b64decode(shot["data"]))


def roc(folder: Path) -> None:
    """Take the ROC curve of a report."""
    study = folder / "tables"
    shutil.copytree(ROOT / "examples" / "tables", study)
    subprocess.run([sys.executable, "data.py"], cwd=study, check=True)
    rankdad("simulate", "study.json", "--output", "result", folder=study)
    rankdad("report", "result", folder=study)
    with chromium() as page:
        page.open(study / "result" / "report.html", 800)
        script = """(figure => {
          for (const part of document.querySelectorAll('details')) part.open = true;
          const box = figure.getBoundingClientRect();
          return [box.x + scrollX, box.y + scrollY, box.width, box.height];
        })([...document.querySelectorAll('figure')].find(one => one.textContent.includes('ROC curve')))"""
        shoot(page, "roc.png", *page.evaluate(script))


def live(folder: Path) -> None:
    """Take the live page of a run that trains."""
    spec = json.loads((ROOT / "simulations" / "specs" / "digits.json").read_text())
    spec["run"]["federation"]["sites"] = ["hospital-a", "hospital-b", "hospital-c"]
    spec["run"]["training"] |= {"epochs": 60, "batch_size": 128}  # few steps an epoch: the curve is what is shown
    (folder / "digits.json").write_text(json.dumps(spec))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    address = f"http://127.0.0.1:{port}"
    rankdad("split", "digits.json", "--output", "hand", "--aggregator", address, folder=folder)
    commands = [["aggregator", "digits.json", "--output", "run", "--port", port]]
    commands += [["site", str(site)] for site in sorted((folder / "hand").glob("*.json"))]
    started = []
    try:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        with (folder / "log").open("w") as log:
            for words in commands:
                command = [sys.executable, "-m", "rankdad", *words]
                started.append(subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log))
        said(folder / "log", f"\nepoch {LEARNT} of")
        with chromium() as page:
            page.open(f"{address}/page/", 1000)
            token = json.dumps((folder / "run" / "viewer-token").read_text().strip())
            page.evaluate(f"document.getElementById('token').value = {token}; document.forms[0].submit()")
            deadline = time.monotonic() + driver.PATIENCE
            while not page.evaluate("!!document.querySelector('.chart svg')"):
                assert time.monotonic() < deadline, "nothing is drawn"
                time.sleep(0.1)
            time.sleep(3)
            shoot(page, "live.png", 0, 0, 1000, 640)
    finally:
        for process in started:
            process.kill()
            process.wait()


def said(log: Path, words: str) -> str:
    """Wait for words in a log, and return all of it."""
    deadline = time.monotonic() + PATIENCE
    while words not in (text := log.read_text()):
        assert time.monotonic() < deadline, text
        time.sleep(0.2)
    return text


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for name in sys.argv[1:] or ("step", "roc", "live"):
        with tempfile.TemporaryDirectory() as scratch:
            if name == "step":
                (PICTURES / "step.svg").write_text(step(), encoding="utf-8")
            else:
                {"roc": roc, "live": live}[name](Path(scratch))
