"""The options of a recommendation, and the objective that it minimises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import DataError
from ..running.corpus import PerplexityOptions

if TYPE_CHECKING:
    from ..backends.opening import Checkpoint

TOLERANCE = 0.005
"""The default tolerance in nats per token, about half a percent of perplexity; closer schedules are equally good."""


@dataclass(frozen=True)
class RecommendOptions:
    """The options of a recommendation.

    Attributes:
        text: the options of reading and measuring the text.
        short_weight: the weight of the loss at the trained length, from 0 to below 1; the loss at the target has the
            remaining weight.
        schedules: further schedules to try, as specs; they are always finalists.
        search: whether to also try the schedule that :func:`ropescale.evals.search` finds on the text of the race.
        search_tokens: the token budget of that search. Default: the default of a search.
        engine: an engine; schedules that it would compute differently are omitted (see ``ropescale export``).
        tolerance: the difference in nats per token up to which two schedules are equally good.
        checkpoint: the model in the printed commands. Default: the path of the loaded model.
    """

    text: PerplexityOptions
    short_weight: float | None = None
    schedules: Sequence[str] = ()
    search: bool = False
    search_tokens: int | None = None
    engine: str | None = None
    tolerance: float = TOLERANCE
    checkpoint: Checkpoint | None = None

    def __post_init__(self) -> None:
        if not self.tolerance > 0:
            raise DataError(f"tolerance is {self.tolerance:g} nats; give a number above 0", "tolerance")
        if self.search_tokens is not None and not self.search:
            raise DataError("search_tokens is given without search; add search", "search_tokens", "search")


SHORT_WEIGHT = 0.1
"""The default weight of the trained length."""


Weights = Mapping[int, float]
"""The weight of the loss at each length."""


@dataclass(frozen=True)
class Objective:
    """A weighted mean, over lengths L, of the loss (nats per token) of the first L positions of each window.

    Attributes:
        weights: the weights by length, ascending; they sum to 1.
        target: the wanted context length, in tokens.
        trained: the model's trained context.
    """

    weights: Weights
    target: int
    trained: int

    @property
    def short(self) -> int:
        """The length at which a schedule's cost is measured: the trained length, or the target if it is shorter."""
        return min(self.trained, self.target)

    @property
    def is_beyond(self) -> bool:
        """Whether the target is beyond the trained length, so that a schedule is needed."""
        return self.target > self.trained

    @property
    def needed(self) -> tuple[int, ...]:
        """The lengths at which every candidate is measured, ascending."""
        return tuple(sorted({*self.weights, self.short, self.target}))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The needed lengths, and half the trained length, which a pass at the target also measures."""
        return tuple(sorted({*self.needed, max(2, self.short // 2)}))


def objective_of(target: int, trained: int, short_weight: float | None = None) -> Objective:
    """Returns the requested objective.

    Args:
        target: the wanted context length, in tokens.
        trained: the model's trained context, in tokens.
        short_weight: the weight of the trained length, from 0 to below 1; the target has the remaining weight.

    Raises:
        DataError: the weight is invalid.
    """
    share = SHORT_WEIGHT if short_weight is None else short_weight
    if not 0 <= share < 1:
        raise DataError(f"short_weight is {share:g}; give a share from 0 to below 1", "short_weight")
    weights = {trained: share, target: 1 - share} if share and trained < target else {target: 1.0}
    return Objective(weights, target, trained)
