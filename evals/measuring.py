"""Perplexity, retrieval and recommendation with a loaded model or servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..lengths import parse_length
from ..models.patching import configuration_before, unpatched
from ..models.rotary_modules import unwrapped, whole_config
from .data.chats import Given
from .metrics import OPTIONS
from .metrics.stored import AS_IS
from .recommending.candidates import objective_and_candidates
from .recommending.options import RecommendOptions
from .recommending.recommend_run import RecommendRun, text_options
from .recommending.results import Recommendation
from .results.folder import writable_folder
from .results.result import Result
from .retrieving.prompt_set import RetrievalOptions, make_prompts
from .retrieving.results import Retrieval
from .retrieving.retrieval_run import LoadedRetrieval, RetrievalRun
from .running.corpus import Corpus
from .running.corpus_run import CorpusRun
from .running.options import PerplexityOptions, Schedules, check_keywords
from .running.perplexity import PerplexityRun
from .running.runner import carry_out
from .running.variants import with_own
from .servers.served_runs import ServedModel, ServedRecommendRun, ServedRetrieval, ServedRun
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
    **options: object,
) -> Result:
    """Measures the perplexity of ``model`` at every length with every schedule on the same tokens.

    The model is patched with each schedule in turn, and restored bit for bit. ``as-is`` (the model before any patch) is
    always measured, and is the default baseline of the paired comparison. The patch of a patched model is measured too.

    Args:
        model: a causal language model of transformers, possibly compiled or PEFT-wrapped; or one or several
            :class:`Server`, each with one schedule. With servers, the schedules are those of the servers instead of
            ``schedules``, and the option ``path`` names the checkpoint.
        documents: lists of token ids (fed unchanged, after BOS if ``bos`` is an id or the tokenizer has one) or
            :class:`Document`; with ``tokenizer`` also strings, :class:`Text`, or chats (lists of messages, dicts with
            role and content). To measure several sources, give a mapping of names to such lists: see ``by_source``.
        lengths: context lengths in positions, including BOS; one or several, as numbers or like ``"2k,4k"``.
        schedules: specs like "yarn:factor=8", or schedule objects.
        tokenizer: encodes strings, and has the BOS token.
        bos: "auto" (the tokenizer's, if it has one), "yes", "no", or an id.
        out: a folder for the result and finished batches; the same call resumes after an interruption.
        fresh: measure again instead of resuming from ``out``.
        force: replace results in ``out`` that are of another text or model, or have more schedules, lengths or metrics.
        options: the fields of :class:`PerplexityOptions`, such as ``stride``, and the options of metrics:
            ``repeat_distance`` (the least distance of a far repeat in tokens; default: the trained length) and
            ``key_spans`` (a file of `ropescale keys`, or its content, for the perplexity of those tokens).

    Raises:
        DataError: no document is long enough, lengths or a stride are invalid, or ids are outside the vocabulary.
        ScheduleError: a schedule does not exist or does not fit; raised before anything is measured.
        RunError: logits are NaN or infinite, or a window does not fit into memory.
        CheckpointError: ``out`` cannot be written, contains another kind of run, or is in use by another process.
    """
    check_keywords(perplexity, PerplexityOptions, options, *OPTIONS)
    chosen = PerplexityOptions.of(options)
    corpus = Corpus(documents, lengths, tokenizer, bos, chosen)
    run: CorpusRun
    if isinstance(model, (Server, Sequence)):
        named = None if baseline is None else str(baseline)
        run = ServedRun(ServedModel(model, chosen.path, tokenizer), corpus, named, chosen)
    else:
        asked = Schedules(with_own(model, schedules), baseline, chosen.patching)
        run = PerplexityRun(model, corpus, asked, chosen)
    return carry_out(run, None if out is None else writable_folder(out), fresh, force=force)


def retrieval(
    model: PreTrainedModel | Server | Sequence[Server],
    tokenizer: PreTrainedTokenizerBase,
    lengths: int | str | Iterable[int | str],
    depths: str | int | Iterable[float] = 5,
    schedules: Iterable[object] = (AS_IS,),
    *,
    baseline: object = None,
    out: str | Path | None = None,
    fresh: bool = False,
    force: bool = False,
    **options: object,
) -> Retrieval:
    """Measures whether ``model`` finds a number hidden in a long text, at every length and depth, with every schedule.

    The model is patched with each schedule in turn, and restored bit for bit. Tables that depend on the length are
    frozen at the measured length. ``as-is`` (the model before any patch) is always measured, and is the baseline of the
    paired comparison unless ``baseline`` names another schedule. The patch of a patched model is measured too.

    Args:
        model: a causal language model of transformers, possibly compiled or PEFT-wrapped; or one or several
            :class:`Server`, each with one schedule, as for :func:`perplexity`.
        tokenizer: encodes the prompts, and has the BOS token.
        lengths: context lengths in positions, including BOS and the answer.
        depths: the depths of the hidden number, from 0 (the start of the text) to 1 (the end), or the number of evenly
            spaced depths.
        schedules: specs like "yarn:factor=8", or schedule objects.
        out: a folder for the result and finished batches; the same call resumes after an interruption.
        fresh: measure again instead of resuming from ``out``.
        force: replace results in ``out`` that are of another text or model, or have more schedules, lengths or metrics.
        options: the fields of :class:`RetrievalOptions`, such as ``trials``. With ``prompts``, each prompt of a file is
            measured at the smallest length that fits it and the generated tokens; its score is the share of its answers
            that occur in the greedily decoded text.

    Raises:
        DataError: a length is too short for a prompt, a depth is outside [0, 1], or the tokenizer cannot encode
            numbers.
        ScheduleError: a schedule does not exist or does not fit; raised before anything is measured.
        RunError: logits are NaN or infinite, or a prompt does not fit into memory.
        CheckpointError: ``out`` cannot be written, contains another kind of run, or is in use by another process.
    """
    check_keywords(retrieval, RetrievalOptions, options)
    chosen = RetrievalOptions.of(options)
    prompt_set = make_prompts(tokenizer, lengths, depths, chosen)
    if isinstance(model, (Server, Sequence)):
        named = None if baseline is None else str(baseline)
        served = ServedModel(model, chosen.path, tokenizer)
        run: RetrievalRun = ServedRetrieval(served, prompt_set, named, chosen)
    else:
        run = LoadedRetrieval(
            model, prompt_set, Schedules(with_own(model, schedules), baseline, chosen.patching), chosen
        )
    return carry_out(run, None if out is None else Retrieval.writable_folder(out), fresh, force=force)


def recommend(
    model: PreTrainedModel | Server | Sequence[Server],
    documents: Iterable[Given] | Mapping[str, Iterable[Given]],
    target_length: int | str,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    bos: str | int = "auto",
    out: str | Path | None = None,
    fresh: bool = False,
    force: bool = False,
    **options: object,
) -> Recommendation:
    """Recommends the schedule for a model, a text and a target length, by measuring all candidates.

    The candidates race on one half of the text (see :mod:`.recommending.race`), and the other half decides among the
    finalists (see :func:`.recommending.race.decide`). The model is patched with each schedule in turn, and restored bit
    for bit.

    Args:
        model: a causal language model of transformers, possibly compiled or PEFT-wrapped; or several :class:`Server`,
            one of them with the model as it is. With servers there is no race: the full text decides among the served
            schedules, and the option ``path`` names the checkpoint.
        documents: as for :func:`ropescale.evals.perplexity`.
        target_length: the wanted context length, as a number of tokens or like "32k".
        tokenizer: encodes strings, and has the BOS token.
        bos: "auto" (the tokenizer's, if it has one), "yes", "no", or an id.
        out: a folder for the result and finished batches; the same call resumes after an interruption.
        fresh: measure again instead of resuming from ``out``.
        force: replace results in ``out`` that are of another text or model, or have more schedules, lengths or metrics.
        options: the fields of :class:`RecommendOptions`, such as ``short_weight``.

    Raises:
        DataError: no document is long enough, or weights or lengths are invalid.
        ScheduleError: a schedule does not fit, or an engine is unknown.
        ConfigError: the model has no rotary embedding, or is scaled already (see ``patching``).
        RunError: logits are NaN or infinite, or a window does not fit into memory.
        CheckpointError: ``out`` cannot be written, contains another kind of run, or is in use by another process.
    """
    check_keywords(recommend, RecommendOptions, options)
    chosen, target = RecommendOptions.of(options), parse_length(target_length)
    run: RecommendRun
    if isinstance(model, (Server, Sequence)):
        run = ServedRecommendRun(ServedModel(model, chosen.path, tokenizer), documents, target, bos, chosen)
    else:
        with unpatched(model):
            now = whole_config(unwrapped(model)).to_dict()
        objective, candidates = objective_and_candidates(configuration_before(model), now, target, chosen)
        corpus = Corpus(documents, objective.lengths, tokenizer, bos, text_options(chosen))
        run = RecommendRun(model, corpus, objective, candidates, chosen)
    return carry_out(run, None if out is None else Recommendation.writable_folder(out), fresh, force=force)
