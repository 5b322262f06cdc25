"""The windows of a search, the weights of their tokens, and the split of a text and of a budget.

The windows are the same as in ``ropescale eval``: BOS, then as many tokens as fit into the target length. The first
window starts with its document; the other windows are evenly spaced. Whole documents are held out, so that no held-out
window shares text with the windows that the search learns from. If there is only one document, its last windows are
held out. If there are enough documents, some are not used to choose the schedule: their first windows judge the result.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, count, pairwise, zip_longest

import torch
from transformers import PreTrainedTokenizerBase

from ...errors import DataError
from ..backends.base import Backend
from ..backends.fingerprints import tokens_sha256
from ..backends.schedules import Schedules
from ..data.chats import Unread
from ..data.sources import TextSource
from ..facts import DataFacts
from ..running.corpus import Corpus, PerplexityOptions
from ..running.perplexity import Part, PerplexityRun
from ..store import Facts
from .options import ENOUGH, SearchOptions
from .search_space import STARTS

BATCH = 2
"""The number of windows per step."""

WITHIN = 2.0
"""The weight of a token within the trained length; later tokens have weight 1."""

CHECKS = 6
"""The number of checks on held-out windows, including the start."""

WINDOWS = 4
"""The number of windows for comparing starts."""

TRIED = 0.1
"""The largest share of the budget for comparing starts."""

FEW_STEPS = 20
"""With fewer steps, the numbers hardly leave the start."""

CHECKED = 0.2
"""The largest share of the budget for checks on held-out windows."""

HELD_DOCUMENTS = 4
"""One of this many documents is held out, or one of this many parts of a single document."""

LEAST_JUDGES, MOST_JUDGES = 10, 30
"""The bounds of the number of judging documents, which is a quarter of all documents within these bounds."""


@dataclass(frozen=True)
class WeightedWindow:
    """A window of tokens, and the weights of its losses.

    Attributes:
        ids: the token ids, including BOS, int64 [positions].
        weights: the weight of each scored token, float64 [positions - 1].
    """

    ids: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True)
class Budget:
    """The budget of a search, in windows of ``size`` tokens.

    Attributes:
        windows: the number of windows to feed, including those of the checks.
        size: the number of tokens of a window.
        held_out: the number of selection windows.
    """

    windows: int
    size: int
    held_out: int

    def __post_init__(self) -> None:
        least = BATCH + CHECKS * self.held_out
        if self.windows < least:
            raise DataError(
                f"a budget of {self.windows:,} windows of {self.size:,} tokens is too small for a step; give at least "
                f"{least} windows ({least * self.size} tokens)",
                "budget_windows",
                "budget_tokens",
            )

    @property
    def compared(self) -> int:
        """The number of windows on which each start is tried, at most :data:`TRIED` of the budget."""
        return min(WINDOWS, int(TRIED * self.windows / STARTS))

    @property
    def steps(self) -> int:
        """The maximum number of steps."""
        return (self.windows - STARTS * self.compared - CHECKS * self.held_out) // BATCH

    @property
    def most(self) -> int:
        """The total number of tokens of all windows and checks."""
        return self.windows * self.size


def held_out_for(windows: int) -> int:
    """Returns the maximum number of selection windows for a budget in windows."""
    return max(2, int(CHECKED * windows / CHECKS))


def windows_for(steps: int) -> int:
    """Returns the smallest budget in windows that has so many steps, whatever the number of selection windows."""
    return next(each for each in count(2 * steps) if Budget(each, 1, held_out_for(each)).steps >= steps)


@dataclass(frozen=True)
class Split:
    """The windows of a text, by their numbers in the corpus.

    Attributes:
        learned: the windows to learn from, in random order.
        held_out: the selection windows, sorted.
        judges: the judging windows, sorted, one per document; empty if there are too few documents.
    """

    learned: tuple[int, ...]
    held_out: tuple[int, ...]
    judges: tuple[int, ...] = ()


def split(windows: Sequence[int], held_out: int, seed: int, judged: bool = True) -> Split:
    """Splits windows by document.

    Args:
        windows: the number of windows of each document.
        held_out: the maximum number of selection windows.
        judged: whether to use some documents only to judge.

    Raises:
        DataError: there is only one window.
    """
    if sum(windows) < 2:
        raise DataError(
            "the text has one window of the target length, but a search needs two: one to learn from, and one held "
            "out; give more text, or a shorter target_length",
            "documents",
            "target_length",
        )
    rng = random.Random(f"ropescale search {seed}")
    apart = [list(range(*edge)) for edge in pairwise(accumulate(windows, initial=0))]
    judges: list[list[int]] = []
    if len(apart) == 1:  # hold out at most a quarter of the only document
        [learned] = apart
        start = len(learned) - min(held_out, max(1, len(learned) // HELD_DOCUMENTS))
        learned, kept = learned[:start], learned[start:]
    else:
        apart = rng.sample(apart, len(apart))
        if judged and len(apart) >= ENOUGH:
            count = min(MOST_JUDGES, max(LEAST_JUDGES, len(apart) // HELD_DOCUMENTS))
            judges = apart[:count]
            apart = apart[count:]
        documents = min(held_out, max(1, len(apart) // HELD_DOCUMENTS))
        in_turn = chain.from_iterable(zip_longest(*apart[:documents]))  # the first of each document, then the second
        kept = [window for window in in_turn if window is not None][:held_out]
        learned = list(chain.from_iterable(apart[documents:]))
    rng.shuffle(learned)
    return Split(tuple(learned), tuple(sorted(kept)), tuple(sorted(first for first, *_ in judges)))


class SearchData:
    """The windows of a text: those to learn from, those that choose the schedule, and those that judge it.

    Attributes:
        corpus: the windows.
        split: the roles of the windows.
        target: the length of a window, including BOS.
        budget: the budget.
        chosen_by, judged_by: the names of the documents of the selection and of the judging windows; without judges,
            the selection windows also judge.
        about: a description for the user.
        data: the "data" part of results.json, of the judging windows.
        facts: the facts that determine the losses.
    """

    def __init__(self, corpus: Corpus, parts: Split, options: SearchOptions) -> None:
        self.corpus = corpus
        self.split = parts
        self.target = corpus.lengths[-1]
        self.budget = Budget(options.feeds(self.target), self.target, len(parts.held_out))
        self.chosen_by = [corpus.documents[number].name for number in parts.held_out]
        self.judged_by = [corpus.documents[number].name for number in parts.judges]
        self.about = f"windows of {self.target:,}: {len(parts.learned)} to learn from, {len(parts.held_out)} to choose "
        self.about += f"by, {len(parts.judges)} others to judge by"
        self.judges = corpus.part(parts.judges or parts.held_out, corpus.lengths)
        self.data: DataFacts = {name: corpus.facts[name] for name in ("source", "sha256", "skipped")}
        self.data |= {name: self.judges.facts[name] for name in ("documents", "windows", "tokens")}
        self.facts: Facts = {"text": corpus.sha256, "tokens": tokens_sha256(corpus.documents), "bos": corpus.bos}

    def weighted(self, numbers: Iterable[int], trained: int) -> list[WeightedWindow]:
        """Returns windows by their numbers in the corpus; the weights of each sum to 1."""
        weights = torch.ones(self.target - 1, dtype=torch.float64)
        weights[: trained - 1] = WITHIN
        weights /= weights.sum()
        first = [] if self.corpus.bos is None else [self.corpus.bos]
        rows = (self.corpus.documents[number].ids[: self.target - len(first)] for number in numbers)
        return [WeightedWindow(torch.tensor([*first, *ids]), weights) for ids in rows]

    def comparison(self, backend: Backend, schedules: Schedules, lengths: Sequence[int], about: Facts) -> PerplexityRun:
        """Returns the measurement of schedules on the judging windows.

        Args:
            about: the facts that the next run in the same folder is compared with.
        """
        # One window at a time, as in the search, so that the losses do not depend on the memory.
        reading = replace(self.judges.options, batch_tokens=self.target)
        corpus = self.judges.part(range(len(self.judges.documents)), lengths, reading)
        return PerplexityRun(backend, corpus, schedules, Part("the found schedule", about, self.budget.most))


def feed_text(
    texts: Mapping[str, Iterable[Unread]],
    target: int,
    tokenizer: PreTrainedTokenizerBase | None,
    bos: str | int,
    options: SearchOptions,
    judged: bool = True,
    source: TextSource | None = None,
) -> SearchData:
    """Reads the text, and allocates the budget.

    Args:
        texts: the documents of each source, by its name.
        source: the source of the documents, if they were read from one.
        judged: whether to use some documents only to judge the result.

    Raises:
        DataError: there is too little text, or the budget is too small for a step.
    """
    feeds = options.feeds(target)
    fewest = BATCH + CHECKS * 2 + 2  # enough for the least accepted budget, so that an error can state it
    reading = PerplexityOptions(
        budget_tokens=(max(fewest, feeds) + (MOST_JUDGES if judged else 0)) * target,
        max_docs=options.max_docs,
        short_context=False,
        notes=options.notes,
        logits_bytes=options.logits_bytes,
        source=options.source,
    )
    corpus = Corpus(texts, [target], tokenizer, bos, reading, source)
    return SearchData(corpus, split(corpus.windows, held_out_for(feeds), options.seed, judged), options)
