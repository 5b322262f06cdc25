"""A dataset on the Hub, ``owner/name`` or ``owner/name:config``, one document per row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ....checkpoints.locating import hub_silence
from ....errors import DataError
from ....files import local_path
from ....output.formatting import first_line
from .read_options import ReadOptions
from .rows import RowDocument, dataset_texts, one_split, texts_of


def takes(source: str) -> bool:
    """Whether this can be the name of a dataset, and not that of a file that is missing."""
    path = local_path(source)
    local = path.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1 or path.suffix
    return bool(source) and not local


def read(source: str, asked: ReadOptions) -> Iterator[RowDocument]:
    """Reads the text of every row of one split.

    Raises:
        DataError: neither the Hub nor its cache has the dataset, or it lacks the split or the field.
    """
    asked.only(source, "a dataset", "split", "text_field", "prompt_field")
    return dataset_texts(load(source), source, asked)


def stream(source: str, asked: ReadOptions) -> Iterator[RowDocument]:
    """Reads row by row, as the texts are asked for; raises as :func:`read`."""
    asked.only(source, "a dataset", "split", "text_field", "prompt_field")
    rows = one_split(load(source, streaming=True), source, asked.split)
    return texts_of(enumerate(rows), f"{source} row", asked, source)


def load(source: str, streaming: bool = False, revision: str | None = None) -> Any:
    """Loads a dataset, all of its splits.

    Raises:
        DataError: neither the Hub nor its cache has it.
    """
    import datasets

    name, _, config = source.partition(":")
    silence = hub_silence(name, kind="dataset")
    try:
        with _offline(silence is not None):
            return datasets.load_dataset(name, config or None, streaming=streaming, revision=revision)
    except Exception as error:
        why = first_line(error) if silence is None else f"the Hub cannot be reached ({silence}), nor is it in the cache"
        raise DataError(f"{source!r} is neither a file or folder here nor a dataset on the Hub: {why}") from None


@contextmanager
def _offline(wanted: bool) -> Iterator[None]:
    """Lets ``datasets`` look into its cache at once inside, where it would ask for half a minute before."""
    from datasets import config

    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = before or wanted
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before
