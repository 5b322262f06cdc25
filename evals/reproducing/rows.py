"""The rows of a reproduction: an arm at a length, and a claim with its verdict."""

from __future__ import annotations

from dataclasses import dataclass

from ..checking import Count, Length, Positive, Share

HOLDS, FAILS, UNDECIDED, NOT_RUN = "holds", "does not hold", "not decided here", "not run"


@dataclass(frozen=True)
class ArmRow:
    """The perplexity of an arm after so many steps, read in windows of ``length`` positions.

    ``schedule`` is its spec, or ``found`` and ``control``, which the protocol spells out. ``tail_nll`` is over the
    tokens at positions from half of the length on, in nats. Truncation has no other. ``far_ppl`` is
    that of far repeats, and ``other_ppl`` that of the other tokens; None within the trained length.
    """

    schedule: str
    arm: str
    step: Count
    length: Length
    nll: float | None
    ppl: Positive | None
    ppl_low: Positive | None
    ppl_high: Positive | None
    tail_nll: float
    far_ppl: Positive | None = None
    other_ppl: Positive | None = None


@dataclass(frozen=True)
class AnswersRow:
    """The questions that an arm answered about texts of ``length`` positions, with Wilson's 95% interval of the share.

    ``schedule`` is that of the training for a trained model, after so many steps.
    """

    schedule: str
    arm: str
    step: Count
    length: Length
    questions: Count
    right: Count
    share_low: Share
    share_high: Share


@dataclass(frozen=True)
class ClaimRow:
    """A claim and its verdict; ``figures`` has every difference with its interval, in nats per token or as a share.

    ``estimates`` are the same as numbers: the mean, low and high of each difference that was measured, and how large
    it may be.
    """

    claim: str
    text: str
    source: str
    verdict: str
    figures: str
    estimates: list[list[float | None]]
