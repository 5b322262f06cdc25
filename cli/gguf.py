"""``ropescale gguf IN.gguf -o OUT.gguf --schedule SPEC``: a GGUF file with a longer context, for stock llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ..output.formatting import Page, argument, cut, grid, shell_word
from .options import Place, Sections, flag, out_option, print_result, request_sections, sectioned_command, tell

if TYPE_CHECKING:
    from ..gguf.patching import PatchedGguf

_SECTIONS: Sections = {
    **request_sections("schedule"),
    "The result": [
        out_option("The file to write; it must not exist yet.", "OUT.gguf"),
        flag("--dry-run", "Write nothing, only show the changes."),
        "as_json",
    ],
}


@sectioned_command("gguf", _SECTIONS, click.Argument(["source"], type=Place(), metavar="IN.gguf"))
def command(source: str, out: str | None, schedule: str, as_json: bool, **options: Any) -> None:
    """Write a copy of a GGUF file that carries a schedule.

    \b
    Examples:
      ropescale gguf llama.gguf -o llama-128k.gguf --schedule yarn --target-length 128k
      ropescale gguf qwen2.gguf --schedule ntk --factor 4 --dry-run

    Stock llama.cpp, and programs built on it, need no further options. Metadata keys change, and architectures that
    support one factor per pair may get a table of factors; all other data is copied byte for byte. A schedule that
    llama.cpp cannot express for the architecture is refused.
    """
    from tqdm import tqdm

    from ..gguf.patching import patch_gguf

    # A progress bar for large files on a terminal.
    with tqdm(desc="copied", unit="B", unit_scale=True, leave=False, disable=None, delay=1) as bar:
        done = patch_gguf(source, out, schedule, progress=bar.update, **options)
    described = describe(done, source, out)
    tell(note=described["notes"], warning=described["warnings"])
    print_result(as_json, described, _page(described), done.path)


def describe(done: PatchedGguf, source: str, out: str | None) -> dict[str, Any]:
    """Returns the result as plain data."""
    from ..gguf.routes import goal_of
    from ..schedules import specs

    goal = goal_of(done.plan)
    return {
        "file": source,
        "architecture": done.model.architecture,
        "out": str(done.path) if done.path else out,
        "written": done.path is not None,
        "schedule": specs.describe(goal.schedule),
        "fields": specs.to_dict(goal.schedule),
        "original_length": goal.rope.original_length,
        "length": goal.length,
        "route": done.route.name,
        "inv_freq": list(goal.table.inv_freq),
        "attention_scale": goal.table.attention_scale,
        "keys": {name: [value and value.value for value in pair] for name, pair in done.keys.items()},
        "tensors": {name: [x and list(x) for x in pair] for name, pair in done.tables.items()},
        "notes": done.notes,
        "warnings": done.warnings,
    }


def _page(described: dict[str, Any]) -> Page:
    from ..gguf.patching import VERSION

    original = described["original_length"]
    length = described["length"]
    rows = [
        ["file", f"{described['file']} ({described['architecture']})"],
        ["written to" if described["written"] else "would be written to", described["out"] or "-"],
        ["schedule", described["schedule"]],
        ["length", f"{original:,} -> {length:,} tokens (x {length / original:.6g})"],
        ["route", described["route"]],
        ["attention scale", f"{described['attention_scale']:.6g}"],
        ["weights", "copied byte for byte"],
        ["serve it with", f"llama-server -m {shell_word(argument(described['out'] or 'OUT.gguf'))} -c {length}"],
    ]
    lines = []
    for name, (before, after) in {**described["keys"], **described["tensors"]}.items():
        if name != VERSION:
            lines += [f"- {name}: {_short(before)}"] if before is not None else []
            lines += [f"+ {name}: {_short(after)}"] if after is not None else []
    return [grid(["patched", "value"], rows), "\n".join(["```diff", *lines, "```"])]


def _short(value: object) -> str:
    """Returns a value on one line."""
    from ..checkpoints.contents import short

    if isinstance(value, Sequence) and not isinstance(value, str):
        return short(list(value))
    return f"{value:.9g}" if isinstance(value, float) else cut(str(value), 100)
