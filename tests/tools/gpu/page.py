"""The section of docs/benchmarks.md, from the figures of a run.

``PYTHONPATH=tests/tools python3 -m gpu.page DIR/gpu.json docs/benchmarks.md`` puts the section of a stored run into the
page, where ``make bench`` keeps it. What was predicted before the first run is written here, and no other figure.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

Figures = Mapping[str, Any]
Found = Mapping[str, Figures]

PREDICTED = {"FlashAttention 2": "18 s, 37%", "cuDNN": "13 s, 51%", "Qwen3-0.6B": "17 s, 47%"}
"""The seconds of a window, and the share of the card's operations that it uses (MFU)."""

SOURCE = (
    "Predicted from the kernels' speeds in FlashAttention-3's paper (arXiv:2407.08608; an H100, heads of 128, 16k: "
    "FlashAttention 2 335 TF/s, cuDNN 539); memory by the tool's estimate."
)

NEVER = ("`search` beyond 32,768", "Mixtral", "several cards")
"""What no part measures."""


def section(found: Found, written: float) -> str:
    """Returns the section.

    Args:
        found: the results of the parts, by name.
        written: when, in seconds since 1970, for results that do not say it.
    """
    facts = found["environment"]
    date = facts.get("date") or time.strftime("%Y-%m-%d", time.gmtime(written))
    shown = f"one {facts['device']}" if facts["memory"] else "tiny models"
    about = f"`make gpu` on {date}: random weights, torch {facts['torch']}, transformers {facts['transformers']}."
    curves = {f"{part} {kernel or ''}".strip(): _curve(part, kernel) for part, kernel in _CURVES}
    rows = {name: partial(_row, name, figures) for name, figures in _ROWS.items()}
    head = ["| 16 lengths of | predicted | measured | over bare | GB beside weights: predicted | measured | bare |"]
    absent = list(NEVER)
    blocks = [
        [f"## `gpu`: what {shown} shows", "", textwrap.fill(f"{about} {SOURCE}", 120)],
        [*head, "|---|---|---|---:|---:|---:|---:|", *_lines(curves, found, absent)],
        _lines({"preparing": _preparing}, found, absent),
        ["| what | figure |", "|---|---|", *_lines(rows, found, absent)],
        [textwrap.fill(f"Not measured: {'; '.join(absent)}.", 120)],
    ]
    return "\n".join("\n".join([*lines, ""]) for lines in blocks)


def _lines(lines: Mapping[str, Callable[[Found], str]], found: Found, absent: list[str]) -> list[str]:
    """Returns the lines whose figures are there; adds the names of the others to ``absent``."""
    known = list[str]()
    for name, line in lines.items():
        try:
            known.append(re.sub(r"\bnan\b", "-", line(found)))  # a processor has no peak
        except (LookupError, StopIteration, ValueError):  # some figures are not there yet
            absent.append(name)
    return known


_CURVES = (("Llama-3.1-8B", "FlashAttention 2"), ("Llama-3.1-8B", "cuDNN"), ("Qwen3-0.6B", None))


def _curve(part: str, kernel: str | None) -> Callable[[Found], str]:
    def line(found: Found) -> str:
        own = found[part]
        after = f", {kernel} first" if kernel else ""
        name = f"16 lengths to {own['length']:,}{after}"
        figures = [
            f"{part}, {own['length']:,}" + (f", {kernel}" if kernel else ""),
            PREDICTED[kernel or part] if found["environment"]["memory"] else "-",
            f"{own[f'{name}: s']:.1f} s, {own[f'{name}: MFU']:.1%}",
            f"{own[f'{name}: over the bare forward']:.3f}",
            f"{own['estimated GB']:.1f}",
            f"{own[f'{name} peak GB above weights']:.1f}",
            f"{own[f'bare{after} peak GB above weights']:.1f}",
        ]
        return f"| {' | '.join(figures)} |"

    return line


def _preparing(found: Found) -> str:
    """Returns what a call adds to its forward passes."""
    ratios, seconds, apart = list[str](), list[str](), list[float]()
    for part in ("Llama-3.1-8B", "Qwen3-0.6B"):
        own = found[part]
        short = next(name for name in own if re.fullmatch(r"\d+x\d+ s", name))
        ratios.append(f"{own[short] / own[f'bare {short}']:.2f}")
        seconds.append(f"{own[short] - own[f'bare {short}']:.2f} s")
        apart += [own[name] for name in own if name.startswith("largest difference to the bare forward")]
    count, length = short.removesuffix(" s").split("x")
    text = (
        f"The largest difference of a loss to the bare forward is {max(apart):.2g}. What a call adds is mostly its "
        f"preparation, whatever the text: {count} windows of {int(length):,} take {' and '.join(ratios)} of the bare "
        f"forward, {' and '.join(seconds)} more."
    )
    return textwrap.fill(text, 120)


