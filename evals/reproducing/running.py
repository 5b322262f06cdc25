"""Runs the arms of a reproduction, one after the other, and writes what they say after each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import CheckpointError, DataError
from ...output.formatting import markdown
from ..parallel.processes import world
from ..running.progress import Notes, duration
from .comparisons import Records
from .experiments.arms import Arm
from .experiments.plan import arms, chosen
from .experiments.room import Room
from .experiments.setting import Setting
from .results import Reproduction


@dataclass(frozen=True)
class Reproducing:
    """The arms that are asked for, in a folder.

    Args:
        out: the folder.
        only: names of arms; none for all.
        setting: what is reproduced.
        notes: tells how it goes.
    """

    out: Path
    only: Sequence[str] = ()
    setting: Setting = field(default_factory=Setting)
    notes: Notes = field(default_factory=Notes)

    @property
    def room(self) -> Room:
        """The folder, with what its arms share."""
        return Room(self.out, self.setting, self.notes)

    def arms(self) -> list[Arm]:
        """Returns the arms that are asked for, in order.

        Raises:
            DataError: there is no arm of a name.
        """
        return chosen(arms(self.setting), self.only)

    def listed(self) -> str:
        """Returns a table of the arms: what they are, how long each takes on one core, and which are finished."""
        room, found = self.room, self.arms()
        rows = [
            [arm.name, arm.about, duration(arm.seconds(room)).removeprefix("about "), _state(arm, room)]
            for arm in found
        ]
        return f"{markdown(['arm', 'what it is', 'on one core', 'state'], rows)}\n\n{self._time(found)}"

    def run(self) -> Reproduction | None:
        """Runs what is not finished, in order; after each arm the results are written.

        Returns:
            What was measured so far; None where models were made alone.

        Raises:
            RopescaleError: something that cannot be trained, measured or written.
        """
        if world().size > 1:
            raise DataError(
                "reproduce runs in one process; leave torchrun out, and start a second one with other arms "
                "(only=NAME) for another core",
                "only",
            )
        room, found = self.room, self.arms()
        for arm in found:
            arm.begin(room)
        left = [arm for arm in found if not arm.is_finished(room)]
        self.notes.tell(f"{len(found)} arms, {len(found) - len(left)} of them finished; {self._time(left)}")
        try:
            for number, arm in enumerate(left, 1):
                self._carry_out(arm, room, f"{number} of {len(left)}")
        except KeyboardInterrupt:
            self.notes.warn(f"the run stopped; what is done is kept in {self.out}; the same command continues")
            raise
        return self._written()

    def _carry_out(self, arm: Arm, room: Room, number: str) -> None:
        self.notes.tell(f"arm {number}, {arm.name}: {arm.about}; {duration(arm.seconds(room))} on one core")
        if arm.model and not room.model(arm.model).exists():
            raise CheckpointError(f"{arm.name} begins with {arm.model}, which is not there; run that arm first")
        arm.carry_out(room)
        self._written()

    def _written(self) -> Reproduction | None:
        """Writes what is known so far, as soon as anything was measured."""
        made = Reproduction.of(Records(self.room))
        if made is not None:
            made.save(self.out)
        return made

    def _time(self, found: Sequence[Arm]) -> str:
        """Says how long arms take together."""
        room = self.room
        seconds = sum(arm.seconds(room) for arm in found if not arm.is_finished(room))
        if not seconds:
            return "nothing is left to run"
        return f"{duration(seconds)} on one core (as measured on an AMD EPYC with AVX512 bf16)"


def _state(arm: Arm, room: Room) -> str:
    if arm.is_finished(room):
        return "finished"
    return "begun" if (room.out / "facts" / f"{arm.name}.json").exists() else ""
