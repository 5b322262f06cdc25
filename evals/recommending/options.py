"""The options of a recommendation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from ...errors import DataError
from ..running.keywords import TextKeywords
from ..running.options import TextOptions
from ..running.selection import PerplexityOptions
from .candidates import Wish
from .deployment import parse_memory
from .race import TOLERANCE


@dataclass(frozen=True)
class RecommendOptions(Wish, TextOptions):
    """The options of a recommendation.

    Attributes:
        short_weight: weight of the loss at the trained length beside that at the target, from 0 to below 1.
        lengths: weights of the losses by length instead, such as ``"2k:0.7,32k:0.3"``.
        schedules: further schedules to try, as specs; they reach the text that decides in any case.
        search: try the schedule that :func:`ropescale.evals.search` finds on the text of the race, too.
        search_tokens: how many tokens that search may feed; its own default when None.
        engine: leave out what this engine would not compute as asked; see ``ropescale export``.
        memory: bytes, or text such as ``"8GB"``: say the largest length that fits.
        tolerance: nats per token below which two schedules are equally good.
        min_tokens, max_docs, score, windows, budget_tokens, split_special_tokens, batch_tokens, logits_bytes,
            truncation, truncation_stride, source, path, progress: as for
            :class:`ropescale.evals.running.selection.PerplexityOptions`.
        patching: keyword arguments of :func:`ropescale.patch`, such as ``layers``.
        name: the model in the commands that are printed; its path when None.
        revision: branch, tag or commit, for these commands.
    """

    search: bool = False
    search_tokens: int | None = None
    memory: str | int | None = None
    tolerance: float = TOLERANCE
    name: str | None = None
    revision: str | None = None

    def __post_init__(self) -> None:
        if not self.tolerance > 0:
            raise DataError(f"tolerance is {self.tolerance:g} nats; give a number above 0", "tolerance")
        if self.search_tokens is not None and not self.search:
            raise DataError("search_tokens is given, and nothing is searched; add search", "search_tokens", "search")
        if self.memory is not None:
            object.__setattr__(self, "memory", parse_memory(self.memory))
        object.__setattr__(self, "schedules", tuple(self.schedules))

    @property
    def reading(self) -> PerplexityOptions:
        """How the text is read and fed."""
        given = {each.name: getattr(self, each.name) for each in fields(TextOptions)}
        return PerplexityOptions(short_context=False, **given)


class RecommendKeywords(TextKeywords, total=False):
    """The fields of :class:`RecommendOptions`, for editors and type checkers."""

    short_weight: float | None
    lengths: str | Mapping[int | str, float] | None
    schedules: Sequence[str]
    search: bool
    search_tokens: int | None
    engine: str | None
    memory: str | int | None
    tolerance: float
    name: str | None
    revision: str | None
