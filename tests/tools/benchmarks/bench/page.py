"""The page of the benchmarks, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sides

HEAD = """# Benchmarks

What ropescale costs, beside what does the same without it. `make bench` measures it and writes this page, in at most
half an hour on two idle cores. Ratios are of CPU time on one thread, of acts that are done in turn in one run: the
median over rounds, and in brackets the lowest and the highest. A busy machine widens the range more than it moves the
median.
"""

LAST = """
What else was measured, such as 131,072 tokens in one forward pass, is in `tests/tools/benchmarks/README.md` of the
sources; what the methods of `search` find for how many tokens, in [searching.md](searching.md).
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
        if not rows:
            left_out = f"Not measured in this run: `{command(name)}`\n"
            parts += [f"## {title.rstrip('.')}\n", *filter(None, [more]), left_out]
            continue
        parts += [f"## {title.rstrip('.')}\n", *filter(None, [more]), f"`{command(name)}`\n"]
        lines = [f"| {row.what} | {_value(row)} | {row.rounds} | {row.note} |" for row in rows]
        parts.append("\n".join(["| what | figure | rounds | |", "|---|---:|---:|---|", *lines]) + "\n")
    return "\n".join(parts) + LAST


def command(name: str) -> str:
    """Returns the command that measures one item."""
    return f"python tests/tools/benchmarks/bench {name}"


def _value(row: sides.Row) -> str:
    unit = f" {row.unit}" if row.unit else ""
    if row.low is None or row.high is None:
        return f"{row.value:.3g}{unit}"
    return f"{row.value:.3g}{unit} ({row.low:.3g} to {row.high:.3g})"
