"""Compares searches by answers that learn from prompts of every length, and of the target's alone.

``python searching_keys.py MODEL OUT.json '{"seed": 0}'``: a window is a set of prompts, of the trained
length, its doubles and the target, that of the trained length counting twice; the held-out sets count alike. What
``ropescale search MODEL --objective keys --target-length 2k`` finds is the other side (docs/searching.md).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from ropescale.evals import search
from ropescale.evals.searching import gradient, prompts
from ropescale.evals.searching.gradient import WINDOWS
from ropescale.evals.searching.options import SearchOptions
from ropescale.evals.searching.windows import Texts, allowance_of

TARGET, BUDGET = 2048, 500_000


class EveryLength(prompts.PromptFeed):
    """Prompts of every length count."""

    @property
    def most(self) -> int:
        """The tokens that may be fed in all."""
        return self.allowance.feeds * sum(self.held_out.lengths)

    def texts(self, lengths: tuple[int, ...], within: float) -> Texts:
        """Returns the sets of prompts, those of the trained length counting ``within`` times as much as others."""
        weights, alone = [within, *[1.0] * (len(lengths) - 1)], super().texts(lengths, within)
        for each in [*alone.learned, *alone.held_out]:
            pieces = zip(each.prompts, weights, strict=True)
            each.prompts[:] = [replace(piece, share=weight / sum(weights)) for piece, weight in pieces]
        return alone


def every_length(
    tokenizer: PreTrainedTokenizerBase, lengths: Sequence[int], bos: str | int, options: SearchOptions
) -> EveryLength:
    """Makes the prompts, and shares the budget out by sets."""
    feeds = options.budget_tokens // sum(lengths)
    held_out = max(2, int(prompts.CHECKED * feeds / gradient.CHECKS))
    learned = max(WINDOWS, feeds - gradient.CHECKS * held_out)
    counts = learned, held_out + prompts.judges_of(held_out)
    drawn = zip(prompts.seeds(options.seed), counts, strict=True)
    quizzes = [prompts._quiz(tokenizer, lengths, bos, options, each) for each in drawn]
    return EveryLength(*quizzes, allowance_of(options, sum(lengths), learned, held_out), options)


def main() -> None:
    """Searches, and writes the schedule's file."""
    name, out, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3] if len(sys.argv) > 3 else "{}")
    prompts.feed_prompts = every_length  # type: ignore[assignment]
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    given = {"budget_tokens": BUDGET, "progress": True, "objective": "keys", **options}
    result = search(model, None, TARGET, tokenizer=AutoTokenizer.from_pretrained(name), out=out, **given)
    print(result.to_markdown())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
