"""The files that patching changes, and their differences from the source."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..configs.configuration import Configuration, in_both_dialects, read_rope, unread_by_v4, widened
from ..configs.finding import at, placed
from ..engines import ENGINES
from ..engines.base import needs_remote_code
from ..engines.exported import engine_warnings, export_of, patched
from ..errors import ConfigError, ScheduleError
from ..files import Contents, Data, Json, is_number, local_path, read_bytes, read_json
from ..output.formatting import brief, cell, code_span, cut, sentence
from ..planning.plan import Plan
from ..record import RECORD, as_json, make_record, original_config, undo
from ..request import Request
from .locating import ModelFolder

if TYPE_CHECKING:
    from ..stored_record import Record


def new_files(source: Path, name: str, plan: Plan, earlier: Record | None) -> Contents:
    """Returns the content of every changed file, except the record.

    Args:
        source: the source's folder.
        name: the source's name in the model card.
        plan: the plan of a schedule, or of the keys that the checkpoint lacks (see :func:`completed`).
        earlier: the record of an earlier patch of the source's files.
    """
    files = {} if plan.planned is plan.original else {"config.json": as_json(plan.config)}
    if plan.changes:
        files["README.md"] = card(source / "README.md", plan, name)
    tokenizer = raised_tokenizer(source, plan.length, earlier)
    return files | ({"tokenizer_config.json": tokenizer} if tokenizer else {})


def source_name(name: str) -> str:
    """Returns a Hub id unchanged, or the last part of a folder's path, because the result may be published."""
    path = local_path(name)
    return path.resolve().name if path.is_dir() else name


def raised_tokenizer(folder: Path, length: int, earlier: Record | None) -> bytes | None:
    """Returns ``tokenizer_config.json`` with a raised ``model_max_length``, or None if it is absent or stays.

    Args:
        earlier: the record of an earlier patch, which says what that raised.
    """
    tokenizer = optional_json(folder / _TOKENIZER)
    limit = _makers_limit(folder, earlier)
    if limit is None or tokenizer[_LIMIT] == max(length, limit):
        return None
    return as_json({**tokenizer, _LIMIT: int(max(length, limit))})


_TOKENIZER, _LIMIT = "tokenizer_config.json", "model_max_length"


def _makers_limit(folder: Path, earlier: Record | None) -> float | None:
    """Returns the tokenizer's limit before an earlier patch, or None if it has none."""
    limit = number(optional_json(folder / _TOKENIZER).get(_LIMIT)) or 0
    if earlier and earlier.tokenizer_limit and limit == earlier.length:
        return earlier.tokenizer_limit
    return limit if limit > 0 else None


def raised_limit(folder: Path, length: int, earlier: Record | None) -> dict[str, int]:
    """Returns the record's entry for a tokenizer whose limit is raised to ``length``; empty for any other."""
    limit = _makers_limit(folder, earlier)
    return {"tokenizer_limit": int(limit)} if limit and limit < length else {}


_ROTARY = "rope_parameters rope_scaling rope_theta max_position_embeddings original_max_position_embeddings".split()
"""The keys of a table and a window."""


def following(source: ModelFolder, target: ModelFolder, request: Request) -> Plan:
    """Plans to give a draft head the tables and the window of its target.

    Raises:
        ConfigError: the head rotates otherwise than its target did before ropescale patched it.
    """
    if _base(source) != _base(target):
        raise ConfigError(
            f"{source.folder} and {target.folder} differ in theta or in the number of rotating coordinates, so the "
            "head was trained with another table; name a schedule",
            "schedule",
        )
    now = Configuration.read(source.config)
    wanted = Configuration.read(target.config)
    section: Any = at(now.raw, now.path)
    rest = {key: value for key, value in section.items() if key not in _ROTARY}
    stated = Configuration.read(in_both_dialects(wanted)).section  # what a class's default states, too
    taken = {key: stated[key] for key in _ROTARY if key in stated}
    notes = [f"the table, and the window of {wanted.meant_length:,} tokens, are those of {target.folder}"]
    if not now.is_head:
        notes.append("config.json does not say that this is a draft head; check that it drafts for that target")
    planned = Configuration.read(placed(now.raw, now.path, rest | taken))
    return Plan(request, now, planned, {}, wanted.meant_length, tuple(notes))


