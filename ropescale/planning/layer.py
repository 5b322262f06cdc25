"""One layer type's schedule on the geometry that it builds on; every table is computed once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

from ..errors import ScheduleError
from ..lengths import LONGEST
from ..rope import Rope
from ..schedules import Frequencies, Schedule, Table, compute, describe
from ..schedules.base import label_of, length_dependent
from ..schedules.values import plain


@dataclass(frozen=True)
class PlannedLayer:
    """A layer type that changes.

    Attributes:
        there: the geometry that the configuration has.
        rope: the geometry that the schedule builds on.
        asked: the schedule that was asked for.
        freeze_at: the length in tokens at which it is frozen if it is length-dependent.
    """

    there: Rope
    rope: Rope
    asked: Schedule
    freeze_at: int | None = None
    _tables: dict[int, Frequencies] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def is_frozen(self) -> bool:
        """Whether the schedule becomes the fixed table that it has at one length."""
        return self.freeze_at is not None and length_dependent(self.asked)

    @cached_property
    def schedule(self) -> Schedule:
        """What changes the layers: the schedule that was asked for, or its frozen table."""
        if not self.is_frozen:
            return self.asked
        table = compute(self.asked, self.rope, self.freeze_at)
        return Table(inv_freq=tuple(table.inv_freq), attention_factor=table.attention_scale / self.rope.table_scale)

    @property
    def label(self) -> str:
        """The schedule in one line: ``dynamic:factor=4 frozen at 16384 tokens``."""
        return describe(self.asked) + (f" frozen at {self.freeze_at} tokens" if self.is_frozen else "")

    def table(self, length: int) -> Frequencies:
        """Returns the frequencies at a length in tokens."""
        if length not in self._tables:
            self._tables[length] = compute(self.schedule, self.rope, length)
        return self._tables[length]

    @property
    def stretch(self) -> float:
        """How many times longer the schedule makes the context: its factor, or that of the schedule it wraps."""
        factor = plain(getattr(innermost(self.schedule), "factor", 1.0))
        if isinstance(factor, int) and factor > LONGEST:
            return math.inf  # an integer of hundreds of digits cannot become a float
        return float(factor) if isinstance(factor, (int, float)) else 1.0

    @property
    def reach(self) -> int:
        """The context, in tokens, that the factor makes of the trained length.

        Raises:
            ScheduleError: it is longer than any context.
        """
        trained = self.rope.original_length
        length = self.stretch * trained
        if not length <= LONGEST:
            raise ScheduleError(
                f"{describe(self.schedule)} makes {length:.3g} tokens of {trained}; give a smaller factor"
            )
        return max(round(length), trained)

    def leaves_all(self, length: int) -> bool:
        """Whether every frequency stays as it is at a length."""
        return list(self.table(length).inv_freq) == self.rope.inv_freq()

    def refuse_undeclared(self, length: int) -> None:
        """Refuses a schedule that looks at the length without saying so: it would be frozen silently.

        Built-in schedules are checked too, because one that wraps another may wrap a user's own.
        """
        if length_dependent(self.schedule):
            return
        first, *others = map(self.table, (1, self.rope.original_length, length, 2 * length, 8 * length))
        if any(other != first for other in others):
            raise ScheduleError(
                f"{label_of(innermost(self.schedule))} gives other frequencies at other lengths and does not say so; "
                "set the class attribute length_dependent = True"
            )


def innermost(schedule: Schedule) -> Schedule:
    """Returns the schedule inside those that wrap another (resonance)."""
    inner = getattr(schedule, "over", None)
    return schedule if inner is None else innermost(inner)
