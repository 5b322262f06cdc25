"""Datasets with one document per row: a saved folder of ``datasets``, a Hub id, or a short name.

On the Hub, a name is ``owner/name`` or ``owner/name:config``. Short names have their id, configuration, split and field
from the listed pages; none was downloaded. All are stored as parquet. KVPress's copies have an instruction before each
text, and a row per question, so texts recur.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from ....checkpoints.locating import hub_silence
from ....errors import DataError
from ....files import local_path
from ....output.formatting import first_line
from .base import ReadOptions, Row, RowDocument, texts_of

if TYPE_CHECKING:
    import datasets

    Loaded: TypeAlias = (
        datasets.Dataset | datasets.DatasetDict | datasets.IterableDataset | datasets.IterableDatasetDict
    )


@dataclass(frozen=True)
class NamedDataset:
    """A Hub dataset with a short name.

    Attributes:
        source: its id, and after a colon its configuration.
        split, field: the default split and field of the texts.
        page: the public page with these facts.
        revision: a branch other than the main one.
        documents: the most documents that are read.
    """

    source: str
    split: str
    field: str
    page: str
    revision: str | None = None
    documents: int = 100


_KVPRESS = "https://github.com/NVIDIA/kvpress/tree/main/evaluation/benchmarks/"
_HUB = "https://huggingface.co/datasets/"

DATASETS = {
    "pg19": NamedDataset("emozilla/pg19-test", "test", "text", _HUB + "emozilla/pg19-test"),
    "govreport": NamedDataset(
        "ccdv/govreport-summarization:document", "test", "report", _HUB + "ccdv/govreport-summarization"
    ),
    "govreport-scrolls": NamedDataset(  # LongPPL's, with more documents
        "emozilla/govreport-test-tokenized", "test", "input", _HUB + "emozilla/govreport-test-tokenized"
    ),
    "longbench-v2": NamedDataset(
        "zai-org/LongBench-v2", "train", "context", _HUB + "zai-org/LongBench-v2", "refs/convert/parquet"
    ),
    "longbench-narrativeqa": NamedDataset(
        "Xnhyacinth/LongBench:narrativeqa", "test", "context", _KVPRESS + "longbench"
    ),
    "longbench-qasper": NamedDataset("Xnhyacinth/LongBench:qasper", "test", "context", _KVPRESS + "longbench"),
    "longbench-govreport": NamedDataset("Xnhyacinth/LongBench:gov_report", "test", "context", _KVPRESS + "longbench"),
    "infinitebench-books": NamedDataset(
        "MaxJeblick/InfiniteBench:longbook_sum_eng", "test", "context", _KVPRESS + "infinite_bench"
    ),
    "infinitebench-code": NamedDataset(
        "MaxJeblick/InfiniteBench:code_debug", "test", "context", _KVPRESS + "infinite_bench"
    ),
    "loogle": NamedDataset("simonjegou/loogle:longdep_summarization", "test", "context", _KVPRESS + "loogle"),
    "zero-scrolls": NamedDataset("simonjegou/zero_scrolls", "test", "context", _KVPRESS + "zero_scrolls"),
    "ruler-16k": NamedDataset("simonjegou/ruler:16384", "test", "context", _KVPRESS + "ruler"),
}


def takes(source: str) -> bool:
    """Whether this is a folder from ``save_to_disk``, or a possible dataset name; paths take precedence."""
    path = local_path(source)
    if source in ("", "-"):
        return False
    if path.exists():
        return any((path / name).exists() for name in ("state.json", "dataset_dict.json"))
    return not (path.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1 or path.suffix)


def read(source: str, asked: ReadOptions) -> Iterator[RowDocument]:
    """Reads the texts of a split; for a short name, streams the first rows and records their commit.

    Raises:
        DataError: the folder cannot be read, neither the Hub nor its cache has the dataset, or it lacks the split or
            the field.
    """
    import datasets

    used = ("split", "text_field", "prompt_field")
    if local_path(source).exists():
        asked.only(source, "a saved dataset", *used)
        try:
            saved = datasets.load_from_disk(str(local_path(source)))
        except Exception as error:
            raise DataError(f"{source} is not a readable datasets folder: {first_line(error)}") from None
        return texts_of(*_rows(saved, source, asked.split), asked, source)
    asked.only(source, "a dataset", *used, "streaming")
    if source not in DATASETS:
        return texts_of(*_rows(_on_hub(source, asked.streaming), source, asked.split), asked, source)
    named = DATASETS[source]
    commit = _commit(source, named)
    split, field = asked.split or named.split, asked.text_field or named.field
    rows, part = _rows(_on_hub(named.source, True, commit), source, split)
    asked.resolved[source] = f"{named.source}@{commit}, {split}"
    if asked.prompt_field is not None:  # all rows: they are sorted by task, so the first ones would be of one task
        return texts_of(rows, part, asked, source)
    asked.resolved[source] += f", {field}, at most {named.documents} documents"
    return texts_of(islice(rows, named.documents), part, replace(asked, text_field=field), source)


def _on_hub(source: str, streaming: bool, revision: str | None = None) -> Loaded:
    """Loads all splits of a dataset.

    Raises:
        DataError: the dataset is neither on the Hub nor in its cache.
    """
    import datasets
    from datasets import config

    name, _, configuration = source.partition(":")
    silence, offline = hub_silence(name, kind="dataset"), config.HF_HUB_OFFLINE
    # Online, it would retry for half a minute before it reads its cache.
    config.HF_HUB_OFFLINE = offline or silence is not None
    try:
        return datasets.load_dataset(name, configuration or None, streaming=streaming, revision=revision)
    except Exception as error:
        why = first_line(error) if silence is None else f"the Hub cannot be reached ({silence}), nor is it in the cache"
        raise DataError(f"{source!r} is neither a file or folder here nor a dataset on the Hub: {why}") from None
    finally:
        config.HF_HUB_OFFLINE = offline


def _rows(loaded: Loaded, source: str, split: str | None) -> tuple[Iterable[tuple[int, Row]], str]:
    """Returns the numbered rows of the requested split, else of "test" or the only split, and the split's name.

    The rows have Python values, independent of the dataset's format.
    """
    if isinstance(loaded, dict):
        wanted = split if split is not None else "test" if "test" in loaded or len(loaded) != 1 else next(iter(loaded))
        if wanted not in loaded:
            wrong = "has several splits" if split is None else f"has no split {split!r}"
            raise DataError(f"{source} {wrong}; choose one: {', '.join(map(str, loaded))}", "split")
        loaded, source = loaded[wanted], f"{source} {wanted}"
    else:
        ReadOptions(split).only(source, "one part of a dataset")
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
