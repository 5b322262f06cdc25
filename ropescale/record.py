"""``ropescale.json``: the record of a patched checkpoint, with the changes that undo the patch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from . import __version__
from .errors import CheckpointError, ConfigError
from .files import Data, Json, read_json, sha256
from .output.formatting import cut, stays_below, visible
from .planning.plan import Plan
from .rope import Rope
from .schedules import Frequencies, Schedule, compute, to_dict
from .schedules.base import length_dependent

if TYPE_CHECKING:
    from .stored_record import Record

RECORD = "ropescale.json"
SCHEMA = 1


def make_record(plan: Plan, source: str, original_bytes: bytes, earlier: Record | None = None) -> Data:
    """Builds the record of a patched checkpoint, which allows verifying and undoing the patch.

    Args:
        plan: the plan of the schedule.
        source: the source checkpoint, a folder or a Hub id.
        original_bytes: the bytes of the source's ``config.json``, for its sha256.
        earlier: the source's own record, if ropescale patched the source before; its sha256 of the original is kept.
    """
    digest = earlier and earlier.original_config_sha256
    return {
        "schema": SCHEMA,
        "source": source,
        "schedule": {key: to_dict(schedule) for key, schedule in plan.schedules.items()},
        "spec": plan.specs,
        "beneath": plan.beneath,
        "frozen": plan.frozen,
        "original_length": {key: rope.original_length for key, rope in plan.ropes.items()},
        "length": plan.length,
        "tables": {key: _as_table(table) for key, table in plan.tables.items()},
        "switch": {
            key: [{"length": length, **_as_table(table)} for length, table in sides.items()]
            for key, schedule in plan.schedules.items()
            if (sides := around_switch(schedule, plan.ropes[key]))
        },
        "versions": {"ropescale": __version__},
        "original_config_sha256": sha256(original_bytes) if digest is None else digest,
        "softmax_factor": {key: softmax_factor(rope) for key, rope in plan.planned.ropes.items()},
        "undo": undo(plan.config, plan.original.raw),
    }


def softmax_factor(rope: Rope) -> float:
    """Computes the factor on the softmax scale of MLA models: ``(0.1 mscale_all_dim ln factor + 1)^2``.

    transformers' classes apply it to any scaling with ``mscale_all_dim``; DeepSeek's own code computes it from
    ``mscale`` (DeepSeek-V3, inference/model.py).
    """
    weight = rope.scaling.get("mscale_all_dim")
    factor = rope.scaling.get("factor")
    if rope.kind == "default" or not (weight and factor and factor > 1):
        return 1.0
    return (0.1 * weight * math.log(factor) + 1) ** 2


def around_switch(schedule: Schedule, rope: Rope) -> dict[int, Frequencies]:
    """Computes the tables at the trained length and one token past it; empty if all lengths share one table."""
    if not length_dependent(schedule):
        return {}
    return {length: compute(schedule, rope, length) for length in (rope.original_length, rope.original_length + 1)}


def _as_table(table: Frequencies) -> Data:
    return {"inv_freq": list(table.inv_freq), "attention_scale": table.attention_scale}


def read_record(folder: Path) -> Record | None:
    """Reads the record in a folder; returns None if there is no record.

    Raises:
        ConfigError: the file exists, but this version cannot read it.
    """
    path = folder / RECORD
    if not path.exists():
        return None
    from pydantic import ValidationError

    from .stored_record import Record

    try:
        return Record.model_validate(read_json(path))
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = cut(visible(".".join(map(str, wrong["loc"]))), 60)
        raise ConfigError(
            f"{path} is a record that ropescale {__version__} cannot read ({where}: {wrong['msg']}); patch the "
            "original again"
        ) from None


Entry = Json
"""The entry of a written file; see :func:`ropescale.checkpoints.folders.entry_of`."""

Listing = Mapping[str, Entry]
"""The entries of the written files, by name relative to the folder."""


def with_files(record: Json, files: Listing) -> bytes:
    """Returns the record as JSON, with the list of written files, which ``force`` may replace later."""
    return as_json({**record, "files": files})


def files_in(folder: Path) -> Listing | None:
    """Reads the entries of the written files from a folder's record; returns None if they are missing or invalid."""
    try:
        record = read_record(folder)
    except (ConfigError, CheckpointError):
        return None
    files = None if record is None else record.files
    if not isinstance(files, Mapping) or not all(map(stays_below, files)):
        return None
    return files if all(isinstance(entry, Mapping) for entry in files.values()) else None


def original_config(config: Json, record: Record | None, on_top: bool = False) -> Data:
    """Returns the configuration that a schedule builds on: without ropescale's scaling unless ``on_top``.

    Args:
        record: the record of the configuration's folder, if there is one.
    """
    if on_top or record is None:
        return dict(config)
    return record.undo.apply(dict(config))


def undo(new: Json, old: Json) -> Data:
    """Returns the changes from ``new`` back to ``old``: keys to set to their old value, and keys to remove."""
    return {
        "changed": {key: value for key, value in old.items() if key not in new or new[key] != value},
        "added": sorted(key for key in new if key not in old),
    }


def as_json(value: Json) -> bytes:
    """Encodes a value as the JSON of ropescale's files: UTF-8, indented, with a final newline.

    Infinity is allowed, because transformers 4 wrote it into configurations of Mamba hybrids.

    Raises:
        ConfigError: the value contains NaN.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    json.loads(text, parse_constant=_refuse_nan)
    try:
        return text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, or a path that is not UTF-8
        return (json.dumps(value, indent=2) + "\n").encode()


def _refuse_nan(constant: str) -> None:
    if constant == "NaN":
        raise ConfigError("config.json or tokenizer_config.json contains NaN, which is never written; correct it first")
