"""The engine: one object per module, listed in :mod:`.registry`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .commands import Command
from .differences import Difference, How
from .layers import Layers
from .serving import Serving


@dataclass(frozen=True)
class Engine:
    """An engine: what it does otherwise than asked, how that is known, and how it is told.

    Attributes:
        name: as people call it.
        version: what its behaviour was checked against.
        differences: what it does otherwise for one kind of layer of a patched folder.
        how: how it is known that it honours a field for which it has no difference.
        serve: the commands to paste; empty where it cannot be told.
        way_out: what to do where it cannot serve the schedule.
        spelled: the same schedule in the engine's own keys, where it has some.
        remaining: what remains otherwise under the commands of ``serve``, where that is not ``differences``.
        in_card: whether model cards have its commands.
    """

    name: str
    version: str
    differences: Callable[[Layers], Iterable[Difference]]
    how: Callable[[Layers, str], How]
    serve: Callable[[Serving], list[Command]]
    way_out: Callable[[Layers], str]
    spelled: Callable[[Serving], Serving] = lambda serving: serving
    remaining: Callable[[Serving, Layers], Iterable[Difference]] | None = None
    in_card: bool = False

    def found(self, serving: Serving, layers: Layers) -> list[Difference]:
        """Returns what it does otherwise under its commands, for one kind of the layers that were spelled."""
        return list(self.differences(layers) if self.remaining is None else self.remaining(serving, layers))
