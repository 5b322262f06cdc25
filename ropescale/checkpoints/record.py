"""``ropescale.json``: what was done to a checkpoint, and how to undo it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import __version__
from ..configs.reading import LARGEST
from ..errors import CheckpointError, ConfigError
from ..escaping import stays_below
from ..files.reading import read_json
from ..planning.layer import length_dependent
from ..planning.plan import Plan
from ..rope import Rope
from ..schedules import Frequencies, Schedule, compute, describe, to_dict

NAME = "ropescale.json"
SCHEMA = 1


def make_record(
    plan: Plan,
    source: str,
    original_bytes: bytes,
    earlier: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything that is needed to understand, check and undo a patched checkpoint.

    Args:
        plan: the schedule worked out.
        source: where the checkpoint came from: a folder or a Hub id.
        original_bytes: the source's ``config.json`` as it lay on disk, for its sha256.
        earlier: the source's own record, where ropescale had patched it before; its sha256 is the original's.
    """
    digest = hashlib.sha256(original_bytes).hexdigest()
    return {
        "schema": SCHEMA,
        "source": source,
        "schedule": {key: to_dict(schedule) for key, schedule in plan.schedules.items()},
        "spec": {key: describe(schedule) for key, schedule in plan.schedules.items()},
        "beneath": dict(plan.beneath),
        "frozen": dict(plan.frozen),
        "original_length": {key: rope.original_length for key, rope in plan.ropes.items()},
        "length": plan.length,
        "tables": {key: _as_table(table) for key, table in plan.tables.items()},
        "switch": {
            key: [{"length": length, **_as_table(table)} for length, table in sides.items()]
            for key, schedule in plan.schedules.items()
            if (sides := around_switch(schedule, plan.ropes[key]))
        },
        "versions": {"ropescale": __version__},
        "original_config_sha256": (earlier or {}).get("original_config_sha256", digest),
        "softmax_factor": {key: softmax_factor(rope) for key, rope in plan.planned.ropes.items()},
        "undo": difference(plan.config, plan.before),
    }


def softmax_factor(rope: Rope) -> float:
    """What MLA models multiply the scale of their softmax by: ``(0.1 mscale_all_dim ln factor + 1)^2``.

    So do transformers' classes, for any scaling that has ``mscale_all_dim``; DeepSeek's own code the same with
    ``mscale`` (DeepSeek-V3, inference/model.py).
    """
    weight, factor = rope.scaling.get("mscale_all_dim"), rope.scaling.get("factor")
    if rope.scaling.get("rope_type", "default") == "default" or not (weight and factor and factor > 1):
        return 1.0
    return (0.1 * weight * math.log(factor) + 1) ** 2


def around_switch(schedule: Schedule, rope: Rope) -> dict[int, Frequencies]:
    """The tables at the trained length and one token past it, by length; empty where every length has the same."""
    if not length_dependent(schedule):
        return {}
    return {length: compute(schedule, rope, length) for length in (rope.original_length, rope.original_length + 1)}


