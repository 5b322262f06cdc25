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
from ..schedules.fields import plain


@dataclass(frozen=True)
class PlannedLayer:
    """A layer type that changes.

    Attributes:
        there: the geometry in the configuration.
        rope: the geometry that the schedule builds on.
        asked: the requested schedule.
        freeze_at: the length in tokens at which a length-dependent schedule is frozen.
    """

    there: Rope
    rope: Rope
    asked: Schedule
    freeze_at: int | None = None
    _tables: dict[int, Frequencies] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def is_frozen(self) -> bool:
        """Whether the schedule is replaced by its table at one length."""
        return self.freeze_at is not None and length_dependent(self.asked)

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule that changes the layers: the requested one, or its frozen table."""
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
        """The factor of the schedule, or of the schedule inside it."""
        factor = plain(getattr(innermost(self.schedule), "factor", 1.0))
        if isinstance(factor, int) and factor > LONGEST:
            return math.inf  # an integer of hundreds of digits is no float
        return float(factor) if isinstance(factor, (int, float)) else 1.0

    @property
    def reach(self) -> int:
        """The trained length times the factor, in tokens.

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

    def stretches_by_one(self, length: int) -> bool:
        """Whether its factor is 1, so that the model computes what it computed before."""
        factor = getattr(innermost(self.schedule), "factor", 0)
        if self.there.is_scaled or length_dependent(self.schedule) or factor != 1:
            return False
        return self.table(length).attention_scale == self.rope.table_scale and self.leaves_all(length)

    def refuse_undeclared(self, length: int) -> None:
        """Refuses a schedule that depends on the length without declaring it: it would be frozen silently.

        Built-in schedules are checked too, because they may wrap a user's own.
        """
        if length_dependent(self.schedule):
            return
        first, *others = map(self.table, (1, self.rope.original_length, length, 2 * length, 8 * length))
        if any(other != first for other in others):
            raise ScheduleError(
                f"{label_of(innermost(self.schedule))} changes its frequencies with the length without declaring it; "
                "set the class attribute length_dependent = True"
            )


def innermost(schedule: Schedule) -> Schedule:
    """Returns the innermost schedule (resonance wraps another)."""
    inner = getattr(schedule, "over", None)
    return schedule if inner is None else innermost(inner)
