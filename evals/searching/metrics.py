"""The numbers of a search, their rows, and the verdict on the found schedule.

The verdict uses intervals over documents that did not choose the schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..facts import TRUNCATION
from ..metrics.cells import percent
from ..statistics.intervals import Estimate
from .options import ENOUGH

if TYPE_CHECKING:
    from ...planning.plan import Plan
    from ...schedules import Schedule
    from .search_space import Point


FOUND = "found"
"""The searched schedule's name in tables."""


@dataclass(frozen=True)
class Trial:
    """A point and its loss.

    Attributes:
        spent: the number of tokens fed up to and including this trial.
        point: the point of the search space.
        loss: the weighted NLL in nats, averaged over the windows.
    """

    spent: int
    point: Point
    loss: float


@dataclass(frozen=True)
class Search:
    """A finished search.

    Attributes:
        start: the starting schedule.
        spec: the found schedule, in the form that ``--schedule`` accepts.
        plan: the plan of the starting schedule.
        schedule: the found schedule, or a dict by layer type if the schedules differ.
        checks: the trials on the selection windows; the first is the trial of ``start``.
        found: the check with the lowest loss.
        steps: the trials on the text to learn from.
        spent: the number of tokens that the search fed.
        file: the file to which saving the run writes the schedule, or None.
    """

    start: str
    spec: str
    plan: Plan
    schedule: Schedule | dict[str, Schedule]
    checks: Sequence[Trial]
    found: Trial
    steps: Sequence[Trial]
    spent: int
    file: Path | None = None


_STANDINGS = {-1: "better than", 0: "undecided against", 1: "worse than"}


def verdict(changes: Mapping[str, Estimate], lengths: Sequence[int], judges: int, unmoved: bool) -> list[str]:
    """Compares the searched schedule with the baselines, and recommends one.

    Args:
        changes: the loss of the searched schedule at the target minus that of each baseline; the start comes first.
        lengths: the measured lengths, from the trained length to the target.
        judges: the number of documents.
        unmoved: whether no check was better than the start.
    """
    (start, over), *others = changes.items()
    at = f"at {lengths[-1]:,} tokens"
    said = [f"The search gained nothing over its start, {start}."] if unmoved else []

    def standing(name: str, change: Estimate, remark: str = "") -> str:
        """Describes the change of the perplexity against a baseline."""
        figure = percent(change)
        if change.sign is None:
            return f"{figure} against {name}"
        cut = f" to the last {lengths[0]:,} tokens" if name == TRUNCATION else ""
        return f"{_STANDINGS[change.sign]} {name}{cut}{remark}: {figure}"

    if over.sign is None:
        shown = ", ".join(standing(*each) for each in others)
        if not unmoved:
            shown = f"{standing(start, over)}, {shown}"
        said.append(f"Not proved {at}, because the documents that measure the schedule also chose it: {shown}.")
        return [*said, f"Give {ENOUGH} documents of {lengths[-1]:,} tokens or more."]
    where = f"{at.capitalize()}, on {judges} documents not used to search"
    if unmoved:
        said.append(f"{where}, it is {', and '.join(standing(*each) for each in others)}.")
    else:
        first = standing(start, over, ", where the search started")
        said.append(f"{where}, the found schedule is {first} of perplexity.")
        said.append(f"It is {', and '.join(standing(*each) for each in others)}.")
    worse = {name: change.mean for name, change in changes.items() if change.sign == 1}
    if worse:
        said.append(f"Use {max(worse, key=worse.__getitem__)}.")
    elif over.sign == 0:
        said.append(f"Use {start}.")
    return said


@dataclass(frozen=True)
class FoundRow:
    """The found schedule, in the form that ``--schedule`` accepts, and the number of tokens that the search fed.

    ``verdict`` compares the schedule with the baselines, and names the one to use.
    ``changes`` has the loss at the target minus that of the start, of the unchanged model and of truncation, in nats,
    each with bounds that hold for all of them together. The bounds are None if the same documents chose the schedule.
    """

    spec: str
    tokens: int
    verdict: list[str]
    changes: dict[str, list[float | None]]


@dataclass(frozen=True)
class HistoryRow:
    """A loss during the search, the weighted NLL in nats, on the data to learn from or on held-out data."""

    tokens: int
    loss: float
    held_out: bool
