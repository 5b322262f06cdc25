"""the head alone, in blocks of logits, against whole logits with cross entropy."""

from __future__ import annotations

import models
import sides

CASES = ((8192, 256, 4096), (128256, 512, 512))
"""Vocabulary, width and positions."""


def measure(seconds: float) -> list[sides.Row]:
    """Returns ratios of CPU time, with a trunk that returns what it is given."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers.modeling_outputs import BaseModelOutputWithPast

    from ropescale.evals.scoring.scorer import Scorer, answering

    rows = []
    for vocabulary, width, positions in CASES:
        model = models.llama(vocab_size=vocabulary, hidden_size=width, intermediate_size=64)
        scorer, ids = Scorer(model), torch.randint(vocabulary, (1, positions))
        states = BaseModelOutputWithPast(last_hidden_state=torch.randn(1, positions, width))
        whole = f"whole logits, a vocabulary of {vocabulary:,}"

        def bare(model=model, ids=ids) -> None:
            cross_entropy(model(ids, use_cache=False).logits[0, :-1], ids[0, 1:], reduction="none")

        def trunk(*args: object, states=states, **named: object) -> BaseModelOutputWithPast:
            return BaseModelOutputWithPast(**states)

        acts = {whole: bare, "the head": lambda scorer=scorer, ids=ids: scorer.score(ids)}
        with torch.inference_mode(), answering(model.model, trunk):
            rows += sides.ratios(sides.in_turn(acts, seconds / len(CASES), sides.cpu), whole)
    return rows
