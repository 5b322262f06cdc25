"""The files of a patched checkpoint that differ from its source's, also where its frequencies stay as they are."""

from __future__ import annotations

from pathlib import Path

from ..configs.configuration import Configuration, in_both_dialects, unread_by_v4
from ..errors import ScheduleError
from ..files import local_path, read_json
from ..planning.plan import Plan
from ..request import Request
from . import model_card
from .caveats import number, optional_json
from .locating import read_config
from .metadata.record import NAME as RECORD
from .metadata.record import as_json, original_config, read_record, undo


def new_files(
    source: Path, name: str, plan: Plan, hub_id: str | None = None, to: str | None = None
) -> dict[str, bytes]:
    """Returns the content of every file that differs from the source's, except the record.

    Args:
        source: the source's folder.
        name: the source's name in the card.
        hub_id: its name on the Hub, where it is there.
        plan: the schedule worked out, or what a checkpoint lacks under the one that it has.
        to: the repository that the result goes to, where that is known.
    """
    files = {} if plan.planned is plan.original else {"config.json": as_json(plan.config, "config.json")}
    if plan.changes:
        readme = source / "README.md"
        card = model_card.card(readme, plan, name, to or "PATH")
        if hub_id or to:
            card = model_card.with_metadata(card, hub_id)
        if to:
            model_card.refuse_unsendable(card, str(readme))
        files["README.md"] = card
    tokenizer = raised_tokenizer(source / "tokenizer_config.json", plan.length)
    return files | ({"tokenizer_config.json": tokenizer} if tokenizer else {})


def source_name(name: str) -> str:
    """Returns a Hub id as it is, and a folder by its last name alone: the result may be published."""
    path = local_path(name)
    return path.resolve().name if path.is_dir() else name


def raised_tokenizer(path: Path, length: int) -> bytes | None:
    """Returns ``tokenizer_config.json`` with ``model_max_length`` raised; None where it is high enough or absent."""
    limit = number(optional_json(path).get("model_max_length"))
    if limit is None or limit >= length:
        return None
    return as_json({**read_json(path), "model_max_length": length}, path.name)


def completed(source: Path, request: Request) -> Plan:
    """Plans the keys and limits that a checkpoint lacks under the frequencies that it has.

    A model that was patched in memory and saved by ``save_pretrained`` lacks transformers 4's keys, and its tokenizer
    has the old limit.

    Raises:
        ScheduleError: it lacks nothing.
    """
    now, record = Configuration.read(read_config(source)), read_record(source)
    length = record.length if record else now.meant_length
    planned = Configuration.read(in_both_dialects(now)) if unread_by_v4(now) else now
    notes = []
    if planned is not now:
        notes += ["the frequencies stay as they are; transformers 4's keys are written beside those of transformers 5"]
    if raised_tokenizer(source / "tokenizer_config.json", length):
        notes += [f"the frequencies stay as they are; the tokenizer's model_max_length becomes {length}"]
    if not notes:
        raise ScheduleError("as-is changes nothing, so there is nothing to write; name the schedule that you want")
    return Plan(request, now, planned, {}, length, tuple(notes))


def kept_record(source: Path, plan: Plan) -> dict[str, object]:
    """Returns the record of a checkpoint that keeps its schedule, without its list of files."""
    kept = {key: value for key, value in read_json(source / RECORD).items() if key != "files"}
    return kept | {"undo": undo(plan.config, original_config(plan.original.raw, source))}
