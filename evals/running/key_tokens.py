"""Finds key tokens with a key model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...errors import DataError
from ..backends.base import Backend
from ..backends.fingerprints import tokens_sha256
from ..checking import Parsed
from ..data.chats import Unread
from ..data.documents import Document, Text, TextEncoder, check_ids
from ..data.windows import Window
from ..metrics.key_tokens import KIND, KeySpans, joined
from ..parallel.processes import Group
from ..progress import Notes
from ..scoring.batches import BatchPlan, Feed, Finished, ScoresBatches, assembled, per_token, plan_pass
from ..scoring.scorer import SCORING
from ..store import Facts, Store
from .runner import Runner, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class KeysRun:
    """A resumable search for the key tokens of texts, which start with the tokenizer's usual prefix, such as BOS.

    One pass feeds every text whole. In another one, ``stride`` consecutive tokens share a short context that starts
    ``window`` tokens before the first of them. A token is a key token if the full context lowers its loss by more than
    ``alpha`` nats, to below ``-beta``. The first ``window`` tokens are never key tokens.

    Args:
        made: the ``window``, ``stride``, ``alpha`` and ``beta``, and ``max_length``, the number of tokens that longer
            texts are cut to; the tokens that follow are never key tokens.

    Raises:
        DataError: a document is not a text, the tokenizer has no offsets or is another model's, or no text has more
            tokens than the window.
    """

    finished = ""
    """Empty, because an interrupted run writes no spans."""

    def __init__(
        self,
        backend: Backend,
        tokenizer: PreTrainedTokenizerBase,
        texts: Iterable[Unread],
        made: Mapping[str, Any],
        notes: Notes,
    ) -> None:
        if not tokenizer.is_fast:
            raise DataError("key tokens need a tokenizer with offsets (a fast one); choose another key model")
        self.backend = backend
        self.notes = notes
        window = made["window"]
        stride = made["stride"]
        max_length = made["max_length"]
        one = tokenizer("a", return_special_tokens_mask=True)
        prefix = one["input_ids"][: [*one["special_tokens_mask"], 0].index(0)]  # the ids before every text
        encoder = TextEncoder(tokenizer)
        self._documents: list[Document] = []
        self._cut = 0
        for text in _written(texts):
            tokens = encoder.first(text.encoded, max_length + 1 - len(prefix))
            ids = [*prefix, *tokens.ids]
            self._cut += len(ids) > max_length
            ends = np.concatenate([np.zeros(len(prefix), np.int64), cast(np.ndarray, tokens.byte_ends)])
            self._documents.append(Document(text.name, ids[:max_length], ends[:max_length], text.sha256))
        check_ids(self._documents, cast(int, backend.vocabulary))
        sizes = [len(each.ids) for each in self._documents]
        if max(sizes, default=0) <= window:
            raise DataError(f"no text has more tokens than the window of {window:,}; give longer texts", "window")
        self._made = {"key_model": {"path": backend.facts["path"], **backend.identity}, **made}
        # One window per batch, so that the losses do not depend on the other texts.
        self._whole = plan_pass(sizes, max_length, stride, False, 1, lambda n, *_: _blocks(n, window, n))
        self._short = plan_pass(sizes, max_length, stride, False, 1, lambda n, *_: _blocks(n, window, stride))
        self._losses = {each: [np.empty(0, np.float32)] * len(sizes) for each in ("full", "short")}

    def planned(self) -> Parsed:
        """Returns the part of the result that is known before the run."""
        return self._made

    def run(self, store: Store, group: Group) -> None:
        """Scores the texts in both ways, unless the store has the losses."""
        backend = self.backend
        notes = self.notes
        texts = backend.texts(self._documents, None, notes)
        scorer = texts.under(None)
        tokens = tokens_sha256(self._documents)
        facts: Facts = {**backend.identity, **backend.arithmetic, "tokens": tokens, "scoring": SCORING}
        runner = Runner(facts, store, group, notes)
        runner.take([self._task("full", self._whole, scorer), self._task("short", self._short, scorer)])
        runner.go_on(texts)
        about = {"kind": KIND, "facts": facts}
        with backend.ready():
            if runner.announce(about):
                texts.check(self._whole.batches[0])
            runner.run(about)

    def _task(self, context: str, plan: BatchPlan[Feed], scorer: ScoresBatches) -> Task:
        def finish(finished: Finished) -> None:
            self._losses[context] = assembled(plan, finished, "nll")

        form = per_token(nll=np.float32)
        return Task(f"key tokens: {context} context", plan, [{"plan": plan.sha256}], form, finish, scorer)

    def result(self) -> KeySpans:
        """Returns the key spans; none before the end of the run."""
        spans = {}
        found = 0
        scored = 0
        losses = zip(self._documents, self._losses["full"], self._losses["short"], strict=True)
        for document, whole, short in losses:
            is_key = (short - whole > self._made["alpha"]) & (whole < -self._made["beta"])
            key = self._made["window"] + np.flatnonzero(is_key)
            ends = cast(np.ndarray, document.byte_ends)
            before = np.concatenate([[0], ends])
            starts = before[np.searchsorted(ends, ends)]  # tokens that share a character have it whole
            spans[document.sha256] = joined(np.stack([starts, ends], 1)[key].tolist())
            found += len(key)
            scored += len(whole)
        return KeySpans(spans, {**self._made, "key_tokens": found, "tokens": scored, "cut_texts": self._cut})


def _blocks(tokens: int, window: int, stride: int) -> list[Window]:
    """Returns windows that together score every token after the first ``window``."""
    starts = range(0, tokens - window, stride)
    return [Window(start, min(start + window + stride, tokens), start + window) for start in starts]


def _written(texts: Iterable[Unread]) -> Iterator[Text]:
    for each in texts:
        if not isinstance(each, Text):
            raise DataError(f"{each.name} is not text, and key tokens are byte ranges of a text; give a field of text")
        yield each
