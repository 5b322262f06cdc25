"""Well-known long texts by a short name: datasets on the Hub, streamed up to a number of documents.

Id, configuration, split and field were read in the page beside each; none was downloaded. All are stored as parquet.
KVPress's copies put an instruction before each text, and have a row per question, so texts recur in them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from ....errors import DataError
from ....files import local_path
from ....output.formatting import first_line
from . import hub
from .read_options import ReadOptions
from .rows import RowDocument, one_split, texts_of


@dataclass(frozen=True)
class NamedDataset:
    """A dataset on the Hub that has a short name.

    Attributes:
        source: its id, and after a colon its configuration.
        split, field: where the texts are, unless the user says otherwise.
        page: the public page that says so.
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
    """Whether this is a name in the table; a path that exists goes before it."""
    return source in DATASETS and not local_path(source).exists()


def read(source: str, asked: ReadOptions) -> Iterator[RowDocument]:
    """Streams the first documents of one split, and notes the commit that they are of.

    Raises:
        DataError: the Hub cannot be reached, or the dataset has no longer this split or field.
    """
    asked.only(source, "a dataset", "split", "text_field", "prompt_field")
    named = DATASETS[source]
    commit = _commit(source, named)
    split, field = asked.split or named.split, asked.text_field or named.field
    rows = one_split(hub.load(named.source, streaming=True, revision=commit), named.source, split)
    if asked.prompt_field is None:
        asked = replace(asked, text_field=field)
    what, most = f"{named.source}@{commit}, {split}", named.documents
    if asked.prompt_field is not None:  # prompts are sorted by task, so the first ones would be of one
        asked.resolved[source], most = what, sys.maxsize
    else:
        asked.resolved[source] = f"{what}, {field}, at most {most} documents"
    return texts_of(islice(enumerate(rows), most), f"{source} row", asked, source)


def _commit(source: str, named: NamedDataset) -> str:
    """Returns the commit that a dataset is at now."""
    from huggingface_hub import HfApi

    name = named.source.partition(":")[0]
    try:
        return str(HfApi().dataset_info(name, revision=named.revision, timeout=10).sha)
    except Exception as error:
        raise DataError(
            f"{source!r} is {name} on the Hub, which does not give it: {first_line(error)}; give a file or folder"
        ) from None
