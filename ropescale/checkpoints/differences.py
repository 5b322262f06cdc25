"""Readable differences between the source's files and the patched ones."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from ..files import read_bytes, read_json
from ..output.formatting import brief, cut
from .metadata.record import NAME as RECORD
from .model_card import front_matter

_LONGEST = 200
"""The most characters of a text on one line: a chat template is a page."""


def changes(source: Path, files: Mapping[str, bytes]) -> dict[str, str]:
    """Describes the change of every file: a unified diff, or one line for files that are not JSON.

    Args:
        source: the checkpoint as it is.
        files: the new content of each file, by name. One that says the same as before is left out.
    """
    found = {name: _change(source / name, content) for name, content in files.items()}
    return {name: text for name, text in found.items() if text}


def _change(path: Path, content: bytes) -> str:
    if path.name == RECORD:
        return f"{'replaced' if path.exists() else 'new file'}: what was changed, and how to undo it"
    if path.suffix == ".json":
        return diff(read_json(path), json.loads(content), path.name)
    return _added(read_bytes(path) if path.exists() else None, content)


def _added(old: bytes | None, new: bytes) -> str:
    """Returns ``+38 lines: section "Context extension"``; empty where a card is unchanged."""
    before, after = (Counter((text or b"").splitlines()) for text in (old, new))
    more, fewer = (after - before).total(), (before - after).total()
    if old == new:
        return ""
    if old is None:
        return f'new file, {more} lines: section "Context extension"'
    counts = " ".join(f"{sign}{count}" for sign, count in (("+", more), ("-", fewer)) if count)
    also = "" if front_matter(old) == front_matter(new) else " and the front matter"
    return f'{counts or "other"} lines: section "Context extension"{also}'


def diff(old: Mapping[str, object], new: Mapping[str, object], name: str = "config.json") -> str:
    """Returns a unified diff of two JSON objects; long lists on one line lest a table fills the screen."""
    kept = {key for key in old if key in new and old[key] == new[key]}
    before, after = ([line + "\n" for line in _readable(value, kept)] for value in (old, new))
    return "".join(difflib.unified_diff(before, after, f"{name} (source)", f"{name} (patched)", n=1))


def _readable(value: Mapping[str, object], kept: Collection[str] = ()) -> Iterator[str]:
    """Yields an object's lines; ``kept`` are keys with the same value on both sides, which get one line."""
    yield "{"
    for key, inner in sorted(value.items()):
        lines = [_short(inner)]
        if isinstance(inner, Mapping) and not (key in kept and len(inner) > 20):
            lines = [*_readable(inner)]
        yield f"  {json.dumps(key)}: {lines[0]}"
        yield from (f"  {line}" for line in lines[1:])
    yield "}"


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{... {len(value)} entries ...}}"
    if isinstance(value, list) and len(value) > 6 and all(isinstance(v, (int, float)) for v in value):
        ends = ", ".join(map(_figure, value[:3])), ", ".join(map(_figure, value[-2:]))
        return f"[{ends[0]}, ... {len(value)} numbers ..., {ends[1]}]"
    return cut(json.dumps(value), _LONGEST)


def _figure(value: float) -> str:
    """Writes six digits; a whole number beyond every float comes as it is, cut."""
    try:
        return f"{value:.6g}"
    except OverflowError:
        return brief(value)
