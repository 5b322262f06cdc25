"""Truncation: the unchanged model on only the last tokens, up to its trained length.

Truncation uses the model's training tables, and windows of the trained length L0, a stride apart, with BOS if the
schedules get BOS. Each window scores its last tokens. Together, the windows score exactly the tokens at positions from
L0 on in the measured windows. A smaller stride gives each token more context, at least L0 - stride, and takes more
forward passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...errors import DataError, RopescaleError
from ..backends.tables import HeldTables
from ..data.windows import prefix, truncated
from ..facts import positions_of
from ..scoring.batches import plan_pass
from .corpus import Corpus
from .jobs import Job
from .options import refuse_impossible

SHARES = (16, 8, 4, 2)
"""The divisors of the trained length that give the candidate strides. The smallest stride that costs at most as much as
all other passes is used."""


@dataclass(frozen=True)
class TruncationJob(Job):
    """The pass of truncation, whose length is the trained length.

    Attributes:
        stride: the stride of the windows.
    """

    stride: int


def plan_truncation(
    corpus: Corpus,
    trained: int | None,
    as_trained: Callable[[int], HeldTables],
    rest: int,
    batch_tokens: int,
    before: int | None = None,
) -> tuple[TruncationJob | None, str]:
    """Plans truncation at the requested stride, at the last run's stride, or at the smallest candidate stride that
    costs at most as much as all other passes.

    Args:
        trained: the trained length, if known.
        as_trained: returns the model's training tables at a length.
        rest: the number of positions that all other passes feed.
        before: the stride of the last run with the same facts, if any; another stride could not reuse its batches.

    Returns:
        The plan, or None if truncation is skipped; and a note for the user, or "".

    Raises:
        DataError: the requested truncation is impossible, or the stride leaves a token without context.
    """
    options, longest, asked = corpus.options, corpus.lengths[-1], corpus.options.asks_truncation
    refuse_impossible(asked, longest, trained)
    if options.truncation is False or options.stride is not None or trained is None or longest <= trained:
        return None, ""
    known = options.truncation_stride or before
    if known is not None and known >= trained:
        raise DataError(
            f"truncation_stride {known} leaves a token without context in windows of the trained {trained:,} "
            f"positions; use 1 to {trained - 1}",
            "truncation_stride",
        )
    strides = [known] if known else [max(1, trained // share) for share in SHARES]
    costs = {each: positions_of([longest - trained] * len(corpus.documents), trained, each) for each in strides}
    stride = next((each for each in strides if costs[each] <= rest), strides[-1])
    fed = costs[stride]
    if known is None and fed > rest and options.truncation is None:
        return None, (
            f"truncation is skipped: it would feed {fed:,} tokens, {fed / rest:.0%} of what all other passes feed; "
            "request truncation to measure it"
        )
    try:
        tables = as_trained(trained)
    except RopescaleError as error:
        if asked:
            message = f"{asked} is given, but truncation cannot be measured: {error}"
            raise DataError(message, asked, *error.fields) from error
        return None, f"truncation is skipped: {error}"

    stop = prefix(longest, corpus.has_bos).stop  # of each document, up to the longest length
    plan = plan_pass([stop] * len(corpus.documents), trained, stride, corpus.has_bos, batch_tokens, truncated)
    told = f"truncation at stride {stride:,} takes {fed:,} tokens more ({fed / rest:.0%})"
    return TruncationJob(tables, (trained,), plan, stride), told
