"""Compares searches by answers that learn from prompts of every length, and of the target's alone.

``python tests/benchmarks/searching_keys.py MODEL OUT.json '{"seed": 0}'``: a window is a set of prompts, of the trained
length, its doubles and the target, that of the trained length counting twice; the held-out sets count alike. What
``ropescale search MODEL --objective keys --target-length 2k`` finds is the other side (docs/searching.md).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from ropescale.evals import search
from ropescale.evals.passkey.quiz import Quiz, RetrievalOptions
from ropescale.evals.searching.feeds import hidden_keys, supplying
from ropescale.evals.searching.feeds.feeding import allowance_of
from ropescale.evals.searching.losses.windows import AnswerAlone, Piece, PromptSet, Texts
from ropescale.evals.searching.methods import gradient
from ropescale.evals.searching.methods.asking import WINDOWS
from ropescale.evals.searching.options import SearchOptions

if TYPE_CHECKING:
    from ropescale.evals.passkey.tasks import Prompt

TARGET, BUDGET = 2048, 500_000


class EveryLength(hidden_keys.PromptFeeding):
    """Prompts of every length count."""

    @property
    def most(self) -> int:
        """The tokens that may be fed in all."""
        return self.allowance.feeds * sum(self.held_out.lengths)

    def texts(self, lengths: tuple[int, ...], within: float) -> Texts:
        """Returns the sets of prompts."""
        weights = [within, *[1.0] * (len(lengths) - 1)]

        def sets(quiz: Quiz, numbers: Iterable[int]) -> list[PromptSet]:
            return [PromptSet(list(map(piece, hidden_keys.prompts_of(quiz, n), weights))) for n in numbers]

        def piece(prompt: Prompt, weight: float) -> Piece:
            (question,) = prompt.questions
            ids, answer = torch.from_numpy(prompt.ids(0)), AnswerAlone(question.start, question.stop)
            return Piece(ids, answer, weight / sum(weights))

        return Texts(sets(self.learned, self.allowance.windows), sets(self.held_out, range(self.allowance.held_out)))


def every_length(
    tokenizer: PreTrainedTokenizerBase, lengths: Sequence[int], bos: str | int, options: SearchOptions
) -> EveryLength:
    """Makes the prompts, and shares the budget out by sets."""
    feeds = options.budget_tokens // sum(lengths)
    held_out = max(2, int(hidden_keys.CHECKED * feeds / gradient.CHECKS))
    learned = max(WINDOWS, feeds - gradient.CHECKS * held_out)
    quizzes = [
        Quiz(
            tokenizer,
            lengths,
            hidden_keys.DEPTHS,
            "passkey",
            bos,
            RetrievalOptions(trials=-(-count // hidden_keys.DEPTHS), seed=seed),
        )
        for seed, count in zip(hidden_keys.seeds(options.seed), (learned, held_out), strict=True)
    ]
    return EveryLength(*quizzes, allowance_of(options, sum(lengths), learned, held_out), options)


def main() -> None:
    """Searches, and writes the schedule's file."""
    name, out, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3] if len(sys.argv) > 3 else "{}")
    supplying.prompt_feeding = every_length  # type: ignore[assignment]
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    given = {"budget_tokens": BUDGET, "progress": True, "objective": "keys", **options}
    result = search(model, None, TARGET, tokenizer=AutoTokenizer.from_pretrained(name), out=out, **given)
    print(result.to_markdown())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
