"""Prepares a measurement by servers from names: everything is read and checked before a server scores anything."""

from __future__ import annotations

from collections.abc import Sequence

from ..data.sources import TextSource
from ..data.windows import check_lengths, check_stride
from ..retrieving.prompt_set import PromptSelection, RetrievalOptions
from ..running.checkpoint import Checkpoint
from ..running.selection import Corpus, PerplexityOptions
from .retrieval import ServedRetrieval
from .running import ServedRun, prepare_served
from .server import Server


def prepare_retrieval_by_servers(
    servers: Sequence[Server],
    checkpoint: Checkpoint,
    baseline: str | None,
    selection: PromptSelection,
    options: RetrievalOptions,
) -> ServedRetrieval:
    """Prepares a retrieval run by servers; see :func:`prepare_by_servers`."""
    tokenizer = checkpoint.tokenizer()
    prompt_set = selection.made(tokenizer, options)
    return ServedRetrieval(servers, prompt_set, baseline, options, tokenizer)


def prepare_by_servers(
    servers: Sequence[Server],
    checkpoint: Checkpoint,
    baseline: str | None,
    source: TextSource,
    lengths: Sequence[int],
    bos: str | int,
    options: PerplexityOptions,
) -> ServedRun:
    """Prepares a measurement by servers.

    Args:
        checkpoint: has the tokenizer and the configuration of what is served; no weights are read.

    Raises:
        RopescaleError: whatever cannot be read or measured.
    """
    lengths = check_lengths(lengths)
    source.refuse_endless(options.max_docs)
    check_stride(options.stride, lengths)
    texts, tokenizer = source.texts(), checkpoint.tokenizer()
    corpus = Corpus(texts, lengths, tokenizer, bos, options, source)
    return prepare_served(servers, corpus, baseline, options, tokenizer)
