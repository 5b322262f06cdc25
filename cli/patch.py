"""``ropescale patch MODEL -o OUT --schedule SPEC``: a checkpoint with a longer context; no weights are read."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from ..checkpoints.folders import LINKS
from ..configs.finding import SPECULATORS
from ..engines.base import parameters_of
from ..files import Data
from ..output.formatting import Page, argument, grid, shell_word
from ..schedules import label_of
from .options import (
    SCHEDULE,
    Sections,
    flag,
    model_argument,
    option,
    out_option,
    print_result,
    request_sections,
    say,
    sectioned_command,
    tell,
)

if TYPE_CHECKING:
    from ..checkpoints.patching import PatchedCheckpoint


_SECTIONS: Sections = {
    **request_sections(
        option("--schedule", "SPEC", SCHEDULE),
        option("--like", "CKPT", "Instead: the target of MODEL, a draft head, whose table and window it gets."),
    ),
    "The result": [
        out_option("The folder to write; it must be new or empty."),
        flag("--in-place", "Change MODEL itself; `ropescale restore MODEL` undoes it."),
        option(
            "--link",
            None,
            "How to link weights (default: auto, a hard link, else a symlink, else a copy).",
            click.Choice(LINKS),
        ),
        flag("--force", "Replace OUT if ropescale wrote it."),
        flag("--dry-run", "Write nothing, only show the changes."),
        "as_json",
    ],
    "The model": ["revision"],
}


@sectioned_command("patch", _SECTIONS, model_argument())
def command(model: str, out: str | None, schedule: str | None, in_place: bool, as_json: bool, **options: Any) -> None:
    """Write a copy of MODEL (a folder or a Hub id) that carries a schedule.

    \b
    Examples:
      ropescale patch Qwen/Qwen3-8B -o qwen3-128k --schedule yarn --target-length 128k
      ropescale patch ./llama -o ./llama-x2 --schedule my_schedule.py::Half --set factor=2

    The configuration changes; the weights are linked and never read. The copy loads in stock engines without ropescale;
    a warning reports engines that would compute something else.

    With --schedule as-is the frequencies stay, and a folder that save_pretrained wrote from a patched model gets its
    missing parts: the keys of transformers 4, and the tokenizer's new limit.

    With --like, a draft head (EAGLE, DFlash, ...) gets the table and the window of its target; patch the target first.
    """
    from ..checkpoints.patching import patch_checkpoint

    done = patch_checkpoint(model, out, schedule, in_place=in_place, **options)
    described = describe(done, model, out, in_place)
    tell(note=done.plan.notes, warning=done.warnings)
    print_result(as_json, described, _page(done, described), done.folder)
    if done.folder and not as_json:
        check = "inspect" if SPECULATORS in done.plan.planned.raw else "verify"
        say(f"next: ropescale {check} {shell_word(argument(str(done.folder)))}")


def describe(done: PatchedCheckpoint, model: str, out: str | None, in_place: bool) -> Data:
    """Returns the result as plain data."""
    from ..schedules import to_dict

    plan = done.plan
    return {
        "model": model,
        "model_type": plan.planned.model_type,
        "out": str(done.folder) if done.folder else out,
        "written": done.folder is not None,
        "in_place": in_place,
        "length": plan.length,
        "max_position_embeddings": [plan.original.max_length, plan.planned.max_length],
        "layers": {
            key: {
                "schedule": plan.label(key),
                "fields": to_dict(layer.schedule),
                "original_length": layer.rope.original_length,
                "attention_scale": layer.table(plan.length).attention_scale,
                "rope_parameters": parameters_of(plan.planned, key),
            }
            for key, layer in plan.layers.items()
        },
        "weights": done.links,
        "changes": done.changes,
        "notes": plan.notes,
        "warnings": done.warnings,
    }


def _page(done: PatchedCheckpoint, described: Data) -> Page:
    plan = done.plan
    way = "changed in place" if described["in_place"] else "written to"
    rows = [
        ["model", f"{described['model']} ({plan.planned.model_type})"],
        [way if done.folder else f"would be {way}", str(described["out"] or "-")],
    ]
    for key, layer in plan.layers.items():
        original = layer.rope.original_length
        kind = parameters_of(plan.planned, key)["rope_type"]
        per_pair = kind == "longrope" and label_of(layer.schedule) != "longrope"
        route = (
            f"one factor per pair ({layer.rope.pairs} pairs, rope_type longrope)" if per_pair else f"rope_type {kind}"
        )
        rows += [
            ["layers", key],
            ["schedule", plan.label(key)],
            ["length", f"{original:,} -> {plan.length:,} tokens (x {plan.length / original:.6g})"],
            ["route", route],
            ["attention scale", f"{layer.table(plan.length).attention_scale:.6g}"],
        ]
    before = plan.original.max_length
    after = plan.planned.max_length
    ways = ", ".join(f"{count} x {_HOW[how]}" for how, count in Counter(done.links.values()).items())
    weights = f"{ways}; not read" if ways else "untouched"
    rows += [
        ["max_position_embeddings", f"{before} -> {after}" if before != after else str(after)],
        ["weights", weights],
    ]
    diffs = {name: text for name, text in done.changes.items() if text.startswith("---")}
    page: Page = [grid(["patched", "value"], rows)]
    page += [_SHARED] if "hard" in done.links.values() else []
    page += [] if "config.json" in diffs else ["config.json is unchanged."]
    page += [f"```diff\n{''.join(diffs.values())}```"] if diffs else []
    page.append("\n".join(f"* {name}: {text}" for name, text in done.changes.items() if name not in diffs))
    return page


_SHARED = (
    "The weights share the source's files (hard links). Training that saves into this folder with safetensors before "
    "0.8 overwrites the source's weights: patch with `--link copy` for a folder to train into."
)
_HOW = {"hard": "hard link", "symlink": "absolute symlink", "copy": "copy"}
