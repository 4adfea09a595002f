"""The report as a real browser shows it: on a screen and a phone, by day and by night, and printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rankdad.common.data import read_site
from rankdad.remote.report.run_report import report
from rankdad.simulations.lockstep import run
from tests.conftest import run_spec
from tests.remote.report.browser import Browser, browser, find

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

SITES = ("charite-berlin", "st-georg", "uniklinik-hamburg-eppendorf-neurologie", "a", "b", "c")
TASKS: dict[str, dict[str, Any]] = {
    "two classes": {"task": {"name": "classification", "classes": 2}, "values": ["no", "yes"]},
    "five classes": {"task": {"name": "classification", "classes": 5}, "values": ["none", "mild", "some", "bad", "w"]},
    "a number": {"task": {"name": "regression"}, "values": []},
}
LOOKS = [(1200, True, "screen"), (400, False, "screen"), (680, True, "print")]  # of A4 without its margins
CLIPPED = """
[...document.querySelectorAll(".table, table, figure, p, h1, h2, h3")].filter(
  box => box.checkVisibility()
    && (box.scrollWidth > box.clientWidth + 1 || box.getBoundingClientRect().right > innerWidth + 1)
).map(box => box.outerHTML.slice(0, 200))
"""
OVERLAPPING = """
(() => {
  const found = [], texts = group => [...group].map(one => [one, one.getBoundingClientRect()])
    .filter(([one, box]) => box.width && one.checkVisibility() && one.textContent.trim());
  const lists = [texts(document.querySelectorAll("p, h1, h2, h3, li, dt, td, th, summary, figcaption"))];
  for (const svg of document.querySelectorAll("svg")) lists.push(texts(svg.querySelectorAll("text")));
  for (const list of lists) for (let i = 0; i < list.length; i++) for (let j = 0; j < i; j++) {
    const [[one, a], [other, b]] = [list[i], list[j]];
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && high > 2 && !one.contains(other) && !other.contains(one))
      found.push([one.textContent.trim(), other.textContent.trim()]);
  }
  return found;
})()
"""
OUTSIDE = """
[...document.querySelectorAll("svg text")].filter(one => one.checkVisibility()).filter(text => {
  const own = text.getBoundingClientRect(), box = text.closest("svg").getBoundingClientRect();
  return own.left < box.left - 1 || own.right > box.right + 1;
}).map(text => text.textContent)
"""
FAMILIES = """
[...new Set([...document.querySelectorAll("p, td, text")].map(one => getComputedStyle(one).fontFamily))]
"""
CONTRAST = """
(() => {
  const light = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number);
    return 0.299 * r + 0.587 * g + 0.114 * b;
  };
  const paper = light(getComputedStyle(document.documentElement).getPropertyValue("--paper").trim() === "#ffffff"
    ? "255 255 255" : "20 22 25");
  return Math.min(...[...document.querySelectorAll("p, td, th, figcaption, svg text")].map(one => {
    const style = getComputedStyle(one);
    return Math.abs(light(one.tagName === "text" ? style.fill : style.color) - paper);
  }));
})()
"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find()
    if program is None:
        pytest.skip("there is no Chromium on this machine (Debian: apt-get install chromium)")
    with browser(program, tmp_path_factory.mktemp("profile")) as started:
        yield started


FOLDED = "[...document.querySelectorAll('details')]"
HIDDEN = f"""
{FOLDED}.filter(box => [...box.children].some(one => one.tagName !== "SUMMARY" && !one.getBoundingClientRect().height))
  .map(box => box.querySelector("summary").textContent)
"""
FIRST_SCREEN = ("Outcome", "Tested on", "What not to conclude")
MAX_HEIGHT = 6000  # pixels of the page of a phone, tables folded


