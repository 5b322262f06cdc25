"""The engine: one object per module, listed in :mod:`..registry`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .commands import Command
from .differences import Difference, How
from .layers import Layers
from .serving import Serving


@dataclass(frozen=True)
class Engine:
    """An engine: its differences from the request, how they are known, and its commands.

    Attributes:
        name: its usual name.
        version: the version that its behaviour was checked against.
        differences: its differences for one kind of layer of a patched folder.
        how: how it is known that a field without a difference is honoured.
        serve: the commands to paste; empty if no command can express the schedule.
        way_out: the advice where it cannot serve the schedule.
        spelled: the same schedule in the engine's own keys, if any.
        remaining: the differences that remain with the commands of ``serve``, if not ``differences``.
        in_card: whether model cards show its commands.
        served_version: the version that tests serve whole models with, if they do.
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
    served_version: str = ""

    def found(self, serving: Serving, layers: Layers) -> list[Difference]:
        """Returns its differences under its commands, for one kind of layer in the engine's own keys."""
        return list(self.differences(layers) if self.remaining is None else self.remaining(serving, layers))
