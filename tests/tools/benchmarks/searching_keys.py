"""Compares searches by answers that learn from prompts of every length, and of the target's alone.

``python searching_keys.py MODEL OUT.json '{"seed": 0}'``: a window is a set of prompts, of the trained
length, its doubles and the target, that of the trained length counting twice; the held-out sets count alike. What
``ropescale search MODEL --objective keys --target-length 2k`` finds is the other side (docs/searching.md).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from ropescale.evals import search
from ropescale.evals.retrieving.prompt_set import RetrievalOptions, make_prompts
from ropescale.evals.retrieving.prompts import Prompt
from ropescale.evals.searching import prompts
from ropescale.evals.searching.options import SearchOptions
from ropescale.evals.searching.prompts import DEPTHS
from ropescale.evals.searching.windows import CHECKS, WINDOWS, Budget, Sample

TARGET, BUDGET = 2048, 500_000


class EveryLength(prompts.PromptData):
    """Prompts of every length count, those of the trained length ``within`` times as much as others."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, lengths: Sequence[int], bos: str | int, options: SearchOptions
    ) -> None:
        super().__init__(tokenizer, lengths, bos, options)
        self.within, choose = options.within, self.budget.held_out
        self.budget = Budget(options.budget_tokens, sum(lengths), choose)
        count = max(WINDOWS, self.budget.windows - CHECKS * choose)
        asked = RetrievalOptions(trials=math.ceil(count / DEPTHS), seed=prompts.seeds(options.seed)[0], bos=bos)
        made = make_prompts(tokenizer, lengths, DEPTHS, asked)
        self.to_learn = [prompts.set_of(made, number) for number in range(count)]

    def learned(self, trained: int) -> list[Sample]:
        """Returns the sets to learn from."""
        return [self._weighted(each, trained) for each in self.to_learn]

    def choosing(self, trained: int) -> list[Sample]:
        """Returns the sets that choose."""
        return [self._weighted(each, trained) for each in self.held_out[: self.budget.held_out]]

    def _weighted(self, made: dict[int, Prompt], trained: int) -> Sample:
        weights = {length: self.within if length == trained else 1.0 for length in made}
        whole = sum(weights.values())
        return [prompts.answer_window(prompt, weights[length] / whole) for length, prompt in made.items()]


def main() -> None:
    """Searches, and writes the schedule's file."""
    name, out, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3] if len(sys.argv) > 3 else "{}")
    prompts.PromptData = EveryLength  # type: ignore[misc]
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    given = {"budget_tokens": BUDGET, "progress": True, "objective": "keys", **options}
    result = search(model, None, TARGET, tokenizer=AutoTokenizer.from_pretrained(name), out=out, **given)
    print(result.to_markdown())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