def _row(name: str, figures: Callable[[Found], str], found: Found) -> str:
    return f"| {name} | {figures(found)} |"


def _verified(found: Found) -> str:
    own = found["patch and verify"]
    passed = {"live": 0, "decoding": 0}
    runs = passed.copy()
    for name, figure in own.items():
        if match := re.fullmatch(r"(\d+) of (\d+)", str(figure)):
            kind = "decoding" if "decoding" in name else "live"
            passed[kind] += int(match[1])
            runs[kind] += int(match[2])
    live, decoding = (f"{passed[kind]} of {runs[kind]}" for kind in passed)
    return f"Llama, Qwen3, Gemma 3: {live}; decoding {decoding}"


def _kernels(found: Found) -> str:
    own = found["the kernel that ran"]
    ran = {}
    for name, kernel in own.items():
        known = re.search("cudnn|flash", kernel)
        ran[name] = f"`{known[0]}`" if known else "not known"
    whole = dict.fromkeys(ran[name] for name in ("Llama", "Qwen3", "Gemma 3"))
    return f"{', '.join(whole)}; in chunks {ran['Llama in chunks']}"


def _equal(found: Found) -> str:
    own, again = found["equality"], found["resuming"]
    same = {
        "the naive loop": own["largest difference to the naive loop"] == 0,
        "batches of 1 and 2": own["batches of 1 and 2 equal bit for bit"],
        "two runs": again["two runs equal"],
        "stopped and continued": again["stopped and continued equal"],
    }
    other = [name for name, equal in same.items() if not equal]
    return ", ".join(name for name in same if name not in other) + (f"; not {', '.join(other)}" if other else "")


def _rounding(found: Found) -> str:
    own = found["equality"]
    figures = []
    for name in ("the model's dtype", "TF32"):
        ratio = own[f"{name} against float32: perplexity ratio - 1"]
        figures.append(f"{100 * ratio:+.1g}%, {own[f'{name}: sd of a token, nats']:.1g} nats")
    return "; ".join(figures)


def _sliding(found: Found) -> str:
    own = found["Gemma-3-1B"]
    figures = []
    for name, seconds in own.items():
        if match := re.fullmatch(r"([\d,]+): s", name):
            figures.append(f"{match[1]}: {seconds:.2f} s, {own[f'{match[1]}: peak over estimate']:.2f}")
    return "; ".join(figures)


def _longest(found: Found) -> str:
    own = found["the longest that fits"]
    peak = next(own[name] for name in own if name.endswith("peak over estimate"))
    return f"{own['tokens']}, {own['layers']}, {own['passes']}: {peak:.2f}"


def _memory(found: Found) -> str:
    own = found["out of memory"]
    known = {what: own.get(f"half of a {what} fits: largest difference") for what in ("batch", "window")}
    return ", ".join(f"{what} {'refused' if apart is None else f'{apart:.2g}'}" for what, apart in known.items())


def _default(found: Found) -> str:
    own = found["default eval"]
    ratio = next(name for name in own if name.endswith("over two bare passes"))
    return f"{own['s']:.1f} s, {own[ratio]:.2f}"


def _searching(found: Found) -> str:
    own = found["search"]
    steps = next(name for name in own if "steps of windows" in name)
    gradient, peak = own["a gradient over a bare forward"], own["peak over estimate"]
    return f"{steps.split()[0]} steps, {own[steps]:.0f} s; {gradient:.2f}; {peak:.2f}"


def _recommending(found: Found) -> str:
    return next(
        f"{name.removesuffix(': s')}: {each:.0f} s" for name, each in found["recommend"].items() if ": s" in name
    )


_ROWS: dict[str, Callable[[Found], str]] = {
    "patched and verified, float32 and TF32": _verified,
    "attention kernels": _kernels,
    "equal bit for bit": _equal,
    "bf16 and TF32 against float32: perplexity, a token's sd": _rounding,
    "Gemma-3-1B, in blocks of its window; peak over estimate": _sliding,
    "the longest window of an 8B, whole: peak over estimate": _longest,
    "out of memory within: largest difference": _memory,
    "default eval, a 1B at 32k; over two bare passes": _default,
    "`search`, a 1B at 32k; a gradient over a bare forward; peak over estimate": _searching,
    "`recommend`, a 1B": _recommending,
}


def main() -> None:
    """Puts the section of a stored run into a page, in place of an earlier one."""
    stored, page = map(Path, sys.argv[1:])
    before, _, rest = page.read_text().partition("## `gpu`")
    last = rest.rpartition("\n\n")[2] if rest else ""
    if not rest:
        before, _, last = before.rstrip("\n").rpartition("\n\n")
        before, last = before + "\n\n", last + "\n"
    page.write_text(f"{before}{section(json.loads(stored.read_text()), stored.stat().st_mtime)}\n{last}")


if __name__ == "__main__":
    main()
