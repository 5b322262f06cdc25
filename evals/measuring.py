"""Perplexity against length, for several schedules over the same tokens.

Under a static schedule the NLL of a token does not depend on what follows it, so one pass at the longest length
answers for every shorter one. Where the rotary tables depend on the length, each length gets the tables that belong
to it, frozen, and lengths whose tables are the same share a pass.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from ..errors import DataError
from ..patching import evaluating
from . import data, fingerprints
from .data import Document, Text
from .results import Pass, Result
from .scoring import LOGITS_BYTES, Scorer, check_finite, unwrapped
from .windows import Window, check_lengths, prefix

AS_IS = "as-is"


def perplexity(
    model: Any,
    documents: Iterable[Any],
    lengths: Iterable[int],
    schedules: Iterable[Any] = (AS_IS,),
    *,
    tokenizer: Any = None,
    baseline: Any = None,
    bos: str | int = "auto",
    **options: Any,
) -> Result:
    """Prefix perplexity of ``model`` at every length, under every schedule, on the same tokens.

    Each schedule is patched in and reverted bit for bit. ``as-is`` (the model as it comes) always runs, and is the
    baseline of the paired comparison unless ``baseline`` says otherwise.

    Args:
        model: a causal language model of transformers, possibly compiled or PEFT-wrapped.
        documents: lists of token ids (fed as they are; BOS only if ``bos`` is an id or there is a tokenizer with
            one), strings or :class:`Text` (with ``tokenizer``), or :class:`Document`.
        lengths: positions the model sees, BOS included.
        schedules: specs like "yarn:factor=8", or schedule objects.
        tokenizer: encodes strings, and says what BOS is.
        bos: "auto" (the tokenizer's, if it has one), "yes", "no", or an id.
        options: the fields of :class:`Options`.

    Raises:
        DataError: no document is long enough, lengths that cannot be, ids outside the vocabulary.
        ScheduleError: a schedule that does not exist or does not fit; raised before anything is measured.
        RunError: NaN or infinite logits.
    """
    run = Run(model, documents, lengths, schedules, tokenizer, baseline, bos, Options(**options))
    run.run()
    return run.result()


@dataclasses.dataclass(frozen=True)
class Options:
    """What else a measurement can be told.

    Attributes:
        min_tokens: skip documents with fewer tokens.
        max_docs: measure on at most this many documents.
        batch_tokens: feed windows together up to this many positions (at least one window).
        logits_bytes: budget for one block of fp32 logits.
        patching: keyword arguments of :func:`ropescale.patch`, such as ``layers`` or ``on_top``.
        source: what the documents are called in the results.
        path: the checkpoint's folder, whose files are then fingerprinted; else the live parameters are.
        progress: a progress bar on stderr, where that is a terminal.
    """

    min_tokens: int = 0
    max_docs: int | None = None
    batch_tokens: int = 8192
    logits_bytes: int = LOGITS_BYTES
    patching: dict[str, Any] = dataclasses.field(default_factory=dict)
    source: str | None = None
    path: str | Path | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "logits_bytes", "max_docs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DataError(f"{name} must be 1 or more, not {value}")


class Run:
    """A measurement that can be interrupted: :meth:`result` holds the passes that are complete."""

    def __init__(
        self,
        model: Any,
        documents: Iterable[Any],
        lengths: Iterable[int],
        schedules: Iterable[Any],
        tokenizer: Any,
        baseline: Any,
        bos: str | int,
        options: Options,
    ) -> None:
        self.model, self.options, self.bos_option = model, options, bos
        self.lengths = check_lengths(lengths)
        self.bos = data.bos_id(bos, tokenizer)
        self.treatments, self.baseline = treatments(schedules, baseline)
        window = prefix(self.lengths[-1], self.bos is not None)
        self.documents, self.skipped = data.select(
            as_documents(documents, tokenizer), window.stop, min_tokens=options.min_tokens, max_docs=options.max_docs
        )
        self.scorer = Scorer(model, options.logits_bytes)
        data.check_ids(self.documents, self.scorer.vocabulary, self.bos)
        self.passes: list[Pass] = []
        self._static: dict[object, Pass] = {}

    def run(self) -> None:
        """Measures every schedule; what is complete is in :attr:`passes` even when this is interrupted."""
        for treatment in self.treatments:
            with treatment.applied(self.model, self.options.patching):
                pass  # one that does not fit fails here, before hours of the others
        with evaluating(self.scorer.model):
            with torch.inference_mode():
                self.scorer.check(self._sequences(self.documents[:1], prefix(self.lengths[-1], self._has_bos))[0])
            for treatment in self.treatments:
                self._measure(treatment)

    def result(self) -> Result:
        """Everything measured so far."""
        options, versions = self.options, fingerprints.versions()
        return Result(
            model=fingerprints.describe(self.scorer.model, options.path),
            data={
                "source": options.source or "in memory",
                "sha256": data.documents_sha256(self.documents),
                "documents": len(self.documents),
                "tokens": len(self.documents) * self.lengths[-1],
                "skipped": self.skipped,
            },
            protocol={
                "name": "ropescale",
                "mode": "prefix",
                "bos": self.bos_option,
                "stride": None,
                "seed": 0,
                "interval": "document-clustered t, 95%",
                "batch_tokens": options.batch_tokens,
            },
            versions=versions,
            passes=self.passes,
            documents=self.documents,
            bos=self._has_bos,
            baseline=self.baseline,
            trained_length=trained_length(self.scorer.model),
        )

    @property
    def _has_bos(self) -> bool:
        return self.bos is not None

    def _measure(self, treatment: Treatment) -> None:
        """All the lengths of one schedule, in as few passes as its tables allow."""
        patching = self.options.patching
        with treatment.applied(self.model, patching) as patch:
            if not treatment.depends_on_length(self.model, patch):
                self._static_pass(treatment)
                return
        for group in treatment.groups(self.model, patching, self.lengths):
            with treatment.applied(self.model, patching, group[-1]):
                self._pass(treatment, group)

    def _static_pass(self, treatment: Treatment) -> None:
        """One pass for every length, or none: under the same tables the numbers are those of before."""
        rotation = _rotation(self.scorer.model)
        if rotation in self._static:
            self.passes.append(dataclasses.replace(self._static[rotation], schedule=treatment.label, forward_passes=0))
        else:
            self._pass(treatment, self.lengths)
            self._static[rotation] = self.passes[-1]

    def _pass(self, treatment: Treatment, lengths: tuple[int, ...]) -> None:
        """One pass over the documents under the tables that are live now."""
        window = prefix(lengths[-1], self._has_bos)
        nll: list[np.ndarray] = []
        hidden = None if self.options.progress else True  # None: tqdm shows itself only on a terminal
        total = len(self.documents) * lengths[-1]
        with tqdm(desc=treatment.label, total=total, unit="tok", unit_scale=True, disable=hidden) as bar:
            for batch in batches(self.documents, lengths[-1], self.options.batch_tokens):
                nll.extend(self._score(batch, window))
                bar.update(len(batch) * lengths[-1])
        # Afterwards, because a patch may set its tables when it sees the positions.
        table = fingerprints.table_sha256(self.scorer.model)
        self.passes.append(Pass(treatment.label, table, lengths, nll, forward_passes=len(nll)))

    @torch.inference_mode()
    def _score(self, batch: Sequence[Document], window: Window) -> list[np.ndarray]:
        nll = self.scorer.score(self._sequences(batch, window))
        check_finite(nll, [document.name for document in batch], first_position=1)
        return list(nll.numpy())

    def _sequences(self, batch: Sequence[Document], window: Window) -> torch.Tensor:
        """What is fed, int64 [documents, positions]."""
        first = [] if self.bos is None else [self.bos]
        return torch.tensor([[*first, *document.ids[window.start : window.stop]] for document in batch])


@dataclasses.dataclass(frozen=True)
class Treatment:
    """A schedule and what it is called in the results."""

    label: str
    schedule: Any

    def applied(self, model: Any, patching: dict[str, Any], length: int | None = None) -> AbstractContextManager[Any]:
        """The model under this schedule inside, as it was afterwards; frozen at ``length`` where given."""
        if self.label == AS_IS and (length is None or patches_in(model)):
            return nullcontext()
        from ..patching import patch

        return patch(model, self.schedule, length=length, **patching)

    def depends_on_length(self, model: Any, patch: Any) -> bool:
        """Whether the tables follow the length: the patch says so, or (as it is) a patch that was there before, or
        transformers, which recomputes the tables of ``dynamic`` and ``longrope`` inside forward and keeps state."""
        if patch is not None:
            return bool(patch.length_dependent)
        return any(outer.length_dependent for outer in patches_in(model)) or _updates_itself(model)

    def groups(self, model: Any, patching: dict[str, Any], lengths: Sequence[int]) -> list[tuple[int, ...]]:
        """The lengths of a length-dependent schedule, those together whose tables are the same."""
        if self.label == AS_IS and patches_in(model):
            return [(length,) for length in lengths]  # that patch sets the tables only when it sees the positions
        found: dict[str, tuple[int, ...]] = {}
        for length in lengths:
            with self.applied(model, patching, length):
                table = fingerprints.table_sha256(unwrapped(model))
            found[table] = (*found.get(table, ()), length)
        return list(found.values())


def treatments(schedules: Iterable[Any], baseline: Any = None) -> tuple[list[Treatment], str]:
    """``as-is``, the given schedules and the baseline, each once, and the baseline's label.

    Raises:
        ScheduleError: a spec that cannot be read.
        DataError: two different schedules that would have the same label.
    """
    given = [schedules] if isinstance(schedules, str) else list(schedules)
    found: dict[str, Treatment] = {}
    for schedule in [AS_IS, *given, *([] if baseline is None else [baseline])]:
        treatment = Treatment(label(schedule), schedule)
        same = found.setdefault(treatment.label, treatment).schedule
        if callable(same) and callable(schedule) and same != schedule:
            raise DataError(f"two different schedules are both called {treatment.label!r}; give them different names")
    return list(found.values()), AS_IS if baseline is None else label(baseline)


def label(schedule: Any) -> str:
    """A schedule's spec on one line, with the fields that were given: ``yarn:factor=8``.

    Raises:
        ScheduleError: a spec that cannot be read.
    """
    from ..schedules import specs

    parsed = specs.parse(schedule)
    if isinstance(parsed, dict):
        return json.dumps({layers: spec.text for layers, spec in parsed.items()})
    return parsed.text


def patches_in(model: Any) -> Sequence[Any]:
    """The patches that the caller has put into the model and not reverted yet, oldest first."""
    from .. import patching

    return patching.patches_in(model)


def _rotation(model: Any) -> object:
    """All that a schedule decides: the live tables, and the softmax scales (MLA's follow the schedule)."""
    scales = {module.scaling for module in model.modules() if isinstance(getattr(module, "scaling", None), float)}
    return fingerprints.table_sha256(model), tuple(sorted(scales))


def _updates_itself(model: Any) -> bool:
    kinds = (getattr(module, "rope_type", None) for module in model.modules())
    flat = (kind for each in kinds for kind in (each.values() if isinstance(each, dict) else [each]))
    return any(isinstance(kind, str) and ("dynamic" in kind or kind == "longrope") for kind in flat)


def batches(documents: Sequence[Document], length: int, batch_tokens: int) -> Iterator[Sequence[Document]]:
    """Consecutive documents, as many as fit into ``batch_tokens`` positions; a pure function of its arguments."""
    size = max(1, batch_tokens // length)
    for start in range(0, len(documents), size):
        yield documents[start : start + size]


def as_documents(documents: Iterable[Any], tokenizer: Any) -> list[Document]:
    """Texts tokenized, ids wrapped, documents as they are.

    Raises:
        DataError: texts without a tokenizer, or a mixture.
    """
    given: list[Any] = [documents] if isinstance(documents, (str, Text)) else list(documents)
    texts = [isinstance(document, (str, Text)) for document in given]
    if any(texts):
        if not all(texts):
            raise DataError("documents are a mixture of texts and token ids; give one or the other")
        if tokenizer is None:
            raise DataError("documents are texts; give tokenizer= to encode them, or give token ids")
        return data.tokenize(given, tokenizer)
    made = [isinstance(document, Document) for document in given]
    return given if made and all(made) else data.from_ids(given)


def trained_length(model: Any) -> int | None:
    """The context the model was trained at before any scaling, where its configuration says so."""
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    known = [each.get("original_max_position_embeddings") for each in [parameters, *nested]]
    original = next((value for value in known if value), getattr(config, "original_max_position_embeddings", None))
    return original or getattr(config, "max_position_embeddings", None)