def made(folder: Path, kind: str) -> Path:
    """Return the page of a run of six hospitals with gaps and long names."""
    noise, values = np.random.default_rng(0), TASKS[kind]["values"]
    data = {
        "reader": "csv",
        "file": "table.csv",
        "features": ["age", "systolic blood pressure at admission", "sex"],
        "categorical": {"sex": ["female", "male"]},
        "label": "outcome after thirty days",
        "values": values,
        "missing": "impute",
    }
    training = {"epochs": 4, "batch_size": 32, "validation": 0.2}
    federation = {"sites": list(SITES)}
    spec = run_spec(data=data, task=TASKS[kind]["task"], training=training, federation=federation, name=kind)
    sites = {}
    for place, site in enumerate(SITES):
        count = 240 - 30 * place
        age = noise.normal(60, 10, count)
        hidden = (age - 60) / 10 + noise.normal(0, 1, count)
        label = (
            50 + 20 * hidden
            if not values
            else np.array(values)[np.digitize(hidden, np.linspace(-1, 1, len(values) + 1)[1:-1])]
        )
        pressure = np.where(noise.random(count) < 0.3 + 0.1 * place, np.nan, noise.normal(130, 15, count))
        table = {"age": age, data["features"][1]: pressure, "sex": noise.choice(["female", "male"], count)}
        (folder / site).mkdir(parents=True)
        pd.DataFrame(table | {data["label"]: label}).to_csv(folder / site / "table.csv", index=False)
        sites[site] = read_site(spec, folder / site, place)
    run(spec, sites, folder / "run")
    (folder / "report.html").write_text(report(folder / "run"), encoding="utf-8")
    return folder / "report.html"


@pytest.mark.parametrize("kind", TASKS)
def test_nothing_is_clipped_and_no_text_lies_on_another(tmp_path: Path, chromium: Browser, kind: str) -> None:
    page = made(tmp_path, kind)
    for width, dark, media in LOOKS:
        look = f"{width} {'dark' if dark else 'light'} {media}"
        chromium.open(page, width, dark=dark, media=media)
        chromium.screenshot(tmp_path / f"{look}.png")
        assert chromium.evaluate("document.documentElement.scrollWidth") <= width, look
        assert chromium.violations() == [], look
        if media == "print":
            assert chromium.evaluate(HIDDEN) == [], "what is folded on a screen is printed"
        elif width == 400:
            assert chromium.evaluate("document.documentElement.scrollHeight") <= MAX_HEIGHT, look
        said = chromium.evaluate("document.querySelector('dl.verdict').textContent")
        assert all(topic in said for topic in FIRST_SCREEN)
        for opened in (False, True):
            chromium.evaluate(f"{FOLDED}.forEach(box => box.open = {str(opened).lower()})")
            for script in (CLIPPED, OVERLAPPING, OUTSIDE):
                assert chromium.evaluate(script) == [], look
        assert chromium.violations() == [], f"{look}, opened"
        assert chromium.evaluate("document.documentElement.scrollWidth") <= width, f"{look}, opened"
        assert chromium.evaluate("document.querySelectorAll('svg text').length") > 50
        assert len(chromium.evaluate(FAMILIES)) == 1, "text and figures have one typeface"
        assert chromium.evaluate(CONTRAST) > 80, f"{look}: some text has hardly any contrast"


def test_the_checks_see_what_is_wrong(tmp_path: Path, chromium: Browser) -> None:
    """A page that is ugly in each of the ways that are looked for."""
    texts = '<text x="150" y="20">one above</text><text x="155" y="22">another, and out of the figure</text>'
    cells = "".join(f"<td>{'wide' * 9}</td>" for _ in range(9))
    svg = f'<svg style="width:300px" viewBox="0 0 200 40">{texts}</svg>'
    page = tmp_path / "page.html"
    page.write_text(f'<div class="table" style="overflow:hidden"><table><tr>{cells}</tr></table></div><p>text</p>{svg}')
    chromium.open(page, 400)
    assert all(chromium.evaluate(script) for script in (CLIPPED, OVERLAPPING, OUTSIDE))
    assert any(one.startswith("document-title") for one in chromium.violations())
    assert len(chromium.evaluate(FAMILIES)) == 1
