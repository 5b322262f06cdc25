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

HIDDEN = """() => [".plot [data-series='1']", "[data-base] tbody tr", "[data-run] tbody tr"].map(where =>
  [...document.querySelectorAll(where)].filter(part => part.classList.contains("off")).length)"""
"""How many parts of figures, of tables of changes and of tables of a run the switch of the second series hides."""

BASES = "() => [...document.querySelectorAll('[data-base]')].filter(e => !e.hidden).map(e => e.dataset.base)"

OVERFLOW = "document.scrollingElement.scrollWidth - window.innerWidth"


def look(page_file: Path, chromium: str, picture: Path) -> dict[str, Any]:
    """What a person would see, and do with the keyboard alone."""
    found: dict[str, Any] = {"errors": [], "requests": [], "overflow": []}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.on("console", lambda said: said.type in ("error", "warning") and found["errors"].append(said.text))
        page.on("pageerror", lambda error: found["errors"].append(str(error)))
        page.on("request", lambda request: found["requests"].append(request.url))
        page.goto(page_file.as_uri())
        found["hidden"], found["bases"] = {"before": page.evaluate(HIDDEN)}, [page.evaluate(BASES)]
        tab_to(page, "document.activeElement.value === '1'")
        page.keyboard.press("Space")
        found["hidden"]["after"] = page.evaluate(HIDDEN)
        tab_to(page, "document.activeElement.id === 'base'")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        found["bases"].append(page.evaluate(BASES))
        for width in (1280, 800, 360):
            page.set_viewport_size({"width": width, "height": 700})
            page.wait_for_timeout(300)
            found["overflow"].append(page.evaluate(OVERFLOW))
        page.screenshot(path=str(picture), full_page=True)
        browser.close()
    return found


def tab_to(page: Any, where: str) -> None:
    """Presses Tab until the focus is there."""
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate(where):
            return


if __name__ == "__main__":
    print(json.dumps(look(Path(sys.argv[1]).resolve(), sys.argv[2], Path(sys.argv[3]))))
