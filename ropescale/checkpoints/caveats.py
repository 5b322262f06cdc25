"""Warnings about a patched checkpoint: what engines compute differently, and files that still hold the old limit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..configs import class_defaults
from ..engines import engine_warnings
from ..files import open_regular, read_json
from ..output.formatting import brief
from ..planning.plan import Plan
from . import links
from .folders import files_of, is_weight


def warnings_of(source: Path, plan: Plan, weights: bool) -> list[str]:
    """Returns all warnings; ``weights`` says whether those of the source should be there (a dry run leaves them)."""
    return [
        *(_no_weights(source) if weights else ()),
        *links.warning(links.leaving(source)),
        *_old_limits(source, plan),
        *_unknown_type(plan),
        *engine_warnings(plan),
    ]


def _no_weights(source: Path) -> Iterator[str]:
    if not any(is_weight(name.name) for name in files_of(source)):
        yield f"{source} holds no weight files that ropescale knows, so only its configuration is patched"


def _unknown_type(plan: Plan) -> Iterator[str]:
    model_type = plan.planned.model_type
    if model_type not in class_defaults.load():
        yield (
            f"model type {brief(model_type)} is not one that ropescale knows; `ropescale verify` shows whether its "
            "code reads these keys"
        )


def other_limits(folder: Path, length: int) -> Iterator[str]:
    """Yields the files of a checkpoint, other than its configuration, that stop before a length in tokens.

    ``tokenizer_config.json`` is not among them: patching raises its limit.
    """
    generation = number(optional_json(folder / "generation_config.json").get("max_length")) or 0
    if _UNCHOSEN < generation < length:
        yield f"generation_config.json: max_length is still {generation:g}, which stops generation there"
    limit = _truncation(folder / "tokenizer.json")
    if limit is not None and limit < length:
        yield f"tokenizer.json: cuts texts at {limit} tokens"


def _old_limits(source: Path, plan: Plan) -> Iterator[str]:
    """Yields files and fields of the source that still say the old length."""
    yield from other_limits(source, plan.length)
    section = plan.planned.section
    window = number(section.get("sliding_window"))
    if window and 0 < window < plan.length and section.get("use_sliding_window", True):
        yield f"config.json: sliding_window is {window:g}; the layers that use it see no further, whatever the schedule"
    for name in ("params.json", "original/params.json"):
        if any(key in optional_json(source / name) for key in _PARAMS_KEYS):
            yield f"{name}: still describes the original model; an engine that reads that file sees no scaling"


_UNCHOSEN = 20
"""transformers' default for ``max_length``, which nobody chose."""

_PARAMS_KEYS = ("rope_theta", "use_scaled_rope", "max_seq_len", "max_position_embeddings", "yarn")
"""Keys of ``params.json`` that Mistral's and Meta's own engines read."""

_TRUNCATION = re.compile(r'"truncation"\s*:\s*\{[^{}]*?"max_length"\s*:\s*(\d+)')


def _truncation(path: Path) -> int | None:
    """Returns where ``tokenizer.json`` cuts texts; the file may be huge, and this stands in its first lines."""
    if not path.exists():
        return None
    with open_regular(path) as file:
        match = _TRUNCATION.search(file.read(4096).decode("utf-8", "replace"))
    return int(match[1]) if match and len(match[1]) < 20 else None


def number(value: object) -> float | None:
    """Returns a value that is a number; None for anything else."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def optional_json(path: Path) -> Mapping[str, object]:
    return read_json(path) if path.exists() else {}


def on_links(links: Mapping[str, str], asked: str) -> Iterator[str]:
    """Yields warnings about weights that did not come over as hard links."""
    count = Counter(links.values())
    because = " (no hard links here: another file system?)" if asked == "auto" else ""
    if count["symlink"]:
        yield (
            f"{count['symlink']} weight file(s) are absolute symlinks to the source{because}: keep the source where it "
            "is, or copy the weights"
        )
    if count["copy"] and asked == "auto":
        yield f"{count['copy']} weight file(s) were copied: neither hard links nor symlinks are possible here"
