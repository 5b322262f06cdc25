"""Plans, passes and the result of a measurement, whoever computes the losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data import chats
from ..data.windows import sliding
from ..metrics.paired import short_length
from ..metrics.stored import Divergence, ModelFacts, Pass, Tables, Truncation
from ..results.result import Result
from ..scoring.batches import BatchPlan, plan_pass
from ..statistics.intervals import PERCENT
from . import fingerprints
from .progress import Notes
from .runner import Facts
from .selection import Corpus, PerplexityOptions
from .variants import HeldPass, Labelled, names_for


@dataclass(frozen=True)
class Job(HeldPass):
    """One pass over every document under one set of rotary tables.

    Attributes:
        plan: its batches.
    """

    plan: BatchPlan

    @property
    def label(self) -> str:
        """The schedule's label."""
        return self.tables.variant.label

    @property
    def key(self) -> tuple[str, str]:
        """The hashes that the numbers depend on, for one model and one text."""
        return self.tables.rotation, self.plan.sha256


class CorpusRun:
    """A measurement of a corpus that can be interrupted, whoever computes the losses: a loaded model or servers.

    Attributes:
        variants: what is measured, each with a label.
        baseline: the label of what the others are compared with.
        trained_length: the context that the model was trained at, if known.
        facts: what the numbers of every pass depend on, next to the pass's own.
        model_facts: the "model" part of results.json.
        batch_tokens: positions that are fed together.
    """

    variants: Sequence[Labelled]
    facts: Facts
    model_facts: ModelFacts

    def __init__(self, corpus: Corpus, options: PerplexityOptions, baseline: str, trained: int | None) -> None:
        self.corpus, self.options, self.notes = corpus, options, Notes.of(options.progress)
        self.baseline, self.trained_length = baseline, trained
        self.batch_tokens = 1
        self.passes: list[Pass] = []
        self.divergences: list[Divergence] = []
        self.truncation: Truncation | None = None
        self._stride: int | None = None  # of truncation: the last run's, then this run's
        self._plans: dict[int, BatchPlan] = {}
        self._figures: Tables = {}

    @property
    def protocol(self) -> dict[str, object]:
        """Further entries of the "protocol" part of results.json."""
        return {}

    @property
    def finished(self) -> str:
        """How much is complete."""
        return f"{len(self.passes)} finished passes" if self.passes else ""

    def planned(self) -> dict[str, Any]:
        """Returns results.json as far as it is known before the run."""
        options, known = self.options, self.result()
        lengths, trained = self.corpus.lengths, known.trained_length
        rows = [{"schedule": each.label, "length": length} for each in self.variants for length in lengths]
        short = options.short_context and short_length(lengths, trained) is not None and len(self.variants) > 1
        return {
            "model": known.model,
            "data": known.data,
            "protocol": known.protocol,
            "rows": rows,
            "paired": [{"kl": 0.0}] if short else [],
            "truncation": options.truncation is not False and trained is not None and lengths[-1] > trained,
            "repeats": True,
            "key_tokens": self.corpus.key_spans is not None,
        }

    def result(self) -> Result:
        """Returns everything measured so far."""
        options, corpus, trained = self.options, self.corpus, self.trained_length
        return Result(
            model=self.model_facts,
            data=corpus.facts,
            protocol={
                "name": "ropescale",
                "mode": "prefix" if options.stride is None else "sliding",
                "bos": corpus.bos_option,
                "stride": options.stride,
                **({} if options.stride else {"windows": options.windows, "budget_tokens": options.budget}),
                **({} if options.score == chats.ALL else {"score": options.score}),
                **(self.truncation.facts if self.truncation else {}),
                "seed": options.seed,
                **names_for(self.variants),
                **self.protocol,
                "interval": f"{corpus.interval}, {PERCENT}",
                "batch_tokens": self.batch_tokens,
            },
            versions=fingerprints.versions(),
            passes=self.passes,
            documents=corpus.documents,
            windows=corpus.windows,
            bos=corpus.has_bos,
            baseline=self.baseline,
            trained_length=trained,
            tables={each.table_sha256: self._figures[each.table_sha256] for each in self.passes},
            divergences=self.divergences,
            key_spans=corpus.key_spans,
            repeat_distance=options.repeat_distance or trained,
            truncation=self.truncation,
        )

    @property
    def _about(self) -> Facts:
        """The facts that the next run in the same folder compares itself with."""
        return {
            "facts": self.facts,
            "lengths": list(self.corpus.lengths),
            "batch_tokens": self.batch_tokens,
            "schedules": [variant.label for variant in self.variants],
            **({"truncation_stride": self._stride} if self._stride else {}),
        }

    def _as_before(self, last: Facts) -> tuple[int, int | None]:
        """Returns the last run's batch size and stride of truncation where its plans, and so its batches, still fit."""
        if last.get("facts") != self.facts:
            return self.batch_tokens, None
        size, stride = last.get("batch_tokens"), last.get("truncation_stride")
        same_lengths = last.get("lengths") == list(self.corpus.lengths)
        return (
            size if self.options.batch_tokens is None and isinstance(size, int) else self.batch_tokens,
            stride if same_lengths and isinstance(stride, int) else None,
        )

    def _plan(self, length: int) -> BatchPlan:
        if length not in self._plans:
            tokens = [len(document.ids) for document in self.corpus.documents]
            stride, bos = self.options.stride, self.corpus.has_bos
            self._plans[length] = plan_pass(tokens, length, stride, bos, self.batch_tokens, sliding)
        return self._plans[length]

    def _finish(self, job: Job, nll: list[np.ndarray], split: int) -> None:
        """Takes a pass whose batches are all scored into the results."""
        again = any(each.key == job.key for each in self.passes)
        self.passes.append(
            Pass(
                schedule=job.label,
                table_sha256=job.tables.table_sha256,
                lengths=job.lengths,
                nll=nll,
                forward_passes=0 if again else job.plan.cost.forwards,
                cost=job.plan.cost,
                split_batches=split,
                key=job.key,
            )
        )

    def _announce_special(self) -> None:
        if again := self.corpus.skipped.get("duplicates"):
            self.notes.tell(f"duplicates left out: {again:,} (documents with the same tokens as an earlier one)")
        if given := self.corpus.count("ids"):
            self.notes.tell(
                f"{given:,} documents are token ids; bits per byte are not known, because their text is not"
            )
        if self.corpus.special:
            self.notes.tell(
                f"{self.corpus.special:,} tokens of the text are special ones of the tokenizer, as if a text began or "
                "ended there; split_special_tokens takes them for text"
            )
