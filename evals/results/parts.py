"""The part of a measurement that each of several sources has: the same stored numbers, of its documents alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TypeVar

from ..metrics.stored import DataFacts, Stored, sums_of

S = TypeVar("S", bound=Stored)
V = TypeVar("V")


def parts_of(stored: S) -> dict[str, S]:
    """Returns the measurement of each source's documents, by the source's name; nothing where there is one source."""
    sources = [each.source for each in stored.identified()]
    names = list(dict.fromkeys(sources))
    if len(names) < 2:
        return {}
    return {name: _part(stored, name, [n for n, each in enumerate(sources) if each == name]) for name in names}


def _part(stored: S, name: str, numbers: Sequence[int]) -> S:
    """Returns the part of some documents, which may have several windows each."""
    counts = stored.windows or [1] * len(stored.identified())
    starts = [0, *accumulate(counts)]
    windows = [place for number in numbers for place in range(starts[number], starts[number + 1])]
    passes = [replace(run, nll=_picked(run.nll, windows)) for run in stored.passes]
    data: DataFacts = {
        "source": name,
        "sha256": stored.data["sha256"],
        "documents": len(numbers),
        "windows": len(windows),
        "tokens": 0,
    }
    part = replace(
        stored,
        data=data,
        passes=passes,
        documents=_picked(stored.documents, windows),
        identities=_picked(stored.identities, numbers),
        windows=_picked(stored.windows, numbers),
        whole=stored.groups,
        divergences=[
            replace(each, kl=_picked(each.kl, windows), same=_picked(each.same, windows)) for each in stored.divergences
        ],
        truncation=stored.truncation and replace(stored.truncation, nll=_picked(stored.truncation.nll, windows)),
    )
    longest = max(part.passes, key=lambda run: run.lengths[-1])
    data["tokens"] = sum(sums_of(part.wanted(longest.nll))[1])
    return part


def _picked(values: Sequence[V], numbers: Sequence[int]) -> list[V]:
    return [values[number] for number in numbers] if values else []