def _as_table(table: Frequencies) -> dict[str, Any]:
    return {"inv_freq": list(table.inv_freq), "attention_scale": table.attention_scale}


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record in a folder, or None where ropescale has not been.

    Raises:
        ConfigError: the file is there but is not one that this version can read.
    """
    path = folder / NAME
    if not path.exists():
        return None
    record = read_json(path)
    if record.get("schema") != SCHEMA or not _is_whole(record):
        raise ConfigError(f"{path} is not a record that ropescale {__version__} can read; patch the original again")
    return record


def _is_whole(record: Mapping[str, Any]) -> bool:
    """Whether the parts that are read again have the shape in which they were written."""
    undoing, tables, lengths = (record.get(name) for name in ("undo", "tables", "original_length"))
    return (
        _is_length(record.get("length"))
        and isinstance(record.get("source"), str)
        and isinstance(record.get("original_config_sha256", ""), str)
        and all(_are_words(record.get(name, {})) for name in ("beneath", "frozen"))
        and _are_words(record.get("spec"))
        and isinstance(lengths, Mapping)
        and all(map(_is_length, lengths.values()))
        and isinstance(undoing, Mapping)
        and isinstance(undoing.get("changed"), Mapping)
        and isinstance(undoing.get("added"), list)
        and all(isinstance(key, str) for key in undoing["added"])
        and isinstance(tables, Mapping)
        and all(_is_table(table) for table in tables.values())
        and _is_switch(record.get("switch", {}))
        and _are_factors(record.get("softmax_factor", {}))
    )


def _are_words(words: Any) -> bool:
    return isinstance(words, Mapping) and all(isinstance(word, str) for word in words.values())


def _are_factors(factors: Any) -> bool:
    return isinstance(factors, Mapping) and all(_is_number(value) and value > 0 for value in factors.values())


def _is_length(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST


def _is_switch(switch: Any) -> bool:
    if not isinstance(switch, Mapping) or not all(isinstance(sides, list) for sides in switch.values()):
        return False
    return all(_is_table(side) and _is_length(side.get("length")) for sides in switch.values() for side in sides)


def _is_table(table: Any) -> bool:
    if not isinstance(table, Mapping) or not isinstance(table.get("inv_freq"), list):
        return False
    numbers = [*table["inv_freq"], table.get("attention_scale")]
    return all(map(_is_number, numbers)) and table["attention_scale"] > 0


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def files_in(folder: Path) -> Mapping[str, Mapping[str, Any]] | None:
    """What the record in a folder says of each file that was written; None where no valid record says it."""
    try:
        record = read_record(folder) or {}
    except (ConfigError, CheckpointError):
        return None
    files = record.get("files")
    if not isinstance(files, Mapping) or not all(stays_below(name) for name in files):
        return None
    return files if all(isinstance(entry, Mapping) for entry in files.values()) else None


def labels_of(record: Mapping[str, Any]) -> dict[str, str]:
    """Each layer type's schedule for people, with the makers' scaling that it was composed with."""
    beneath, labels = record.get("beneath", {}), record["spec"] | record.get("frozen", {})
    return {key: f"{label} on {beneath[key]}" if key in beneath else label for key, label in labels.items()}


def tables_of(record: Mapping[str, Any]) -> dict[str, Frequencies]:
    """The float64 tables that a record says the checkpoint should have, per layer type."""
    return {key: _frequencies(table) for key, table in record["tables"].items()}


def switch_of(record: Mapping[str, Any]) -> dict[str, dict[int, Frequencies]]:
    """The tables on both sides of the trained length, per layer type and length, where they differ with the length."""
    switch = record.get("switch", {})
    return {key: {side["length"]: _frequencies(side) for side in sides} for key, sides in switch.items()}


def _frequencies(table: Mapping[str, Any]) -> Frequencies:
    return Frequencies(table["inv_freq"], table["attention_scale"])


def original_config(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A configuration without our scaling: as it is, where ``folder`` holds no record of ours."""
    record = read_record(folder)
    return dict(config) if record is None else undo(config, record["undo"])


def difference(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """What turns ``new`` back into ``old``: ``{"changed": {key: old value}, "added": [keys]}``."""
    return {
        "changed": {key: value for key, value in old.items() if key not in new or new[key] != value},
        "added": sorted(key for key in new if key not in old),
    }


def undo(config: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Applies what :func:`difference` found; keys keep their place where they have one."""
    added = set(change["added"])
    kept = {key: value for key, value in config.items() if key not in added}
    return {**kept, **change["changed"]}


def as_json(value: Mapping[str, Any], name: str) -> bytes:
    """JSON as every file of ours is written: UTF-8, indented, ending in a newline.

    Args:
        value: what to write. Infinity is kept, as transformers 4 wrote it into the configurations of Mamba hybrids.
        name: the file's name, for the message.

    Raises:
        ConfigError: it holds NaN.
    """
    if _holds_nan(value):
        raise ConfigError(f"{name} holds NaN, which is not a number; mend it first")
    try:
        return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # half a surrogate pair, or a path that is not UTF-8
        return (json.dumps(value, indent=2) + "\n").encode()


def _holds_nan(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_nan(inner) for inner in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds_nan(inner) for inner in value)
    return isinstance(value, float) and math.isnan(value)
