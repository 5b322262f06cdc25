"""Completes a checkpoint whose frequencies stay as they are: transformers 4's keys, and the tokenizer's limit.

A model that was patched in memory and saved by ``save_pretrained`` lacks both.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..configs.configuration import Configuration
from ..configs.writing import in_both_dialects, unread_by_v4
from ..errors import ScheduleError
from ..files.reading import read_json
from ..planning.plan import Plan
from ..request import Request
from .caveats import number, optional_json
from .locating import read_config
from .metadata.record import NAME as RECORD
from .metadata.record import as_json, original_config, read_record, undo


def completed(source: Path, request: Request) -> Plan:
    """Plans what a checkpoint lacks under the frequencies that it has.

    Raises:
        ScheduleError: it lacks nothing.
    """
    now, record = Configuration.read(read_config(source)), read_record(source)
    length = record.length if record else now.meant_length
    planned = Configuration.read(in_both_dialects(now)) if unread_by_v4(now) else now
    notes = tuple(_notes(source, planned is not now, length))
    if not notes:
        raise ScheduleError("as-is changes nothing, so there is nothing to write; name the schedule that you want")
    return Plan(request, now, planned, {}, length, notes)


def _notes(source: Path, new_keys: bool, length: int) -> Iterator[str]:
    if new_keys:
        yield "the frequencies stay as they are; transformers 4's keys are written beside those of transformers 5"
    if raised_tokenizer(source / "tokenizer_config.json", length):
        yield f"the frequencies stay as they are; the tokenizer's model_max_length becomes {length}"


def raised_tokenizer(path: Path, length: int) -> bytes | None:
    """Returns ``tokenizer_config.json`` with ``model_max_length`` raised; None where it is high enough or absent."""
    limit = number(optional_json(path).get("model_max_length"))
    if limit is None or limit >= length:
        return None
    return as_json({**read_json(path), "model_max_length": length}, path.name)


def kept_record(source: Path, plan: Plan) -> dict[str, object]:
    """Returns the record of a checkpoint that keeps its schedule, without its list of files."""
    kept = {key: value for key, value in read_json(source / RECORD).items() if key != "files"}
    return kept | {"undo": undo(plan.config, original_config(plan.original.raw, source))}
