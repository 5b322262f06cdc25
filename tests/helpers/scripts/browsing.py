"""Opens a page in Chromium and prints what it finds there as JSON: ``python browsing.py PAGE CHROMIUM SCREENSHOT``.

Runs in an environment of its own, which has playwright and not ropescale.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright  # type: ignore[import-not-found]

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]


def look(page_file: Path, chromium: str, picture: Path) -> dict[str, Any]:
    """What a person would see, and do with the keyboard alone."""
    found: dict[str, Any] = {"errors": [], "requests": []}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.on("console", lambda said: said.type in ("error", "warning") and found["errors"].append(said.text))
        page.on("pageerror", lambda error: found["errors"].append(str(error)))
        page.on("request", lambda request: found["requests"].append(request.url))
        page.goto(page_file.as_uri())
        page.wait_for_selector("#curve .main-svg")
        found["title"] = page.title()
        found["plots"] = page.eval_on_selector_all(".plot .main-svg:first-child", "each => each.length")
        found["points"] = page.eval_on_selector_all("#curve .scatterlayer .point", "each => each.length")
        tables = ("curve-table", "change-table", "cost-table", "subsets-table", "retrieval-table", "protocol-table")
        found |= {name: rows(page, name) for name in tables}
        found["coloured"] = page.eval_on_selector_all("#cost-table .better, #cost-table .worse", COLOURED)
        found["legend"] = page.eval_on_selector_all(
            "#controls .swatch path", "each => each.map(path => path.getAttribute('d'))"
        )
        found["thick"] = page.evaluate(THICK)
        found["trained on maps"] = page.eval_on_selector_all(".heat", TRAINED)
        found["pairs"] = page.eval_on_selector_all("#frequency, [id^=divisors]", TICKS)
        found["buttons on maps"] = page.evaluate(BUTTONS_ON_MAPS)
        found["heat"] = page.eval_on_selector_all(".heat", HEAT)
        found["titles in the way"] = page.evaluate(TITLES_IN_THE_WAY)
        found["cut off"] = page.evaluate(CUT_OFF)
        with_keyboard(page, found)
        toggled(page, found)
        page.set_viewport_size({"width": 360, "height": 700})
        page.wait_for_timeout(300)
        found["titles in the way"] += page.evaluate(TITLES_IN_THE_WAY)
        found["cut off"] += page.evaluate(CUT_OFF)
        found["overflow"] = page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth")
        widths = page.eval_on_selector_all("tbody th:first-child", "each => each.map(cell => cell.offsetWidth)")
        found["narrowest label"] = min(widths)
        page.screenshot(path=str(picture), full_page=True)
        browser.close()
    return found


COLOURED = "each => each.map(cell => [cell.closest('tr').cells[0].textContent, cell.textContent, cell.className])"

HEAT = "each => each.map(map => [map.id, [...map.querySelectorAll('.heatmap-label')].map(cell => cell.textContent)])"

THICK = """() => ['curve', 'position', 'frequency'].map(id =>
  [...document.querySelectorAll(`#${id} .js-line`)].map(line => parseFloat(line.style.strokeWidth)).filter(w => w))"""
"""The width of every line of three plots."""

TRAINED = """each => each.map(map => [map.querySelectorAll('.shapelayer path').length,
  [...map.querySelectorAll('.annotation-text')].map(text => text.textContent).join()])"""
"""The lines that each heat map has between its columns, and what it says of the trained length."""

TICKS = "each => each.map(plot => [...plot.querySelectorAll('.xtick text')].map(tick => tick.textContent))"

CUT_OFF = """() => [document.querySelector('#controls'), ...document.querySelectorAll('#controls *')].filter(part =>
  ['auto', 'hidden', 'scroll'].includes(getComputedStyle(part).overflowY) && part.scrollHeight > part.clientHeight + 1
).length + [...document.querySelectorAll('#controls label')].filter(label => {
  const box = label.getBoundingClientRect(), all = label.closest('#controls').getBoundingClientRect();
  return !box.height || box.bottom > all.bottom + 1 || box.right > all.right + 1;
}).length"""
"""How many parts of the list of series cannot be seen."""

BUTTONS_ON_MAPS = """() => [...document.querySelectorAll('.heat')].filter(map => {
  const low = map.querySelector('.modebar').getBoundingClientRect().bottom;
  return [...map.querySelectorAll('.heatmaplayer, .colorbar .cbfills')].some(
    part => part.getBoundingClientRect().top < low - 1);
}).map(map => map.id)"""
"""The heat maps whose cells or scale lie below Plotly's buttons."""

TITLES_IN_THE_WAY = """() => [...document.querySelectorAll('.plot')].filter(plot => {
  const title = plot.querySelector('.ytitle')?.getBoundingClientRect();
  const ticks = [...plot.querySelectorAll('.ytick text')].map(tick => tick.getBoundingClientRect());
  return title && ticks.some(tick => tick.left < title.right);
}).map(plot => plot.id)"""
"""The plots whose vertical axis has its title in the column of its numbers."""


def toggled(page: Any, found: dict[str, Any]) -> None:
    """Shows all series, hides one, hides all, shows all; half a second each, as long as any animation would run."""
    boxes = page.locator("#controls input[name=series]")
    found["points by how many are shown"] = []
    for count in (boxes.count(), boxes.count() - 1, 0, boxes.count()):
        for number in range(boxes.count()):
            boxes.nth(number).set_checked(number < count)
        page.wait_for_timeout(500)
        points = page.eval_on_selector_all("#curve .scatterlayer .point", "each => each.length")
        found["points by how many are shown"].append([count, points])


def with_keyboard(page: Any, found: dict[str, Any]) -> None:
    """Hides the second series and compares with the third, by Tab, space and arrow keys."""
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.name === 'series' && document.activeElement.value === '1'"):
            break
    page.keyboard.press("Space")
    found["after hiding"] = rows(page, "curve-table")
    while page.evaluate("document.activeElement.id") != "baseline":
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    found["compared with the third"] = rows(page, "change-table")


def rows(page: Any, table: str) -> list[list[str]]:
    """The text of a table."""
    script = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    return page.eval_on_selector_all(f"#{table} tr", script)


if __name__ == "__main__":
    print(json.dumps(look(Path(sys.argv[1]).resolve(), sys.argv[2], Path(sys.argv[3]))))
