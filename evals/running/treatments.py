"""A schedule as a treatment of a model: applied, frozen at a length, and taken out again bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from ...errors import DataError

AS_IS = "as-is"


@dataclass(frozen=True)
class Treatment:
    """A schedule and what it is called in the results."""

    label: str
    schedule: Any

    def applied(self, model: Any, patching: dict[str, Any], length: int | None = None) -> AbstractContextManager[Any]:
        """The model under this schedule inside, as it was afterwards; frozen at ``length`` where given."""
        if self.label == AS_IS and length is None:
            return nullcontext()
        from ...models.patching import patch

        return patch(model, self.schedule, length=length, **patching)

    def depends_on_length(self, model: Any, patch: Any) -> bool:
        """Whether the tables follow the length: the patch says so, or (as it is) a patch that was there before, or
        transformers, which recomputes the tables of ``dynamic`` and ``longrope`` inside forward and keeps state."""
        if patch is not None:
            return bool(patch.length_dependent)
        return any(outer.length_dependent for outer in patches_in(model)) or _updates_itself(model)


def treatments(schedules: Iterable[Any], baseline: Any = None) -> tuple[list[Treatment], str]:
    """``as-is``, the given schedules and the baseline, each once, and the baseline's label.

    Raises:
        ScheduleError: a spec that cannot be read.
        DataError: two different schedules that would have the same label.
    """
    given = [schedules] if isinstance(schedules, str) else list(schedules)
    found: dict[str, Treatment] = {}
    for schedule in [AS_IS, *given, *([] if baseline is None else [baseline])]:
        treatment = Treatment(label(schedule), schedule)
        same = found.setdefault(treatment.label, treatment).schedule
        if callable(same) and callable(schedule) and same != schedule:
            raise DataError(f"two different schedules are both called {treatment.label!r}; give them different names")
    return list(found.values()), AS_IS if baseline is None else label(baseline)


def label(schedule: Any) -> str:
    """A schedule's spec on one line, with the fields that were given: ``yarn:factor=8``.

    Raises:
        ScheduleError: a spec that cannot be read.
    """
    from ...schedules import specs

    parsed = specs.parse(schedule)
    if isinstance(parsed, dict):
        return json.dumps({layers: spec.text for layers, spec in parsed.items()})
    return parsed.text


def patches_in(model: Any) -> Sequence[Any]:
    """The patches that the caller has put into the model and not reverted yet, oldest first."""
    from ...models import patching

    return patching.patches_in(model)


def _updates_itself(model: Any) -> bool:
    kinds = (getattr(module, "rope_type", None) for module in model.modules())
    flat = (kind for each in kinds for kind in (each.values() if isinstance(each, dict) else [each]))
    return any(isinstance(kind, str) and ("dynamic" in kind or kind == "longrope") for kind in flat)
