"""Perplexity, measured by a loaded model or by servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from ..keywords import refuse_unknown
from .data.chats import Given
from .metrics.stored import AS_IS
from .results.folder import writable_folder
from .results.result import Result
from .running.corpus_run import CorpusRun
from .running.keywords import PerplexityKeywords
from .running.perplexity import PerplexityRun
from .running.runner import carry_out
from .running.selection import Corpus, PerplexityOptions
from .servers.running import prepare_served
from .servers.server import Server

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def perplexity(
    model: PreTrainedModel | Server | Sequence[Server],
    documents: Iterable[Given] | Mapping[str, Iterable[Given]],
    lengths: int | str | Iterable[int | str],
    schedules: Iterable[object] = (AS_IS,),
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    baseline: object = None,
    bos: str | int = "auto",
    out: str | Path | None = None,
    fresh: bool = False,
    force: bool = False,
    **options: Unpack[PerplexityKeywords],
) -> Result:
    """Measures the perplexity of ``model`` at every length, under every schedule, on the same tokens.

    Each schedule is patched in and reverted bit for bit. ``as-is`` (the model as it comes) always runs, and is the
    baseline of the paired comparison unless ``baseline`` says otherwise.

    Args:
        model: a causal language model of transformers, possibly compiled or PEFT-wrapped; or a :class:`Server`, or
            several, each served under one schedule: then ``schedules`` are theirs, and ``path`` names the checkpoint.
        documents: lists of token ids (fed as they are; BOS only if ``bos`` is an id or there is a tokenizer with
            one), and with ``tokenizer`` strings, :class:`Text`, or chats (lists of messages, dicts with role and
            content); or :class:`Document`. A mapping of names to such lists is several sources: see ``by_source``.
        lengths: positions the model sees, BOS included; one or several, as numbers or like ``"2k,4k"``.
        schedules: specs like "yarn:factor=8", or schedule objects.
        tokenizer: encodes strings, and says what BOS is.
        bos: "auto" (the tokenizer's, if it has one), "yes", "no", or an id.
        out: a folder for the result, and for finished batches: the same call continues where this one was interrupted.
        fresh: measure again what is stored in ``out``.
        force: replace results in ``out`` of another text or model, or more than these.
        options: the fields of :class:`PerplexityOptions`, such as ``stride``.

    Raises:
        DataError: no document is long enough, lengths or a stride that cannot be, ids outside the vocabulary.
        ScheduleError: a schedule that does not exist or does not fit; raised before anything is measured.
        RunError: NaN or infinite logits, or a window that does not fit into memory.
        CheckpointError: ``out`` cannot be written, is not ours, or another process is writing into it.
    """
    own = ("tokenizer", "baseline", "bos", "out", "fresh", "force")
    refuse_unknown("ropescale.evals.perplexity", options, (*own, *PerplexityKeywords.__annotations__))
    chosen = PerplexityOptions(**options)
    corpus = Corpus(documents, lengths, tokenizer, bos, chosen)
    run: CorpusRun
    if isinstance(model, (Server, Sequence)):
        servers = [model] if isinstance(model, Server) else model
        run = prepare_served(servers, corpus, baseline, chosen, tokenizer)
    else:
        run = PerplexityRun(model, corpus, schedules, baseline, chosen)
    return carry_out(run, None if out is None else writable_folder(out), fresh, force=force)
