"""Prepares a search from names: reads and checks everything cheap first, and the weights last."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ..data.sources import TextSource
from ..parallel.processes import World
from ..running.preparing import Checkpoint, refuse_endless, tell_left_out
from ..running.progress import Notes
from .families.shaping import space_of
from .feeds.feeding import Feeding
from .feeds.supplying import lengths_to, supply
from .options import SearchOptions
from .running import SearchRun
from .starting import plan_of_start


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
    if source is not None:
        refuse_endless(source, options.max_docs)
        options = dataclasses.replace(options, source=source.name, split_special_tokens=source.split_special_tokens)
    plan = plan_of_start(checkpoint.config, target, options.patching)
    space_of(plan, target, options)
    texts, tokenizer, notes = source and source.texts(), checkpoint.tokenizer(), Notes.of(options.progress)
    found = supply(texts, tokenizer, lengths_to(plan, target), bos, options)
    checkpoint.warn(notes)
    if source is not None and isinstance(found, Feeding):
        tell_left_out(source, found.corpus, notes)
    run = SearchRun(checkpoint.model(here), found, dataclasses.replace(options, path=checkpoint.folder))
    run.file = file
    return run
