"""The page of the benchmarks, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sides

HEAD = """# Benchmarks

The cost of ropescale, beside the same work without it. `make bench` measures it and writes this page, in at most half
an hour on two idle cores; `python tests/tools/benchmarks/bench ITEM` measures one item. Ratios are of CPU time on one
thread, of alternating runs: the median over rounds, and in brackets the lowest and the highest.
"""

LAST = """
`tests/tools/benchmarks/README.md` in the sources has more.
"""


def written(found: Mapping[str, Sequence[sides.Row]], about: Mapping[str, str], facts: Mapping[str, str]) -> str:
    """Returns the page.

    Args:
        found: the rows of each item.
        about: each item's docstring.
        facts: of the machine, the versions and the time.
    """
    parts = [HEAD, ", ".join(f"{name} {value}" for name, value in facts.items()) + ".\n"]
    for name, rows in found.items():
        title, _, more = about[name].partition("\n\n")
        parts += [f"## `{name}`: {title.rstrip('.')}\n", *filter(None, [more])]
        lines = [f"| {row.what} | {_value(row)} | {row.note} |" for row in rows]
        parts.append("\n".join(["| what | figure | |", "|---|---:|---|", *lines]) + "\n" if rows else "Not measured.\n")
    return "\n".join(parts) + LAST


def _value(row: sides.Row) -> str:
    unit = f" {row.unit}" if row.unit else ""
    if row.low is None or row.high is None:
        return f"{row.value:.3g}{unit}"
    return f"{row.value:.3g}{unit} ({row.low:.3g} to {row.high:.3g})"


def elsewhere(page: str) -> str:
    """Returns the section of a page that another machine measured (``make gpu``), or ""."""
    section = page.partition("\n## `gpu`")
    return "".join(section[1:]).removesuffix(LAST).rstrip("\n") + "\n" if section[1] else ""
