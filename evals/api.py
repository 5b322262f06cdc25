"""The measurements, and the only place where their runs are made.

Each function takes a loaded model, a path or Hub id, a :class:`Checkpoint` or servers, and documents in any form; a
command of the command line turns its options into the same keywords.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ..configs.configuration import trained_in
from ..errors import DataError
from ..files import AnyPath, writable_file
from ..lengths import parse_length
from ..request import RequestOptions
from .backends.opening import OpenedModel, opened
from .backends.schedules import Schedules, filled, requested
from .data.sources import TextSource, folders_in, texts_of
from .data.windows import Lengths, check_lengths
from .metrics.key_tokens import ALPHA, BETA, KIND, MAX_LENGTH, STRIDE, WINDOW, KeySpans, check_replaceable, check_window
from .parallel.processes import Group, World, together
from .recommending.candidates import objective_and_candidates, served_candidates
from .recommending.options import TOLERANCE, RecommendOptions
from .results.folder import writable_folder
from .running.corpus import Corpus, PerplexityOptions, refuse_impossible
from .running.runner import carry_out
from .searching.options import SearchOptions, places, plan_of_start
from .store import has_records, refuse_if_busy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from .backends.opening import Given as Model
    from .data.sources import TextsGiven
    from .recommending.results import Recommendation
    from .results.result import Result
    from .retrieving.results import Retrieval
    from .searching.results import SearchResult


def perplexity(
    model: Model,
    documents: TextsGiven,
    lengths: Lengths,
    schedules: Iterable[object] = (),
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    baseline: object = None,
    factor: float | Sequence[float] | None = None,
    target_length: int | str | None = None,
    original_length: int | str | None = None,
    overrides: Mapping[str, str] | None = None,
    layers: str | None = None,
    replace_scaling: bool = False,
    on_top: bool = False,
    freeze_at: int | str | None = None,
    bos: str | int = "auto",
    stride: int | None = None,
    windows: int | str | None = None,
    budget_tokens: int | None = None,
    min_tokens: int = 0,
    max_docs: int | None = None,
    score: str = "all",
    short_context: bool = True,
    truncation: bool | None = None,
    truncation_stride: int | None = None,
    remapped: bool = False,
    repeat_distance: int | None = None,
    key_spans: str | Path | KeySpans | None = None,
    metric_options: Mapping[str, object] | None = None,
    batch_tokens: int | None = None,
    logits_bytes: int | None = None,
    seed: int = 0,
    source: str | None = None,
    path: AnyPath | None = None,
    out: str | Path | None = None,
    fresh: bool = False,
    force: bool = False,
    progress: bool = False,
) -> Result:
    """Measures the perplexity of ``model`` at every length with every schedule on the same tokens.

    The model is patched with each schedule in turn, and restored bit for bit. ``as-is`` (the model before any
    patch) is always measured, and is the default baseline of the paired comparison. The patch of a patched model is
    measured too.

    Args:
        model: a causal language model of transformers, possibly compiled or PEFT-wrapped; a path, Hub id or
            :class:`Checkpoint`, which is loaded; or one or several :class:`Server`, each with one schedule.
        documents: texts, chats (lists of messages), lists of token ids (fed unchanged, after BOS if ``bos`` is an id
            or the tokenizer has one), :class:`Document`, ``Path`` objects of files or folders, a
            ``datasets.Dataset``, or a :class:`TextSource`. To measure several sources, give a mapping of names to
            these: see ``by_source``.
        lengths: context lengths in positions, including BOS; one or several, as numbers or like ``"2k,4k"``.
        schedules: specs like "yarn:factor=8", or schedule objects. A schedule without a factor gets the largest length
            divided by the trained length. Servers have their own.
        tokenizer: encodes texts, and has the BOS token; None takes a checkpoint's own.
        baseline: the schedule to compare with; None for ``as-is``.
        factor: the factor of every schedule that takes one; several multiply the schedules.
        target_length, original_length, overrides, layers, replace_scaling, on_top, freeze_at: as for
            :func:`ropescale.patch`, for every schedule.
        bos: "auto" (the tokenizer's, if it has one), "yes", "no", or an id.
        stride: None measures the first L positions of each window. A number measures whole documents in sliding windows
            of L positions, this many tokens apart. Prompts with answers have half of the smallest length by default.
        windows: the maximum number of windows per document, or "all". If a document has more windows, evenly spaced
            ones are used (with 1, the first). None uses as many as ``budget_tokens`` allows.
        budget_tokens: positions fed per schedule, shared among the documents; at least one window of each. None means
            :data:`ropescale.evals.data.windows.BUDGET`, or no limit if ``windows`` is given.
        min_tokens: skip documents with fewer tokens.
        max_docs: measure at most this many documents; later documents are not read.
        score: "all" tokens of a chat, or only the "assistant" tokens.
        short_context: compare each schedule's predictions with the baseline's at the largest length up to the trained
            one. This runs every schedule and the baseline once more at that length.
        truncation: also measure the model given only the last tokens of the context. None does so if it costs at most
            as much as everything else.
        truncation_stride: the number of tokens that each window of truncation scores; implies ``truncation``.
        remapped: also measure :func:`remapped` positions, with and without their scale: a reference that no sentence
            recommends.
        repeat_distance: the least distance of a far repeat, in tokens; None for the trained length.
        key_spans: a file of :func:`keys`, or its content, for the perplexity of those tokens.
        metric_options: the options of further metrics, by name.
        batch_tokens: the maximum number of positions fed together; at least one window is fed. None estimates the
            number that fits into memory.
        logits_bytes: the memory for one block of fp32 logits, in bytes; None for that of the device.
        seed: stored with the results; nothing is random, so no result depends on it.
        source: the name of the documents in the results; None for their own.
        path: the folder of a loaded model, whose files are hashed instead of the live parameters; or the checkpoint
            that servers serve.
        out: a folder for the result and finished batches; the same call resumes after an interruption.
        fresh: measure again instead of resuming from ``out``.
        force: replace results in ``out`` that are of another text or model, or have more schedules, lengths or metrics.
        progress: whether to show notes on stderr, with a progress bar on a terminal and else one line per minute.

    Raises:
        DataError: no document is long enough, lengths or a stride are invalid, or ids are outside the vocabulary.
        ScheduleError: a schedule does not exist or does not fit; raised before anything is measured.
        RunError: logits are NaN or infinite, or a window does not fit into memory.
        CheckpointError: ``out`` cannot be written, contains another kind of run, or is in use by another process.
    """
    sizes = check_lengths(lengths)
    if stride is None and isinstance(documents, TextSource) and documents.options.prompt_field is not None:
        stride = max(1, sizes[0] // 2)
    given = opened(model, tokenizer, path, progress)
    options = PerplexityOptions(
        stride=stride,
        min_tokens=min_tokens,
        max_docs=max_docs,
        score=score,
        windows=windows,
        budget_tokens=budget_tokens,
        batch_tokens=batch_tokens,
        logits_bytes=logits_bytes,
        short_context=short_context,
        truncation=truncation,
        truncation_stride=truncation_stride,
        seed=seed,
        of_metrics={"repeat_distance": repeat_distance, "key_spans": key_spans, **(metric_options or {})},
        source=source,
        notes=given.notes,
    )
    patching = RequestOptions(
        target_length=target_length,
        original_length=original_length,
        overrides=overrides,
        layers=layers,
        replace_scaling=replace_scaling,
        on_top=on_top,
        freeze_at=freeze_at,
    )
    asked = requested(schedules, baseline, factor, patching, remapped)
    with _placed(given, out, "perplexity", fresh, force, documents) as (folder, group):
        planned = _planned(asked, given, sizes[-1])
        if options.asks_truncation and not given.served:
            refuse_impossible(options.asks_truncation, sizes[-1], trained_in(given.configs[0]))
        corpus = _corpus(given, documents, sizes, bos, options)
        from .running.perplexity import PerplexityRun

        run = PerplexityRun(given.backend(group.world, logits_bytes), corpus, planned)
        return carry_out(run, folder, group, fresh, force)


def retrieval(
    model: Model,
    lengths: Lengths,
    schedules: Iterable[object] = (),
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    depths: str | int | Iterable[float] = 5,
    trials: int = 10,
    seed: int = 0,
    prompts: str | Path | Iterable[Mapping[str, object]] | None = None,
    prompt_field: str | None = None,
    answer_field: str | None = None,
    max_prompts: int | None = None,
    new_tokens: int | None = None,
    match: str | None = None,
    baseline: object = None,
    factor: float | Sequence[float] | None = None,
    target_length: int | str | None = None,
    original_length: int | str | None = None,
    overrides: Mapping[str, str] | None = None,
    layers: str | None = None,
    replace_scaling: bool = False,
    on_top: bool = False,
    freeze_at: int | str | None = None,
    bos: str | int = "auto",
    batch_tokens: int = 8192,
    source: str | None = None,
    path: AnyPath | None = None,
    out: str | Path | None = None,
    fresh: bool = False,
    force: bool = False,
    progress: bool = False,
) -> Retrieval:
    """Measures whether ``model`` finds a number hidden in a long text, at every length and depth, with every schedule.

    The model is patched with each schedule in turn, and restored bit for bit. Tables that depend on the length are
    frozen at the measured length. ``as-is`` is always measured, and is the default baseline of the paired comparison.

    Args:
        model, schedules, tokenizer, baseline, factor, path: as for :func:`perplexity`.
        target_length, original_length, overrides, layers: as for :func:`perplexity`.
        replace_scaling, on_top, freeze_at: as for :func:`perplexity`.
        lengths: context lengths in positions, including BOS and the answer.
        depths: the depths of the hidden number, from 0 (the start of the text) to 1 (the end), or the number of evenly
            spaced depths.
        trials: the number of prompts per length and depth.
        seed: determines the texts and numbers; the prompts of a length do not depend on the other lengths.
        prompts: rows with a prompt and its answers, or a file or folder with such rows, as RULER's generators write
            them; used instead of generated prompts. Each prompt is measured at the smallest length that fits it and
            the generated tokens; its score is the share of its answers that occur in the greedily decoded text.
        prompt_field, answer_field: the fields of a row; None for fields such as RULER's.
        max_prompts: the maximum number of prompts of each task and length; the first ones are used.
        new_tokens: the number of tokens to generate. None uses the number in the row, RULER's number for the task, or
            128, whichever is known first.
        match: "all" scores the share of answers found, and "any" requires one of them. None means "any" for the tasks
            ``qa`` and ``qa_...``, and "all" for other tasks.
        bos: "auto" (the tokenizer's, if it has one), "yes", "no", or an id.
        batch_tokens: the maximum number of positions fed together; at least one prompt is fed.
        source: the name of the prompts in the results.
        out, fresh, force, progress: as for :func:`perplexity`.

    Raises:
        DataError: a length is too short for a prompt, a depth is outside [0, 1], or the tokenizer cannot encode
            numbers.
        ScheduleError: a schedule does not exist or does not fit; raised before anything is measured.
        RunError: logits are NaN or infinite, or a prompt does not fit into memory.
        CheckpointError: ``out`` cannot be written, contains another kind of run, or is in use by another process.
    """
    given = opened(model, tokenizer, path, progress)
    from .retrieving.prompt_set import RetrievalOptions, make_prompts

    options = RetrievalOptions(
        prompts=prompts,
        bos=bos,
        trials=trials,
        seed=seed,
        prompt_field=prompt_field,
        answer_field=answer_field,
        new_tokens=new_tokens,
        max_prompts=max_prompts,
        match=match,
        batch_tokens=batch_tokens,
        source=source,
        notes=given.notes,
    )
    patching = RequestOptions(
        target_length=target_length,
        original_length=original_length,
        overrides=overrides,
        layers=layers,
        replace_scaling=replace_scaling,
        on_top=on_top,
        freeze_at=freeze_at,
    )
    asked = requested(schedules, baseline, factor, patching)
    with _placed(given, out, "retrieval", fresh, force, prompts) as (folder, group):
        sizes = check_lengths(lengths)
        planned = _planned(asked, given, sizes[-1])
        if isinstance(prompts, str | Path):
            TextSource([str(prompts)]).kinds()  # before transformers is imported
        if given.tokenizer is None:
            raise DataError("retrieval writes prompts; give tokenizer=", "tokenizer")
        prompt_set = make_prompts(given.tokenizer, sizes, depths, options)
        given.warn()
        from .retrieving.retrieval_run import RetrievalRun

        run = RetrievalRun(given.backend(group.world), prompt_set, planned, options)
        return carry_out(run, folder, group, fresh, force)


def recommend(
    model: Model,
    documents: TextsGiven,
    target_length: int | str,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    schedules: Iterable[str] = (),
    short_weight: float | None = None,
    tolerance: float = TOLERANCE,
    engine: str | None = None,
    search: bool = False,
    search_tokens: int | str | None = None,
    original_length: int | str | None = None,
    layers: str | None = None,
    replace_scaling: bool = False,
    on_top: bool = False,
    bos: str | int = "auto",
    windows: int | str | None = None,
    budget_tokens: int | None = None,
    max_docs: int | None = None,
    score: str = "all",
    truncation: bool | None = None,
    truncation_stride: int | None = None,
    batch_tokens: int | None = None,
    logits_bytes: int | None = None,
    source: str | None = None,
    path: AnyPath | None = None,
    out: str | Path | None = None,
    fresh: bool = False,
    force: bool = False,
    progress: bool = False,
) -> Recommendation:
    """Recommends the schedule for a model, a text and a target length, by measuring all candidates.

    The candidates race on one half of the text (see :mod:`.recommending.race`), and the other half decides among the
    finalists (see :func:`.recommending.race.decide`). The model is patched with each schedule in turn, and restored bit
    for bit. With servers there is no race: the full text decides among the served schedules, one of which must be
    the model as it is.

    Args:
        model, documents, tokenizer: as for :func:`perplexity`.
        target_length: the wanted context length, as a number of tokens or like "32k".
        schedules: further schedules to try, as specs; they are always finalists.
        short_weight: the weight of the loss at the trained length, from 0 to below 1; the loss at the target has the
            remaining weight.
        tolerance: the difference in nats per token up to which two schedules are equally good.
        engine: an engine; schedules that it would compute differently are omitted (see ``ropescale export``).
        search: whether to also try the schedule that :func:`search` finds on the text of the race.
        search_tokens: the token budget of that search; None for the default of a search.
        original_length, layers, replace_scaling, on_top: as for :func:`ropescale.patch`, for every candidate.
        bos, windows, budget_tokens, max_docs, score: as for :func:`perplexity`.
        truncation, truncation_stride, batch_tokens, logits_bytes, source, path: as for :func:`perplexity`.
        out, fresh, force, progress: as for :func:`perplexity`.

    Raises:
        DataError: no document is long enough, or weights or lengths are invalid.
        ScheduleError: a schedule does not fit, or an engine is unknown.
        ConfigError: the model has no rotary embedding, or is scaled already.
        RunError: logits are NaN or infinite, or a window does not fit into memory.
        CheckpointError: ``out`` cannot be written, contains another kind of run, or is in use by another process.
    """
    given = opened(model, tokenizer, path, progress)
    target = parse_length(target_length)
    text = PerplexityOptions(
        max_docs=max_docs,
        score=score,
        windows=windows,
        budget_tokens=budget_tokens,
        batch_tokens=batch_tokens,
        logits_bytes=logits_bytes,
        short_context=False,
        truncation=truncation,
        truncation_stride=truncation_stride,
        patching=RequestOptions(
            original_length=original_length, layers=layers, replace_scaling=replace_scaling, on_top=on_top
        ),
        source=source,
        notes=given.notes,
    )
    options = RecommendOptions(
        text=text,
        short_weight=short_weight,
        schedules=tuple(schedules),
        search=search,
        search_tokens=None if search_tokens is None else parse_length(search_tokens),
        engine=engine,
        tolerance=tolerance,
        checkpoint=given.checkpoint,
    )
    # Before torch is imported.
    if given.served:
        labels = [server.label for server in given.model]
        objective, candidates = served_candidates(given.configs[0], target, options, labels)
    else:
        objective, candidates = objective_and_candidates(*given.configs, target, options)
    with _placed(given, out, "recommendation", fresh, force, documents) as (folder, group):
        corpus = _corpus(given, documents, objective.lengths, bos, text)
        from .recommending.recommend_run import RecommendRun

        run = RecommendRun(given.backend(group.world, logits_bytes), corpus, objective, candidates, options)
        return carry_out(run, folder, group, fresh, force)


def search(
    model: Model,
    documents: TextsGiven,
    target_length: int | str,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    budget_windows: int | None = None,
    budget_tokens: int | str | None = None,
    engine: str | None = None,
    seed: int = 0,
    original_length: int | str | None = None,
    layers: str | None = None,
    replace_scaling: bool = False,
    on_top: bool = False,
    bos: str | int = "auto",
    max_docs: int | None = None,
    logits_bytes: int | None = None,
    source: str | None = None,
    path: AnyPath | None = None,
    out: str | Path | None = None,
    fresh: bool = False,
    force: bool = False,
    progress: bool = False,
) -> SearchResult:
    """Learns the schedule with which ``model`` predicts this text best at ``target_length``, with frozen weights.

    The search starts at YaRN's default. Some documents are held out to choose the best schedule. If there are enough
    documents, others are held out to compare this schedule with YaRN's default, the unchanged model, and truncation.

    Args:
        model, tokenizer: as for :func:`perplexity`, without servers.
        documents: as for :func:`perplexity`; only documents of at least ``target_length`` positions are used.
        target_length: the target context length in positions, including BOS.
        budget_windows: the maximum number of windows to feed, including the checks on held-out data; None for 240,
            unless ``budget_tokens`` is given.
        budget_tokens: the same in tokens.
        engine: search only schedules that this engine computes exactly; see ``ropescale export``.
        seed: determines the held-out documents and the order of the windows.
        original_length, layers, replace_scaling, on_top: as for :func:`ropescale.patch`.
        bos, max_docs, logits_bytes, source, path, fresh, force, progress: as for :func:`perplexity`.
        out: a file for the schedule, such as ``factors.json``. A folder next to the file, such as ``factors-search``,
            stores the run and every finished step, so that the same call resumes an interrupted search.

    Raises:
        DataError: there is too little text, the budget is too small for a step, or an option is invalid.
        DataError, ScheduleError: the target is not longer than the trained length.
        ConfigError, ScheduleError: the model has no rotary embedding that YaRN can change, or is scaled already.
        RunError: the logits are not finite.
        CheckpointError: ``out`` cannot be written, was not written by a search, or is in use by another process.
    """
    given = opened(model, tokenizer, path, progress)
    target = parse_length(target_length)
    options = SearchOptions(
        budget_windows=budget_windows,
        budget_tokens=None if budget_tokens is None else parse_length(budget_tokens),
        seed=seed,
        engine=engine,
        max_docs=max_docs,
        logits_bytes=logits_bytes,
        patching=RequestOptions(
            original_length=original_length, layers=layers, replace_scaling=replace_scaling, on_top=on_top
        ),
        source=source,
        notes=given.notes,
    )
    if given.served:
        raise DataError("a search computes gradients, which servers do not; give a loaded model or a checkpoint")
    file, folder = (None, None) if out is None else places(out)
    plan = plan_of_start(given.configs[on_top], target, options.patching)  # before torch is imported
    from .searching.results import check_ours

    if file is not None:
        writable_file(file, check_ours)
    with _placed(given, folder, "search", fresh, force, documents) as (folder, group):
        texts, read_from = texts_of(documents, max_docs)
        from .searching.search_run import SearchRun
        from .searching.search_space import space_of
        from .searching.windows import feed_text

        space_of(plan, target, options.engine)
        data = feed_text(texts, target, given.tokenizer, bos, options, source=read_from)
        given.warn()
        run = SearchRun(given.backend(group.world, logits_bytes), data, options, file)
        return carry_out(run, folder, group, fresh, force)


def keys(
    model: Model,
    documents: TextsGiven,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    window: int = WINDOW,
    stride: int = STRIDE,
    max_length: int = MAX_LENGTH,
    alpha: float = ALPHA,
    beta: float = BETA,
    path: AnyPath | None = None,
    out: str | Path | None = None,
    fresh: bool = False,
    force: bool = False,
    progress: bool = False,
) -> KeySpans:
    """Finds the tokens that need long context with a fixed key model, as LongPPL does (arXiv:2410.23771).

    Args:
        model, tokenizer, path, fresh, progress: as for :func:`perplexity`, without servers. The model predicts every
            token from the full preceding text, and from a short context.
        documents: as for :func:`perplexity`; only texts, and no stream.
        window: the shortest context, in tokens.
        stride: the number of tokens that share a short context.
        max_length: the number of tokens that longer texts are cut to.
        alpha: a key token gains more than this from the long context, in nats.
        beta: the upper bound of a key token's loss with the long context, negated.
        out: a file for the spans, for the option ``key_spans`` of :func:`perplexity`. A folder next to the file, such
            as ``keys-run``, stores finished batches, so that the same call resumes.
        force: replace spans of another text, model or window in ``out``.

    Raises:
        DataError: a document is not a text, the documents are a stream, the tokenizer has no offsets or is another
            model's, or no text has more tokens than the window.
        RunError: losses are NaN or infinite.
        CheckpointError: ``out`` cannot be written, or has other content.
    """
    check_window(window, stride, max_length)
    given = opened(model, tokenizer, path, progress)
    file = folder = None
    if out is not None:
        file = writable_file(out, check_replaceable)
        folder = file.with_name(f"{file.stem}-run")
    if given.served:
        raise DataError("key tokens are found with a loaded model or a checkpoint, not with servers; give one")
    if isinstance(documents, TextSource) and documents.options.streaming:
        raise DataError(
            "all documents are read, and a stream may be endless; leave streaming out, or give a list of its first "
            "documents",
            "streaming",
        )
    settings = {"window": window, "stride": stride, "alpha": alpha, "beta": beta, "max_length": max_length}
    with _placed(given, folder, KIND, fresh, force, documents) as (folder, group):
        texts, _ = texts_of(documents)
        from .running.key_tokens import KeysRun

        if given.tokenizer is None:
            raise DataError("key tokens are found in texts; give tokenizer= to encode them", "tokenizer")
        given.warn()
        run = KeysRun(
            given.backend(group.world), given.tokenizer, chain.from_iterable(texts.values()), settings, given.notes
        )
        if file is not None:
            run.result().check_replaces(file, force)
        return carry_out(run, folder, group, fresh, force, file)


# --- What all runs share


def _corpus(
    given: OpenedModel,
    documents: TextsGiven,
    lengths: Sequence[int],
    bos: str | int,
    options: PerplexityOptions,
) -> Corpus:
    """Reads the documents of a measurement, before the weights are loaded."""
    texts, source = texts_of(documents, options.max_docs)
    corpus = Corpus(texts, lengths, given.tokenizer, bos, options, source)
    corpus.refuse_small_budget()
    given.refuse_unused(corpus.count("chat"))
    given.warn()
    return corpus


def _planned(asked: Schedules, given: OpenedModel, longest: int) -> Schedules:
    """Returns the schedules of a run with their plans; servers have schedules of their own."""
    if not given.served:
        return filled(asked, lambda now: given.configs[now], longest, given.notes)
    for name, value in {"schedules": asked.given, "remapped": asked.remapped, **asked.patching}.items():
        if value:
            raise DataError(f"{name} applies to a loaded model, not to a server; leave it out", name)
    return asked


@contextmanager
def _placed(
    given: OpenedModel,
    out: str | Path | None,
    kind: str,
    fresh: bool,
    force: bool,
    documents: object,
) -> Iterator[tuple[Path | None, Group]]:
    """Connects the launched processes inside the block, and yields the output folder and these processes.

    Args:
        kind: the kind of run, of which the output folder may hold another one.
        documents: what is read; a folder with a text cannot be the output folder.

    Raises:
        DataError: an option needs an output folder, or the folder contains the text.
    """
    for name, value in (("fresh", fresh), ("force", force)):
        if value and out is None:
            raise DataError(f"{name} needs an output folder; name one", name, "out")
    # A model that the user has loaded stays in its own process.
    with nullcontext(Group(World())) if given.sharing is None else together(given.sharing) as group:
        folder = None
        if out is not None:
            folder = writable_folder(out, kind)
            for each in folders_in(documents):
                if folder.exists() and os.path.isdir(each) and os.path.samefile(each, folder):
                    raise DataError(f"{out} contains the measured text; choose another folder", "out", "source")
            if group.world.leads:
                refuse_if_busy(folder)
        if group.world.size > 1:
            given.notes.tell(f"{group.world} measuring")
        try:
            yield folder, group
        except KeyboardInterrupt:
            if folder is not None and not has_records(folder):
                given.notes.tell("the run stopped before any batch was finished; run the same command to restart it")
            raise
