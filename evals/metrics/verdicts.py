"""What all sentences that conclude share: one level, and the fewest documents that they take."""

from __future__ import annotations

import math

from ..statistics.intervals import CONCLUSIVE, LEVEL, PERCENT, familywise
from . import perplexity
from .cells import digits, exp
from .stored import AS_IS, Stored


def level(stored: Stored) -> float:
    """Returns the level of each comparison of a run, so that all hold together.

    Of too few documents nothing is concluded, and each interval is of 95% by itself.
    """
    return LEVEL if stored.comparisons is None else familywise(stored.comparisons)


def too_few(documents: int) -> str:
    """Says that so many documents conclude nothing; "" for enough of them."""
    if documents >= CONCLUSIVE:
        return ""
    return f"a verdict takes {CONCLUSIVE} documents, and there {'is' if documents == 1 else 'are'} {documents}"


def together(comparisons: int | None) -> str:
    """Says what intervals hold for."""
    if not comparisons or comparisons == 1:
        return f"{PERCENT} intervals"
    return f"{PERCENT} intervals for all {comparisons:,} comparisons together"


_ROUNDING = 0.001
"""Nats above ln(vocabulary) that a flat head, and the rounding of its logits, may have."""


def worse_than_a_guess(stored: Stored) -> str:
    """Returns a sentence where the model as it is predicts worse than a guess at the shortest length; else "".

    A result from before the vocabulary's size was stored has none.
    """
    length = stored.lengths[0]
    found = [row.nll for row in perplexity.METRIC.rows(stored) if (row.schedule, row.length) == (AS_IS, length)]
    return guessing(found[0], length, stored.model.get("vocabulary")) if found else ""


def guessing(nll: float, length: int, vocabulary: int | None) -> str:
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
        f"({figures}). The weights or the tokenizer may not be its own, and no figure here says which schedule is "
        "better."
    )
