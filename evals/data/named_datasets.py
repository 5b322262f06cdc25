"""Datasets with one document per row: a folder that ``datasets`` saved, a Hub id, or a short name.

On the Hub, a name is ``owner/name`` or ``owner/name:config``. All datasets with a short name are stored as parquet.
KVPress's copies have an instruction before each text and one row per question, so they repeat texts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from ...checkpoints.locating import ask_hub
from ...errors import DataError
from ...files import local_path
from ...output.formatting import first_line
from .chats import Unread
from .rows import ReadOptions, Row, documents_of, is_saved

if TYPE_CHECKING:
    import datasets

    Loaded: TypeAlias = (
        datasets.Dataset | datasets.DatasetDict | datasets.IterableDataset | datasets.IterableDatasetDict
    )


@dataclass(frozen=True)
class NamedDataset:
    """A Hub dataset with a short name.

    Attributes:
        source: the dataset's id, optionally followed by a colon and its configuration.
        field, split: the default field for the text, and the default split.
        revision: the branch, if it is not the main one.
    """

    source: str
    field: str = "context"
    split: str = "test"
    revision: str | None = None


MOST = 100
"""The most documents that are read from a dataset with a short name."""

DATASETS = {
    "pg19": NamedDataset("emozilla/pg19-test", "text"),
    "govreport": NamedDataset("ccdv/govreport-summarization:document", "report"),
    "govreport-scrolls": NamedDataset("emozilla/govreport-test-tokenized", "input"),  # LongPPL's
    "longbench-v2": NamedDataset("zai-org/LongBench-v2", split="train", revision="refs/convert/parquet"),
    "longbench-narrativeqa": NamedDataset("Xnhyacinth/LongBench:narrativeqa"),
    "longbench-qasper": NamedDataset("Xnhyacinth/LongBench:qasper"),
    "longbench-govreport": NamedDataset("Xnhyacinth/LongBench:gov_report"),
    "infinitebench-books": NamedDataset("MaxJeblick/InfiniteBench:longbook_sum_eng"),
    "infinitebench-code": NamedDataset("MaxJeblick/InfiniteBench:code_debug"),
    "loogle": NamedDataset("simonjegou/loogle:longdep_summarization"),
    "zero-scrolls": NamedDataset("simonjegou/zero_scrolls"),
    "ruler-16k": NamedDataset("simonjegou/ruler:16384"),
}


def read(source: str, options: ReadOptions) -> Iterator[Unread]:
    """Reads the documents of a split; for a short name, streams the first rows and records the dataset's commit.

    Raises:
        DataError: the folder cannot be read, the dataset is neither on the Hub nor in the cache, or the dataset lacks
            the split or the field.
    """
    named = None
    if is_saved(source):
        loaded = _saved(source)
    elif source not in DATASETS:
        loaded = _on_hub(source, options.streaming)
    else:
        named = DATASETS[source]
        commit = _commit(source, named)
        loaded = _on_hub(named.source, True, commit)
        options = replace(options, split=options.split or named.split)
        options.resolved[source] = f"{named.source}@{commit}, {options.split}"
    rows, part = _rows(loaded, source, options.split)
    if named and options.prompt_field is None:  # prompts are sorted by task, so the first ones would be of one task
        options = replace(options, text_field=options.text_field or named.field)
        rows = islice(rows, MOST)
        options.resolved[source] += f", {options.text_field}, at most {MOST} documents"
    return documents_of(rows, part, options, source)


def _saved(source: str) -> Loaded:
    """Loads a folder that ``save_to_disk`` wrote; raises DataError if it is unreadable or lists a file outside."""
    import datasets

    folder = os.path.abspath(local_path(source))
    try:
        loaded = datasets.load_from_disk(folder)
        parts = loaded.values() if isinstance(loaded, dict) else [loaded]
        files = [os.path.abspath(each["filename"]) for part in parts for each in part.cache_files]
        if os.path.commonpath([folder, *files]) != folder:
            raise ValueError("it lists a file outside of it")
    except Exception as error:
        raise DataError(f"{source} is not a readable datasets folder: {first_line(error)}") from None
    return loaded


def _on_hub(source: str, streaming: bool, revision: str | None = None) -> Loaded:
    """Loads all splits of a dataset.

    Raises:
        DataError: the dataset is neither on the Hub nor in the cache.
    """
    name, _, configuration = source.partition(":")
    silence, is_missing = ask_hub(name, kind="dataset")
    unknown = f"{source!r} is neither a file or folder here nor a dataset on the Hub"
    why = "; check the name, or log in if it is private: `hf auth login`"
    if silence:
        why = f": the Hub cannot be reached ({silence}), and the dataset is not in the cache"
    if (silence or is_missing) and not _may_be_cached(name):
        raise DataError(f"{unknown}{why}")

    import datasets  # late, because it takes as long as torch
    from datasets import config

    offline = config.HF_HUB_OFFLINE
    # If the Hub is silent, datasets would retry for half a minute before it reads its cache, unless it is offline.
    config.HF_HUB_OFFLINE = offline or bool(silence)
    try:
        return datasets.load_dataset(name, configuration or None, streaming=streaming, revision=revision)
    except Exception as error:
        raise DataError(f"{unknown}{why if silence else f': {first_line(error)}'}") from None
    finally:
        config.HF_HUB_OFFLINE = offline


def _may_be_cached(name: str) -> bool:
    """Returns whether a folder in the caches of ``datasets`` or of the Hub has the letters of a dataset's name."""
    from huggingface_hub import constants

    folders = list[str]()
    own = os.path.join(constants.HF_HOME, "datasets")
    for cache in (os.environ.get("HF_DATASETS_CACHE", own), constants.HF_HUB_CACHE):
        with suppress(OSError):
            folders += os.listdir(cache)
    letters = "[^a-z0-9]*".join(filter(str.isalnum, name))
    return any(re.search(letters, folder, re.I) for folder in folders)


def _rows(loaded: Loaded, source: str, split: str | None) -> tuple[Iterable[tuple[int, Row]], str]:
    """Returns the numbered rows of a split, and the prefix of their names in messages.

    The default split is "test" or the only one. The rows have Python values, independent of the dataset's format.
    """
    if isinstance(loaded, dict):
        usual = next(iter(loaded)) if len(loaded) == 1 else "test"
        wanted = usual if split is None else split
        if wanted not in loaded:
            wrong = "has several splits" if split is None else f"has no split {split!r}"
            raise DataError(f"{source} {wrong}; choose one: {', '.join(map(str, loaded))}", "split")
        loaded = loaded[wanted]
        source = f"{source} {wanted}"
    elif split is not None:
        raise DataError(f"split is given, and {source} has no splits; leave it out", "split")
    return enumerate(loaded.with_format(None)), f"{source} row"


def _commit(source: str, named: NamedDataset) -> str:
    """Returns a dataset's current commit."""
    from huggingface_hub import HfApi

    name = named.source.partition(":")[0]
    try:
        return str(HfApi().dataset_info(name, revision=named.revision, timeout=10).sha)
    except Exception as error:
        raise DataError(
            f"{source!r} is {name} on the Hub, which cannot be read: {first_line(error)}; give a file or folder"
        ) from None