def _base(stored: ModelFolder) -> dict[str, tuple[float, int]]:
    """Returns theta and the number of rotating coordinates per layer type, without ropescale's scaling."""
    return {key: (rope.theta, rope.rotary_dim) for key, rope in read_rope(stored.original()).items()}


def completed(source: ModelFolder, request: Request) -> Plan:
    """Plans the addition of missing keys and a raised tokenizer limit to a checkpoint, with unchanged frequencies.

    A model that was patched in memory and saved by ``save_pretrained`` lacks the keys of transformers 4, and its
    tokenizer has the old limit.

    Raises:
        ScheduleError: the checkpoint lacks nothing.
    """
    now = planned = Configuration.read(source.config)
    length = source.record.length if source.record else now.meant_length
    notes = []
    if request.target_length is not None:
        length = request.target_length
        planned = widened(now, request.target_length)
        notes += [
            f"the frequencies stay unchanged, bit for bit; the window becomes {length:,} tokens, and nothing in this "
            f"file was computed for positions beyond {now.meant_length:,}"
        ]
    elif unread_by_v4(now):
        planned = Configuration.read(in_both_dialects(now))
        notes += ["the frequencies stay unchanged; transformers 4's keys are added to those of transformers 5"]
    if raised_tokenizer(source.folder, length, source.record):
        notes += [f"the frequencies stay unchanged; the tokenizer's model_max_length becomes {length}"]
    if not notes:
        raise ScheduleError("as-is changes nothing, so no file is written; name a schedule")
    return Plan(request, now, planned, {}, length, tuple(notes))


def record_of(source: ModelFolder, plan: Plan, name: str) -> Data:
    """Returns the record of a checkpoint that is built from a source folder, without the list of files.

    If the plan does not change the source's schedule, the source's record is kept, except for the undo information.
    """
    folder = source.folder
    earlier = source.record
    if earlier is not None and not plan.changes:
        kept = {key: value for key, value in read_json(folder / RECORD).items() if key != "files"}
        return kept | {"length": plan.length, "undo": undo(plan.config, original_config(plan.original.raw, earlier))}
    record = make_record(plan, source_name(name), source.content, None if plan.request.on_top else earlier)
    return record | raised_limit(folder, plan.length, earlier)


# --- The model card

BEGIN, END = "<!-- ropescale: begin -->", "<!-- ropescale: end -->"


def card(readme: Path, plan: Plan, source: str) -> bytes:
    """Returns the source's card with ropescale's section at its end; replaces an earlier such section.

    The section describes the schedule and how to load the result in each engine. Names, specs and values of the
    configuration may be hostile, so all of them are escaped.

    Args:
        readme: the source's card, which may not exist.
        plan: the plan of the schedule.
        source: the source's name.
    """
    remote = needs_remote_code(plan.config)
    trusting, flag = (", trust_remote_code=True", " --trust-remote-code") if remote else ("", "")
    rows = "\n".join(
        f"| {cell(sentence(key))} | {cell(code_span(plan.label(key)))} | {rope.original_length} | {plan.length} |"
        for key, rope in plan.ropes.items()
    )
    body = f"""## Context extension

ropescale changed the rotary frequencies of {code_span(Path(source).name)}, but not its weights.
`ropescale.json` contains the frequencies.

| layers | schedule | trained length | target length |
|---|---|---|---|
{rows}

Stock transformers loads this checkpoint:

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("PATH"{trusting})
tokenizer = AutoTokenizer.from_pretrained("PATH"{trusting})
```

{_serving(plan, source)}

`ropescale verify PATH{flag}` proves that transformers uses these frequencies."""
    text = read_bytes(readme).decode("utf-8", "surrogateescape") if readme.exists() else ""  # keeps every byte
    parts = []
    at = 0  # no regular expression, which could take hours on a hostile card
    while (begin := text.find(BEGIN, at)) >= 0 and (end := text.find(END, begin)) >= 0:
        parts.append(text[at:begin].rstrip() if at == 0 else text[at:begin].strip())
        at = end + len(END)
    kept = "\n\n".join([*parts, text[at:].lstrip() if at else text]).rstrip()
    body = body.replace("<!--", "<\\!--").replace("-->", "--\\>")  # which would start or end a comment
    ours = f"{BEGIN}\n\n{body}\n\n{END}\n"
    return ((kept + "\n\n" if kept else "") + ours).encode("utf-8", "surrogateescape")


