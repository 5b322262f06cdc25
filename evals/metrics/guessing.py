"""Compares the model as it is with a uniform guess: if it predicts worse, nothing else is worth a conclusion."""

from __future__ import annotations

import math

from .cells import digits, exp
from .perplexity import METRIC
from .stored import Stored

_AS_IS = "as-is"
"""The label of the unchanged model, which always runs."""

_ROUNDING = 0.001
"""Nats above ln(vocabulary) that a flat head, and the rounding of its logits, may have."""


def worse_than_a_guess(stored: Stored) -> str:
    """Returns a sentence where the model as it is predicts worse than a guess at the shortest length; else "".

    A result from before the vocabulary's size was stored has none.
    """
    length = stored.lengths[0]
    found = [row.nll for row in METRIC.rows(stored) if (row.schedule, row.length) == (_AS_IS, length)]
    return said(found[0], length, stored.model.get("vocabulary")) if found else ""


def said(nll: float, length: int, vocabulary: int | None) -> str:
    """Returns a sentence where a loss is above that of a uniform guess, ln(vocabulary); else "".

    Args:
        nll: of the model as it is, in nats per token, up to ``length``; NaN is no such loss.
        vocabulary: how many tokens the model knows; None where that is not known.
    """
    if not vocabulary or not nll > math.log(vocabulary) + _ROUNDING:
        return ""
    figures = f"perplexity {digits(exp(nll), 4)} at {length:,} tokens, against {vocabulary:,}"
    return (
        f"The model as it is predicts this text worse than a uniform guess over its {vocabulary:,} tokens would "
        f"({figures}): the weights or the tokenizer may not be its own, and no figure here says which "
        "schedule is better."
    )
