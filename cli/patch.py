"""``ropescale patch MODEL -o OUT --schedule SPEC``: a checkpoint with a longer context; no weights are read."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from ..checkpoints.folders import LINKS
from ..escaping import argument, shell_word
from ..formatting import markdown, size
from .options import REQUEST_SECTIONS, json_option, model_argument, print_json, request_options, revision_option, tell
from .sections import in_sections

if TYPE_CHECKING:
    from ..checkpoints.patching import PatchedCheckpoint
    from ..checkpoints.uploading import Upload
    from ..planning.plan import Plan


_SECTIONS = {
    **REQUEST_SECTIONS,
    "The result": "out in_place link force dry_run",
    "The Hub": "push_to_hub private revision",
}


@click.command("patch", cls=in_sections(_SECTIONS))
@model_argument()
@click.option("-o", "--out", metavar="OUT", help="The folder to make; it must not exist yet.")
@request_options(required=True)
@click.option(
    "--link",
    type=click.Choice(LINKS),
    default="auto",
    show_default=True,
    help="How weights come over; auto: hard link, else symlink, else copy.",
)
@revision_option()
@click.option("--in-place", is_flag=True, help="Change MODEL itself; `ropescale restore MODEL` undoes it.")
@click.option("--dry-run", is_flag=True, help="Write nothing, only show what would be done.")
@click.option("--push-to-hub", metavar="REPO", help="Send the result to user/name on the Hub; -o may be left out.")
@click.option("--private", is_flag=True, help="Make REPO private.")
@click.option("--force", is_flag=True, help="Replace what ropescale wrote to OUT or REPO.")
@json_option()
def command(model: str, as_json: bool, **options: Any) -> None:
    """Write a copy of MODEL (a folder or a Hub id) that carries a schedule.

    The configuration changes, the weights are linked and never read. The copy loads in stock engines with no
    ropescale installed; where one of them would compute something else, a warning says so.

    \b
    Examples:
      ropescale patch Qwen/Qwen3-8B -o qwen3-128k --schedule yarn --target-length 128k
      ropescale patch ./llama -o ./llama-x4 --schedule yarn:factor=4,beta_fast=16
      ropescale patch ./llama -o ./llama-x2 --schedule my_schedule.py::Half --set factor=2
      ropescale patch ./llama --schedule ntk --factor 8 --dry-run
    """
    from ..checkpoints.patching import patch_checkpoint

    schedule, out = options.pop("schedule"), options.pop("out")
    done = patch_checkpoint(model, out, schedule, **options)
    described = describe(done, model, out, options)
    tell(note=described["notes"], warning=described["warnings"])
    if as_json:
        print_json(described)
    else:
        click.echo(_page(described))
        if described["written"] and (folder := described["out"] or (described["in_place"] and model)):
            click.echo(f"next: ropescale verify {shell_word(argument(folder))}", err=True)


def describe(done: PatchedCheckpoint, model: str, out: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """What was done, as plain data."""
    from ..configs.reading import text_section
    from ..schedules import specs

    plan = done.plan
    section = text_section(plan.config)
    return {
        "model": model,
        "model_type": section.get("model_type"),
        "out": str(done.folder) if done.folder else out,
        "written": done.folder is not None,
        "hub": _hub(done.upload),
        "in_place": options["in_place"],
        "length": plan.length,
        "max_position_embeddings": [_max_positions(config, plan) for config in (done.before, plan.config)],
        "layers": {
            key: {
                "schedule": plan.label(key),
                "fields": specs.to_dict(schedule),
                "original_length": plan.ropes[key].original_length,
                "attention_scale": plan.tables[key].attention_scale,
                "rope_parameters": _parameters(section, key),
            }
            for key, schedule in plan.schedules.items()
        },
        "weights": done.links,
        "config_diff": done.config_diff,
        "changes": done.changes,
        "notes": list(plan.notes),
        "warnings": done.warnings,
    }


def _hub(upload: Upload | None) -> dict[str, Any] | None:
    return dataclasses.asdict(upload) if upload else None


def _max_positions(config: Mapping[str, Any], plan: Plan) -> int:
    """What a configuration says, under whatever name the model's class has for it; RecurrentGemma's has none."""
    from ..configs.reading import read_rope

    trained = max(rope.original_length for rope in plan.ropes.values())
    return max(rope.max_length for rope in read_rope(config, trained).values())


def _parameters(section: Any, key: str) -> dict[str, Any]:
    parameters = section["rope_parameters"]
    return parameters if key == "all" else parameters[key]


def _page(described: dict[str, Any]) -> str:
    rows = [
        ["model", f"{described['model']} ({described['model_type']})"],
        *([[_written(described), described["out"] or "-"]] if _is_here(described) else []),
        *_hub_rows(described["hub"]),
    ]
    for key, layer in described["layers"].items():
        rows += _layer_rows(key, layer, described["length"])
    rows += [
        ["max_position_embeddings", _change(*described["max_position_embeddings"])],
        ["weights", _weights(described)],
    ]
    return "\n\n".join([markdown(["patched", "value"], rows), *_changes(described["changes"])])


def _changes(changes: Mapping[str, str]) -> Iterator[str]:
    """The diffs in one block, and a line for each file that has none."""
    diffs = {name: text for name, text in changes.items() if text.startswith("---")}
    if "config.json" not in diffs:
        yield "config.json is as it was."
    if diffs:
        yield f"```diff\n{''.join(diffs.values())}```"
    yield "\n".join(f"* {name}: {text}" for name, text in changes.items() if name not in diffs)


def _change(before: int, after: int) -> str:
    return f"{before} -> {after}" if before != after else f"{before}, as it was"


def _is_here(described: dict[str, Any]) -> bool:
    """False where the result goes to the Hub alone."""
    return described["hub"] is None or described["out"] is not None or described["in_place"]


def _hub_rows(hub: dict[str, Any] | None) -> list[list[str]]:
    if hub is None:
        return []
    said = ["private"] if hub["private"] else []
    said += [f"{len(hub['files'])} files", size(sum(hub["files"].values()))]
    said += ["and the weights"] if hub["weights_elsewhere"] else []
    what = "uploaded to" if hub["url"] else "would be uploaded to"
    return [[what, f"{hub['url'] or hub['repository']} ({', '.join(said)})"]]


def _written(described: dict[str, Any]) -> str:
    if not described["written"]:
        return "would be written to" if not described["in_place"] else "would be changed in place"
    return "changed in place" if described["in_place"] else "written to"


def _layer_rows(key: str, layer: dict[str, Any], length: int) -> list[list[str]]:
    return [
        ["layers", key],
        ["schedule", layer["schedule"]],
        ["length", _arithmetic(layer["original_length"], length)],
        ["route", _route(layer)],
        ["attention scale", f"{layer['attention_scale']:.6g}"],
    ]


def _arithmetic(original: int, length: int) -> str:
    """``512 x 2 = 1024 tokens``; the factor of a length that is not a whole multiple is rounded, and so ``~``."""
    factor = length / original
    equals = "=" if round(original * float(f"{factor:.6g}"), 6) == length else "~"
    return f"{original} x {factor:.6g} {equals} {length} tokens"


def _route(layer: dict[str, Any]) -> str:
    """How the configuration says it: by a formula that engines know, or by one factor per pair."""
    kind = layer["rope_parameters"]["rope_type"]
    if kind == "longrope" and layer["fields"]["name"] != "longrope":
        return f"one factor per pair ({len(layer['rope_parameters']['long_factor'])} pairs, rope_type longrope)"
    return f"rope_type {kind}"


_HOW = {"hard": "hard link", "symlink": "absolute symlink", "copy": "copy"}


def _weights(described: dict[str, Any]) -> str:
    if not described["weights"]:
        return "untouched" if described["in_place"] or not described["written"] else "none"
    counted = Counter(described["weights"].values())
    return ", ".join(f"{count} x {_HOW[how]}" for how, count in counted.items()) + "; not read"