def _serving(plan: Plan, source: str) -> str:
    """Returns the commands for each engine, or why an engine has none, and the engines' differences."""
    blocks = []
    for key, engine in ENGINES.items():
        if engine.in_card:
            done = export_of(key, patched(plan, "PATH", source), plan)
            commands = (command.fenced() for command in done.commands)
            blocks.append(f"{sentence(done.refusal)}." if done.refusal else "\n\n".join(commands))
    caveats = "\n".join(f"* {sentence(warning)}" for warning in engine_warnings(plan))
    if caveats:
        blocks.append(f"Some engines differ from the requested schedule:\n\n{caveats}")
    return "\n\n".join(blocks)


# --- Readable differences from the source's files

_LONGEST = 200
"""The largest number of characters shown of a value; a chat template can fill a page."""


def changes(source: ModelFolder, files: Contents) -> dict[str, str]:
    """Describes the change of every file: a unified diff for JSON files except the record, one line for other files.

    Args:
        source: the unchanged checkpoint.
        files: the new content of each file, by name; the result omits files that do not change.
    """
    texts = {}
    for name, content in files.items():
        path = source.folder / name
        if path.suffix == ".json" and name != RECORD:
            old = source.config if name == "config.json" else read_json(path)
            texts[name] = diff(old, json.loads(content), name)
        elif not path.exists() or read_bytes(path) != content:
            what = "contains the changes, and how to undo them" if name == RECORD else 'section "Context extension"'
            texts[name] = f"{'changed' if path.exists() else 'new file'}: {what}"
    return {name: text for name, text in texts.items() if text}


def diff(old: Json, new: Json, name: str) -> str:
    """Returns a unified diff of two JSON objects, limited to the keys that differ, with long lists on one line."""
    before = list(_readable(old, new))
    after = list(_readable(new, old))
    return "".join(difflib.unified_diff(before, after, f"{name} (source)", f"{name} (patched)", n=1))


def _readable(value: Json, other: object) -> Iterator[str]:
    """Yields the lines of a JSON object, with sorted keys, without those that another one has with equal values."""
    there = other if isinstance(other, Mapping) else {}
    yield "{\n"
    for key, inner in sorted(value.items()):
        if key not in there or inner != there[key]:
            first, *lines = _readable(inner, there.get(key)) if isinstance(inner, Mapping) else [f"{short(inner)}\n"]
            yield f"  {json.dumps(key)}: {first}"
            yield from (f"  {line}" for line in lines)
    yield "}\n"


def short(value: object) -> str:
    """Formats a value on one line; shows only the ends of a long list of numbers, with six digits."""
    if isinstance(value, list) and len(value) > 6 and all(map(is_number, value)):
        # integers that may exceed the float range are shortened as text
        ends = [f"{v:.6g}" if abs(v) < 1e300 else brief(v) for v in (*value[:3], *value[-2:])]
        return f"[{', '.join(ends[:3])}, ... {len(value)} numbers ..., {', '.join(ends[3:])}]"
    return cut(json.dumps(value), _LONGEST)


def number(value: object) -> float | None:
    """Returns the value if it is a number, else None."""
    return value if is_number(value) else None


def optional_json(path: Path) -> Json:
    return read_json(path) if path.exists() else {}
