"""Rotary tables frozen at a length, of a loaded model or of a server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ...errors import RunError
from ...output.formatting import names_of
from ...schedules import specs
from ...schedules.specs import file_of

if TYPE_CHECKING:
    from ..facts import LayerTable


@dataclass(frozen=True)
class HeldTables:
    """The rotary tables of a variant, frozen at a length.

    Attributes:
        variant: the model under a schedule, loaded or served.
        frozen_at: the length; None if the tables do not depend on the length.
        rotation: a hash of everything that the schedule determines; equal hashes mean equal outputs.
        table_sha256: the hash of the tables that the results show.
        figures: the tables by layer type, for the results.
    """

    variant: WithTables
    frozen_at: int | None
    rotation: str
    table_sha256: str
    figures: dict[str, LayerTable] = field(repr=False)

    @contextmanager
    def live(self) -> Iterator[None]:
        """Makes the tables live inside the ``with`` block, and verifies at its end that they are still live."""
        with self.variant.applied(self.frozen_at):
            yield
            self.check()

    def check(self) -> None:
        """Verifies that the tables are still live.

        Raises:
            RunError: the tables have changed, so the scores are invalid.
        """
        if self.variant.rotation != self.rotation:
            raise RunError(
                f"the rotary tables changed while {self.variant.label} was measured; a schedule, or code in the "
                "model, that changes them by itself cannot be measured"
            )


def passes_of(held: Mapping[int, HeldTables]) -> list[tuple[HeldTables, tuple[int, ...]]]:
    """Returns the distinct tables, each with the lengths that one pass measures, ascending.

    Args:
        held: the tables by length, ascending.
    """
    lengths: dict[str, tuple[int, ...]] = {}
    for length, tables in held.items():
        lengths[tables.rotation] = (*lengths.get(tables.rotation, ()), length)
    return [(held[each[-1]], each) for each in lengths.values()]


class WithTables(Protocol):
    """A schedule of a loaded model or of a server."""

    @property
    def label(self) -> str:
        """The schedule's name in the results."""
        ...

    @property
    def asked(self) -> specs.ParsedSpec:
        """The parsed schedule."""
        ...

    @property
    def rotation(self) -> str:
        """A hash of the current values of everything that the schedule determines."""
        ...

    def applied(self, length: int | None = None) -> AbstractContextManager[object]:
        """Applies the schedule inside the ``with`` block, frozen at ``length`` if given."""
        ...

    def tables(self, lengths: Iterable[int]) -> Mapping[int, HeldTables]:
        """Returns the tables at each length, or the same object for all lengths if the tables do not depend on them."""
        ...


def names_for(made: Iterable[WithTables]) -> dict[str, dict[str, str]]:
    """Returns the short names of schedules from files, for the protocol; empty if no schedule is from a file."""
    files = {each.label: file for each in made if (file := file_of(each.asked))}
    return {"named": names_of(files)} if files else {}
