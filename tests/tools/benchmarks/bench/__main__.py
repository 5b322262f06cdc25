"""``python tests/tools/benchmarks/bench [ITEM]...``: what ropescale costs, each item in a process of its own.

Every item gets a share of ``--minutes`` and does its acts in turn until that is over, three rounds at least. The rows
go to ``--json`` as soon as they are there, and the page is written from all that the file holds: an item that is
measured again replaces its rows.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib import import_module, metadata
from pathlib import Path

import page
import sides

ITEMS = {
    "processes": 0.15,
    "recipes": 0.25,
    "harness": 0.1,
    "forwards": 0.18,
    "head": 0.02,
    "texts": 0.12,
    "commands": 0.1,
    "memory": 0.01,
    "peaks": 0.01,
    "remapped": 0.02,
    "servers": 0.06,
}
"""The items, and their shares of the time."""


def main() -> None:
    asked = options()
    if asked.child:
        sides.answer(import_module(asked.items[0]).measure(asked.seconds))
        return
    kept = json.loads(asked.json.read_text()) if asked.json.exists() else {}
    for name in asked.items or ITEMS:
        rows = measured(name, 60 * asked.minutes * ITEMS[name])
        if rows:
            kept[name] = {"rows": rows, "facts": facts()}
            asked.json.parent.mkdir(parents=True, exist_ok=True)
            asked.json.write_text(json.dumps(kept, indent=1))
    if asked.page and kept:
        other = page.elsewhere(asked.page.read_text()) if asked.page.exists() else ""
        asked.page.write_text(as_page(kept).removesuffix(page.LAST) + other + page.LAST)


def options() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("items", nargs="*", metavar="ITEM", help=", ".join(ITEMS))
    parser.add_argument("--minutes", type=float, default=25.0, help="for all items together (25)")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), help="where rows are kept")
    parser.add_argument("--page", type=Path, help="write the page to this file")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60.0, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if wrong := [name for name in asked.items if name not in ITEMS]:
        parser.error(f"no item is called {wrong[0]!r}; there are {', '.join(ITEMS)}")
    return asked


def measured(name: str, seconds: float) -> list[dict[str, object]]:
    """Returns the rows of an item, measured in a process of its own on one thread; none where it fails."""
    print(f"{name}: {seconds:.0f} s, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    start = time.monotonic()
    words = [sys.executable, str(Path(__file__).parent), name, "--child", "--seconds", str(seconds)]
    root = str(Path(__file__).resolve().parents[4])
    path = os.pathsep.join(filter(None, [root, str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True)
    *said, last = done.stdout.splitlines() or [""]
    print(*filter(None, said), f"{name}: {time.monotonic() - start:.0f} s", sep="\n", file=sys.stderr, flush=True)
    return json.loads(last) if done.returncode == 0 and last else []


def facts() -> dict[str, str]:
    """Returns what the figures were measured on."""
    return {
        "Python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "transformers")},
        f"{os.cpu_count()} cores of": platform.machine(),
        "load": f"{os.getloadavg()[0]:.1f}",
        "on": time.strftime("%Y-%m-%d"),
    }


def as_page(kept: dict[str, dict[str, object]]) -> str:
    """Returns the page of all items that were measured, in order."""
    rows = {name: kept.get(name, {}).get("rows", []) for name in ITEMS}
    found = {name: [sides.Row(**row) for row in each] for name, each in rows.items()}  # type: ignore[attr-defined]
    about = {name: import_module(name).__doc__ or "" for name in found}
    each = [dict(item["facts"]) for item in kept.values()]  # type: ignore[call-overload]
    loads = sorted((facts["load"] for facts in each), key=float)
    load = loads[0] if loads[0] == loads[-1] else f"{loads[0]} to {loads[-1]}"
    return page.written(found, about, each[-1] | {"load": load})


if __name__ == "__main__":
    main()
