"""The front matter of a model card: the YAML block at its top, which the Hub reads."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError

if TYPE_CHECKING:
    from yaml import Event, Node

TAG = "ropescale"

_BLOCK = re.compile(
    r"\A---[ \t]*(?P<end>\r?\n)(?P<yaml>.*?)(?P<close>^---[ \t]*(?:\r?\n|\Z))", re.DOTALL | re.MULTILINE
)
_KEY = re.compile(r"[A-Za-z_][\w-]*(?=:)")


def with_metadata(card: bytes, base_model: str | None) -> bytes:
    """Returns a card whose front matter names the tag ``ropescale``, and the model that it was made from.

    Only these lines change, so that comments, spelling and order stay. A block that is not a YAML mapping stays as
    it is.

    Args:
        card: the file's content.
        base_model: a Hub id that replaces what ``base_model`` says, or None to leave that as it is.
    """
    text = card.decode("utf-8", "surrogateescape")  # keeps every byte
    found = _BLOCK.match(text)
    if found is None:
        fresh = _changed([], {}, base_model) or []
        return b"---\n" + "".join(f"{line}\n" for line in fresh).encode() + b"---\n\n" + card
    old = _mapping(found["yaml"])
    lines = None if old is None else _changed(found["yaml"].splitlines(), old, base_model)
    if lines is None:
        return card
    new = "".join(f"{line}{found['end']}" for line in lines)
    return (text[: found.start("yaml")] + new + text[found.start("close") :]).encode("utf-8", "surrogateescape")


def block(card: bytes) -> str:
    """Returns a card's front matter as written; empty where it has none."""
    found = _BLOCK.match(card.decode("utf-8", "surrogateescape"))
    return found["yaml"] if found else ""


def check(card: bytes, where: str) -> None:
    """Refuses a card that the Hub would refuse once everything else has been sent.

    Raises:
        ConfigError: the card is not UTF-8, or its front matter is not a YAML mapping.
    """
    try:
        text = card.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where} is not UTF-8 (byte {error.start}), and the Hub takes no other; save it so"
        ) from None
    found = _BLOCK.match(text)
    if found is not None and _mapping(found["yaml"]) is None:
        raise ConfigError(f"the front matter of {where} is not valid YAML, and the Hub would refuse it; mend it first")


def _mapping(text: str) -> dict[str, Any] | None:
    """Parses a YAML block; None where it is not a mapping, or is large enough to do harm."""
    import yaml

    kind = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it was built
    try:
        if len(text) > _LARGEST or not _is_shallow(yaml.parse(text, kind)):
            return None
        loader = kind(text)
        node = loader.get_single_node()
        found = None if node is None else loader.construct_document(node) if _values(node, {}) <= _LARGEST else ""
    except (yaml.YAMLError, ValueError, RecursionError):  # a date that is none, an endless number
        return None
    return {} if found is None else found if isinstance(found, dict) else None


_LARGEST, _DEEPEST = 1_000_000, 50
"""Characters of a block, and values in it with every alias written out: a few lines can say a billion of those.

And how deep it is nested: PyYAML crashes at some thousand levels.
"""


def _is_shallow(events: Iterable[Event]) -> bool:
    """Whether the nesting stays shallow; stops reading at the first level too many."""
    from yaml import CollectionEndEvent, CollectionStartEvent

    steps = (isinstance(each, CollectionStartEvent) - isinstance(each, CollectionEndEvent) for each in events)
    return all(depth <= _DEEPEST for depth in accumulate(steps))


def _values(node: Node, counted: dict[int, float]) -> float:
    """Returns how many values a node holds with every alias written out; endless where it holds itself."""
    if id(node) not in counted:
        counted[id(node)] = math.inf
        inner = [each for pair in node.value for each in (pair if isinstance(pair, tuple) else (pair,))]
        counted[id(node)] = 1 + sum(_values(each, counted) for each in inner if not isinstance(each, str))
    return counted[id(node)]


def _changed(lines: list[str], old: dict[str, Any], base_model: str | None) -> list[str] | None:
    """Returns the block's lines with our two keys, if reading them gives just what is wanted."""
    wanted, parts = dict(old), _parts(lines)
    if base_model is not None:
        wanted["base_model"] = base_model
        parts["base_model"] = [f"base_model: {_scalar(base_model)}"]
    tags = old.get("tags") or []
    if isinstance(tags, list) and TAG not in tags:
        wanted["tags"] = [*tags, TAG]
        parts["tags"] = _with_tag(parts.get("tags", []), tags)
    new = [line for part in parts.values() for line in part]
    return new if _mapping("\n".join(new)) == wanted else None


def _scalar(text: str) -> str:
    """Returns a string in YAML; a name such as ``no`` or ``1e5`` needs quotes to remain one."""
    return text if _mapping(f"a: {text}") == {"a": text} else json.dumps(text)


def _parts(lines: list[str]) -> dict[str, list[str]]:
    """Returns the lines of each key at the margin, in order; those before the first key under the empty name."""
    parts: dict[str, list[str]] = {"": []}
    key = ""
    for line in lines:
        if found := _KEY.match(line):
            key = found[0]
        parts.setdefault(key, []).append(line)
    return parts


def _with_tag(lines: list[str], tags: list[Any]) -> list[str]:
    """Returns a list of tags and ours after the last, in the list's own style."""
    if not tags:
        return ["tags:", f"- {TAG}"]
    if lines[-1].rstrip().endswith("]"):
        return [*lines[:-1], f"{lines[-1].rstrip()[:-1]}, {TAG}]"]
    last = max((i for i, line in enumerate(lines) if line.lstrip().startswith("- ")), default=0)
    margin = lines[last][: len(lines[last]) - len(lines[last].lstrip())]
    return [*lines[: last + 1], f"{margin}- {TAG}", *lines[last + 1 :]]
