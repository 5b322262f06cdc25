"""The data of the objective ``keys``: prompts that ask for a hidden number.

As in LongRoPE2 (Shang et al. 2025, arXiv:2502.20082), prompts have the target length, and the loss includes only the
tokens of their answers. The held-out prompts form sets with one prompt per reported length. The longest prompts of the
first sets are used to choose the schedule, and the other sets to judge it. The seeds of :func:`seeds` are far from
usual seeds, because ``ropescale retrieval`` with the same seed would ask the prompts that the search learned from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ...errors import DataError
from ..data.chats import Given
from ..metrics.stored import ModelFacts
from ..retrieving.prompt_set import RetrievalOptions, RetrievalPrompts, make_prompts, prompts_sha256
from ..retrieving.prompts import LONGER, Prompt
from ..retrieving.retrieval_run import LoadedRetrieval, RetrievalRun
from ..running.options import Schedules
from .options import KEYS, SearchOptions
from .windows import CHECKS, LEAST_JUDGES, WINDOWS, Budget, Sample, SearchData, WeightedWindow, feed_text

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..data.sources import TextSource


FIRST_SEED = 2**42
"""The first seed of the prompts; the default seed of ``ropescale retrieval`` is 0."""

DEPTHS = 5
"""The number of evenly spaced depths from the beginning to the end, which the prompts use in turn."""

CHECKED = 0.4
"""The largest share of the budget for held-out prompts. An answer has few tokens, so distinguishing schedules takes
more prompts than windows of a text."""


def seeds(seed: int) -> tuple[int, int]:
    """Returns the seed of the prompts to learn from, and the seed of the held-out prompts."""
    return FIRST_SEED + 2 * seed, FIRST_SEED + 2 * seed + 1


class PromptData(SearchData):
    """Prompts with a hidden key; the loss includes only the tokens of their answers.

    Args:
        lengths: the lengths of the held-out prompts, ascending; the prompts to learn from have the last length.

    Attributes:
        to_learn, held_out: the sets of prompts; each set has its prompts by length.

    Raises:
        DataError: the budget is too small for a step, or a prompt does not fit into the shortest length.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, lengths: Sequence[int], bos: str | int, options: SearchOptions
    ) -> None:
        *shorter, self.target = lengths
        choose = max(2, int(CHECKED * options.budget_tokens / (CHECKS * sum(lengths))))
        self.budget = Budget(options.budget_tokens, self.target, choose, sum(shorter))
        learn, judge = max(WINDOWS, self.budget.windows - CHECKS * choose), max(LEAST_JUDGES, choose)
        learned_seed, held_out_seed = seeds(options.seed)

        def drawn(lengths: Sequence[int], seed: int, count: int) -> RetrievalPrompts:
            asked = RetrievalOptions(trials=math.ceil(count / DEPTHS), seed=seed, bos=bos)
            return make_prompts(tokenizer, lengths, DEPTHS, asked)

        self.drawn = drawn([self.target], learned_seed, learn), drawn(lengths, held_out_seed, choose + judge)
        self.to_learn, self.held_out = (
            [set_of(made, number) for number in range(count)]
            for made, count in zip(self.drawn, (learn, choose + judge), strict=True)
        )
        names = [f"prompts {number}" for number in range(choose + judge)]
        self.chosen_by, self.judged_by, self.bos_option = names[:choose], names[choose:], bos
        self.about = (
            f"prompts of {self.target:,}: at each length from {lengths[0]:,}, {learn} to learn from, {choose} to "
            f"choose by, and {judge} to judge by"
        )
        judges = {length: [each[length] for each in self.held_out[choose:]] for length in lengths}
        self.judges = replace(self.drawn[1], prompts=judges)
        self.protocol = {
            "objective": KEYS,
            "prompt_seeds": {"learned": learned_seed, "held_out": held_out_seed},
        }
        every = [prompt for each in (*self.to_learn, *self.held_out) for prompt in each.values()]
        self.data = {**self.judges.data, "sha256": prompts_sha256(every)}
        self.facts = {"objective": KEYS, "asked": self.data["sha256"], "bos": self.drawn[0].bos}

    def check_ids(self, vocabulary: int) -> None:
        for each in self.drawn:
            each.check_ids(vocabulary)

    def learned(self, trained: int) -> list[Sample]:
        return [[answer_window(each[self.target])] for each in self.to_learn]

    def choosing(self, trained: int) -> list[Sample]:
        """Returns sets of prompts of all lengths, in which all prompts but the longest have weight 0."""
        return [
            [answer_window(prompt, float(length == self.target)) for length, prompt in each.items()]
            for each in self.held_out[: self.budget.held_out]
        ]

    def comparison(
        self,
        model: PreTrainedModel,
        facts: ModelFacts,
        schedules: Schedules,
        lengths: Sequence[int],
        options: SearchOptions,
    ) -> RetrievalRun:
        asked = RetrievalOptions(path=options.path, progress=options.progress)
        return LoadedRetrieval(model, self.judges, schedules, asked, facts)


def set_of(made: RetrievalPrompts, number: int) -> dict[int, Prompt]:
    """Returns a set with one prompt per length. The depths of the keys differ between lengths and between sets."""
    found = {}
    for place, (length, prompts) in enumerate(made.prompts.items()):
        depth, trials = (number + place) % DEPTHS, len(prompts) // DEPTHS
        found[length] = prompts[depth * trials + number // DEPTHS]
    return found


def answer_window(prompt: Prompt, weight: float = 1.0) -> WeightedWindow:
    """Returns a prompt as a window whose loss is the mean NLL of the answer, multiplied by ``weight``."""
    (question,) = prompt.questions
    ids, count = torch.from_numpy(question.ids), question.tokens
    return WeightedWindow(ids, [(len(ids) - count, len(ids), weight / count)])


def make_data(
    documents: Iterable[Given] | Mapping[str, Iterable[Given]] | None,
    tokenizer: PreTrainedTokenizerBase | None,
    lengths: Sequence[int],
    bos: str | int,
    options: SearchOptions,
    source: TextSource | None = None,
) -> SearchData:
    """Reads or makes the data of the objective.

    Args:
        source: the source of the documents, if they were read from one.
        lengths: see :func:`.options.lengths_to`.

    Raises:
        DataError: there is too little text, or text is given with the objective keys; the budget is too small for a
            step; or, for prompts, there is no tokenizer, or a prompt does not fit into the trained length.
    """
    if options.objective != KEYS:
        if documents is None:
            raise DataError(
                "no documents are given to learn from; give some, or use the objective keys", "documents", "objective"
            )
        return feed_text(documents, lengths[-1], tokenizer, bos, options, source=source)
    if documents is not None:
        raise DataError(
            "documents are given, and the objective keys makes its own prompts; drop one of the two",
            "documents",
            "objective",
        )
    if tokenizer is None:
        raise DataError("the objective keys needs a tokenizer to make prompts; give tokenizer", "objective")
    try:
        return PromptData(tokenizer, lengths, bos, options)
    except DataError as error:
        reason, _, do = str(error).partition("; ")
        if do != LONGER:
            raise
        raise DataError(
            f"the objective keys also needs prompts of the trained length, but {reason}; use the objective text",
            "objective",
        ) from error
