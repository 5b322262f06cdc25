"""Feeds a search: with the windows of a text, or, for the objective ``keys``, with prompts that ask for a number.

As in LongRoPE2 (Shang et al. 2025, arXiv:2502.20082), prompts have the target length, and only the tokens of their
answers count. Held out are sets of prompts, one of each length that is shown: the longest of the first sets choose, and
the other sets judge. They are those that ``ropescale retrieval`` would ask with the seeds of :func:`seeds`, which are
far from any that a user gives, so that nothing learned from is asked again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from ...errors import DataError
from ...planning.plan import Plan
from ..data.chats import Given
from ..metrics.stored import DataFacts
from ..retrieving.prompt_set import PromptSelection, RetrievalOptions, RetrievalPrompts, asked_sha256, prompts_sha256
from ..retrieving.tasks import LONGER, Prompt
from ..store import Facts
from . import gradient
from .gradient import WINDOWS, Query, TokenBudget
from .options import KEYS, SearchOptions
from .windows import LEAST_JUDGES, Piece, PromptSet, SpanWeights, TextFeed, Texts, allowance_of, feed_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


FIRST_SEED = 2**42
"""The first seed of prompts; `ropescale retrieval` asks those of seed 0 unless it is told another."""

DEPTHS = 5
"""The places of the keys, evenly from the beginning to the end, in turn."""

CHECKED = 0.4
"""The share of the budget that goes to held-out prompts, at most: an answer has few tokens, so it takes more of them
than of a text to tell schedules apart."""


def seeds(seed: int) -> tuple[int, int]:
    """Returns the seeds of the prompts to learn from, and of those held out."""
    return FIRST_SEED + 2 * seed, FIRST_SEED + 2 * seed + 1


@dataclass(frozen=True)
class PromptFeed:
    """The prompts that a search is fed, and how many.

    Attributes:
        learned: the prompts to learn from, of the target length.
        held_out: those held out, of each length.
        allowance: what the method may use.
        options: of the search.
    """

    learned: RetrievalPrompts
    held_out: RetrievalPrompts
    allowance: TokenBudget
    options: SearchOptions

    @property
    def target(self) -> int:
        """The length of the longest prompts, BOS and answer included."""
        return self.held_out.lengths[-1]

    @property
    def bos_option(self) -> str | int:
        """The argument ``bos``."""
        return self.held_out.selection.bos

    @property
    def names(self) -> list[str]:
        """The name of each set of held-out prompts: those that choose, and then those that judge."""
        return [f"prompts {number}" for number in range(self._sets)]

    @property
    def measured(self) -> tuple[int, ...]:
        """The numbers of the sets that judge."""
        return tuple(range(self.allowance.held_out, self._sets))

    @property
    def _sets(self) -> int:
        return self.allowance.held_out + judges_of(self.allowance.held_out)

    @property
    def about(self) -> str:
        """Says what is learned from, and what is held out."""
        lengths, kept = self.held_out.lengths, self.allowance
        return (
            f"prompts of {self.target:,}: {len(kept.windows)} to learn from, {kept.held_out} to choose by and "
            f"{len(self.measured)} to judge by of each length from {lengths[0]:,} on"
        )

    @property
    def most(self) -> int:
        """The tokens that may be fed in all."""
        return self.allowance.feeds * self.target + _aside(self.options, self.held_out.lengths, self.allowance.held_out)

    @property
    def said(self) -> dict[str, object]:
        """The part of the protocol that says the objective."""
        learned, held_out = seeds(self.options.seed)
        return {"objective": KEYS, "depths": DEPTHS, "prompt_seeds": {"learned": learned, "held_out": held_out}}

    @property
    def data(self) -> DataFacts:
        """The "data" part of results.json; the tokens are those of the answers."""
        usual = "generated" if self.options.haystack is None else "in memory"
        return {
            "source": self.options.source or usual,
            "sha256": prompts_sha256(self._every),
            "documents": len(self._every),
            "tokens": sum(each.stop - each.start for prompt in self._every for each in prompt.questions),
            "questions": len(self._every),
            "not_retokenized": sum(not prompt.retokenizes for prompt in self._every),
            "skipped": {},
        }

    @property
    def facts(self) -> Facts:
        """The facts that the answers depend on."""
        return {"objective": KEYS, "asked": asked_sha256(self._every), "bos": self.held_out.bos}

    def check_ids(self, vocabulary: int) -> None:
        """Refuses ids that are not in the model's vocabulary.

        Raises:
            DataError: names the prompt, the position and the id.
        """
        for quiz in (self.learned, self.held_out):
            quiz.check_ids(vocabulary)

    def texts(self, lengths: tuple[int, ...], within: float) -> Texts:
        """Returns the prompts, of which the answers alone count, and of those held out the longest alone.

        Args:
            lengths, within: of no use here: the prompts have their lengths, and none is within the trained one.
        """

        def sets(quiz: RetrievalPrompts, numbers: Iterable[int]) -> list[PromptSet]:
            shares = [*[0.0] * (len(quiz.lengths) - 1), 1.0]
            return [PromptSet(list(map(_piece, prompts_of(quiz, n), shares))) for n in numbers]

        return Texts(sets(self.learned, self.allowance.windows), sets(self.held_out, range(self._sets)))

    def tokens(self, query: Query) -> int:
        """Counts the tokens that a question feeds."""
        if query.stride:
            return query.forwards * (query.positions or 0)
        lengths = self.held_out.lengths if query.held_out else self.learned.lengths
        return query.forwards * sum(length for length in lengths if length <= (query.positions or self.target))

    @cached_property
    def _every(self) -> list[Prompt]:
        """The prompts to learn from, and then those held out."""
        counts = ((self.learned, len(self.allowance.windows)), (self.held_out, self._sets))
        return [prompt for quiz, count in counts for number in range(count) for prompt in prompts_of(quiz, number)]


def prompts_of(quiz: RetrievalPrompts, number: int) -> list[Prompt]:
    """Returns a set of prompts, one of each length; its keys lie at different depths, as those of the next sets do."""
    found = []
    for place, prompts in enumerate(quiz.prompts.values()):
        depth, trials = (number + place) % DEPTHS, len(prompts) // DEPTHS
        found.append(prompts[depth * trials + number // DEPTHS])
    return found


def _piece(prompt: Prompt, share: float) -> Piece:
    """Returns a prompt as it is fed, and what its answer counts."""
    (question,) = prompt.questions
    return Piece(torch.from_numpy(prompt.ids(question.ending)), SpanWeights(question.start, question.stop), share)


def feed_prompts(
    tokenizer: PreTrainedTokenizerBase | None, lengths: Sequence[int], bos: str | int, options: SearchOptions
) -> PromptFeed:
    """Makes the prompts, and shares the budget out.

    Args:
        lengths: of the prompts, ascending; the first is the trained one.

    Raises:
        DataError: a budget too small for a step, no tokenizer, or prompts that it cannot write in so few tokens.
    """
    if tokenizer is None:
        raise DataError("the objective keys writes prompts, which takes a tokenizer; give tokenizer", "objective")
    target, seed = lengths[-1], seeds(options.seed)
    held_out = max(2, int(CHECKED * options.budget_tokens / (gradient.CHECKS * sum(lengths))))
    aside = _aside(options, lengths, held_out)
    most = (options.budget_tokens - aside) // target - gradient.CHECKS * held_out
    learned = max(WINDOWS, most)
    allowance = allowance_of(options, target, learned, held_out, aside)
    asked = _quiz(tokenizer, [target], bos, options, (seed[0], learned))
    drawn = seed[1], held_out + judges_of(held_out)
    return PromptFeed(asked, _quiz(tokenizer, lengths, bos, options, drawn), allowance, options)


def judges_of(held_out: int) -> int:
    """Returns how many sets of prompts judge where so many choose."""
    return max(LEAST_JUDGES, held_out)


def _aside(options: SearchOptions, lengths: Sequence[int], held_out: int) -> int:
    """Counts the tokens of held-out prompts that are shorter than the target, in all checks."""
    checks = gradient.CHECKS
    return checks * held_out * sum(lengths[:-1])


def _quiz(
    tokenizer: PreTrainedTokenizerBase,
    lengths: Sequence[int],
    bos: str | int,
    options: SearchOptions,
    drawn: tuple[int, int],
) -> RetrievalPrompts:
    """Makes so many prompts of each length, or a few more, from a seed.

    Raises:
        DataError: the trained length has no room for a question, or the tokenizer or the haystack cannot be used.
    """
    seed, count = drawn
    asked = RetrievalOptions(trials=math.ceil(count / DEPTHS), seed=seed, haystack=options.haystack)
    try:
        return PromptSelection(lengths, DEPTHS, "passkey", bos).made(tokenizer, asked)
    except DataError as error:
        reason, _, do = str(error).partition("; ")
        if do != LONGER:
            raise
        raise DataError(
            f"the objective keys needs prompts of the trained length, too, and {reason}; use the objective text",
            "objective",
        ) from error


Feed = TextFeed | PromptFeed
"""Feeds a search: with the windows of a text, or with prompts."""


def make_feed(
    documents: Iterable[Given] | Mapping[str, Iterable[Given]] | None,
    tokenizer: PreTrainedTokenizerBase | None,
    lengths: Sequence[int],
    bos: str | int,
    options: SearchOptions,
) -> Feed:
    """Makes what the objective needs.

    Args:
        lengths: see :func:`lengths_to`.

    Raises:
        DataError: too little text, none, or some where there is no use for it; a budget too small for a step.
    """
    if options.objective == KEYS:
        if documents is not None:
            raise DataError(
                "documents are given, and the objective keys asks prompts of its own; drop one of the two",
                "documents",
                "objective",
            )
        return feed_prompts(tokenizer, lengths, bos, options)
    if documents is None:
        raise DataError(
            "no documents are given to learn from; give some, or use the objective keys", "documents", "objective"
        )
    return feed_text(documents, lengths[-1], tokenizer, bos, options)


def lengths_to(plan: Plan, target: int) -> tuple[int, ...]:
    """Returns where held-out figures are given: the trained length, its doubles, and the target."""
    found = [max(layer.rope.original_length for layer in plan.layers.values())]
    while 2 * found[-1] < target:
        found.append(2 * found[-1])
    return (*found, target)
