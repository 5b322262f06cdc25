"""Saves a PEFT adapter beside a base that carries the schedule, so that stock PEFT loads both."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoints import model_card
from ..checkpoints.contents import raised_tokenizer
from ..checkpoints.folders import (
    files_of,
    is_weight,
    link_or_copy,
    refuse_missing_shards,
    remove_ours,
    share,
    why_not_ours,
    write_record,
)
from ..checkpoints.in_memory import Carried, save_pretrained
from ..checkpoints.metadata.record import NAME as RECORD
from ..checkpoints.metadata.record import as_json
from ..errors import CheckpointError
from ..files import read_json, translated, write_synced
from .base_weights import refuse_changed
from .finding import BASE, CONFIG

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def linkable(found: Carried) -> Path:
    """Returns the folder of an adapter's base, whose weights can be linked.

    Raises:
        CheckpointError: it has none.
    """
    source = found.source
    if source is None or not any(is_weight(name.name) for name in files_of(source)):
        raise CheckpointError(
            f"the base of this adapter ({found.record['source']}) has no folder with weights to link; load it "
            "from one (save_pretrained makes one) and attach the adapter to that"
        )
    refuse_missing_shards(source)
    return source


def fill(
    model: Any, found: Carried, tokenizer: PreTrainedTokenizerBase | None, target: Path, folder: Path
) -> dict[str, str]:
    """Lets PEFT write an adapter into a hidden folder, and adds to it as :func:`write_adapter_base` does."""
    linkable(found)  # before PEFT says what it misses in such a base
    save_pretrained(model, folder)
    return write_adapter_base(model, found, tokenizer, target, folder)


def write_adapter_base(
    model: Any, found: Carried, tokenizer: PreTrainedTokenizerBase | None, target: Path, folder: Path
) -> dict[str, str]:
    """Adds the base and all that concerns the schedule to a folder that PEFT wrote; returns how weights came over.

    Args:
        target: where the folder will lie.
        folder: where it lies now; a base of ours in it is replaced.

    Raises:
        CheckpointError: the base's weights were changed, or something cannot be written.
    """
    source = linkable(found)
    with translated(source, "read"):
        refuse_changed(model, source, folder)
    _remove_base(folder / BASE)
    for path in sorted(folder.rglob(CONFIG)):
        # PEFT reads a relative path from where it runs, not from the adapter.
        named = {"base_model_name_or_path": os.path.abspath(target / BASE), "revision": None}
        write_synced(path, as_json({**read_json(path), **named}, CONFIG))
        if path.parent != folder:  # a further adapter, in a folder of its name
            write_synced(path.parent / RECORD, as_json(found.record, RECORD))
    if tokenizer is not None:
        save_pretrained(tokenizer, folder)
    if raised := raised_tokenizer(folder / "tokenizer_config.json", found.plan.length):
        write_synced(folder / "tokenizer_config.json", raised)
    write_synced(folder / "README.md", model_card.adapter_card(folder / "README.md", found.record))
    share(folder, "README.md")
    return {f"{BASE}/{name}": how for name, how in _write_base(found, source, folder / BASE).items()}


def _remove_base(base: Path) -> None:
    """Removes a base that an earlier call wrote; its links must not be there when weights get another mode."""
    if os.path.lexists(base) and (why := why_not_ours(base)):
        raise CheckpointError(why)
    remove_ours(base)


def _write_base(found: Carried, source: Path, base: Path) -> dict[str, str]:
    """Writes the base as patching would, whole or not at all, and returns how each weight file came over."""
    new = base.with_name(f".{base.name}.new")
    shutil.rmtree(new, ignore_errors=True)  # what a killed process left
    new.mkdir()
    with translated(source, "read"):
        links = link_or_copy(source, new, {}, "auto")
    found.write(new)
    write_record(new, found.record, links)
    new.rename(base)
    return links
