"""The files of a patched checkpoint that differ from its source's."""

from __future__ import annotations

from pathlib import Path

from ...files.reading import local_path
from ...planning.plan import Plan
from ..repairing import raised_tokenizer
from . import front_matter, model_card
from .record import as_json


def new_files(
    source: Path, name: str, plan: Plan, hub_id: str | None = None, to: str | None = None
) -> dict[str, bytes]:
    """Returns the content of every file that differs from the source's, except the record.

    Args:
        source: the source's folder.
        name: what the source is called in the card.
        hub_id: its name on the Hub, where it is there.
        plan: the schedule worked out, or what a checkpoint lacks under the one that it has.
        to: the repository that the result goes to, where that is known.
    """
    files = {} if plan.planned is plan.original else {"config.json": as_json(plan.config, "config.json")}
    if plan.changes:
        files["README.md"] = _card(source / "README.md", plan, name, hub_id, to)
    tokenizer = raised_tokenizer(source / "tokenizer_config.json", plan.length)
    return files | ({"tokenizer_config.json": tokenizer} if tokenizer else {})


def source_name(name: str) -> str:
    """Returns a Hub id as it is, and a folder by its last name alone: the result may be published."""
    path = local_path(name)
    return path.resolve().name if path.is_dir() else name


def _card(readme: Path, plan: Plan, source: str, hub_id: str | None, to: str | None) -> bytes:
    """Returns the vendor's card with our section, and with the metadata that the Hub reads where it is involved."""
    card = model_card.card(readme, plan, source, to or "PATH")
    if hub_id or to:
        card = front_matter.with_metadata(card, hub_id)
    if to:
        front_matter.check(card, str(readme))
    return card
