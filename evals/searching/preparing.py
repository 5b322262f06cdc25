"""Prepares a search from names: reads and checks everything cheap first, and the weights last."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ...adapters.finding import find_loadable
from ...checkpoints.locating import read_config
from ...checkpoints.metadata.record import original_config
from ...errors import DataError
from ..data.sources import TextSource
from ..parallel.processes import World
from ..running.preparing import Checkpoint
from ..running.progress import Notes
from .families.shaping import space_of
from .feeds.feeding import Feeding
from .feeds.supplying import lengths_to, supply
from .options import SearchOptions
from .running import SearchRun, starting_plan


def prepare(
    checkpoint: Checkpoint,
    source: TextSource | None,
    target: int,
    bos: str | int,
    options: SearchOptions,
    here: World,
    file: Path | None = None,
) -> SearchRun:
    """Prepares a search; ``file`` is where the schedule is to be written, ``source`` None where nothing is read.

    Raises:
        RopescaleError: whatever cannot be read or searched.
    """
    if source is not None and source.streaming and not options.max_docs:
        raise DataError(
            "streaming is given, and a stream may have no end; say how many documents with max_docs",
            "streaming",
            "max_docs",
        )
    folder, _ = find_loadable(checkpoint.name, checkpoint.revision, weights=False)
    plan = starting_plan(original_config(read_config(folder), folder), target, options)
    space_of(plan, target, options)
    if source is not None:
        options = dataclasses.replace(options, source=source.name, split_special_tokens=source.split_special_tokens)
    texts, tokenizer, notes = source and source.texts(), checkpoint.tokenizer(), Notes.of(options.progress)
    found = supply(texts, tokenizer, lengths_to(plan, target), bos, options)
    for remark in checkpoint.remarks():
        notes.warn(f"warning: {remark}")
    if source is not None and isinstance(found, Feeding) and source.asked.left_out:
        found.corpus.skipped["no_text"] = len(source.asked.left_out)
        notes.tell(f"left out: {source.left_out}")
    run = SearchRun(checkpoint.model(here), found, dataclasses.replace(options, path=checkpoint.folder))
    run.file = file
    return run
