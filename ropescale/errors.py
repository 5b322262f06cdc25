"""The errors that ropescale raises.

::

    RopescaleError                 one sentence: what is wrong, where, what to do
    ├── ScheduleError (ValueError) a schedule, its spec or its fields
    ├── ConfigError (ValueError)   a checkpoint's or a model's configuration
    ├── CheckpointError (OSError)  files and folders
    │   └── StorageError           a disk that is full, or fails
    ├── DataError (ValueError)     documents, lengths, tokens
    ├── ServerError                a server that cannot be reached, rejects a request, or sends an invalid response
    ├── RunError                   a measurement that failed while running
    └── VerificationError          the intended table is not live, or another limit is below the target length

The command line prints the sentence after ``error:`` and exits with 2 (1 for RunError, StorageError and
VerificationError).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class WayOut:
    """One way out of an error, which was tried before it is given.

    Attributes:
        text: the words for a person, such as ``use yarn or ntk``.
        schedules: the names of schedules, each of which works instead.
        options: the parameters that make the same request work, with values.
        engine: the command-line name of another engine that works.
    """

    text: str
    schedules: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    engine: str = ""

    def also(self, other: WayOut) -> WayOut:
        """Returns the way out by both; only one of the two may name schedules."""
        text = " and ".join(filter(None, [self.text, other.text]))
        options = {**self.options, **other.options}
        engine = self.engine or other.engine
        return replace(self, text=text, schedules=self.schedules + other.schedules, options=options, engine=engine)


class RopescaleError(Exception):
    """Base of every error that ropescale raises intentionally.

    Attributes:
        fields: the parameters that the message concerns, by default those that the advice sets; the command line
            appends their options: ``(--layers)``.
        reason: what is wrong and where; the whole message, if the error has no advice as data.
        advice: the ways out, which the message lists after the reason.
    """

    def __init__(self, reason: str = "", *fields: str, advice: Sequence[WayOut] = ()) -> None:
        ways = ", or ".join(each.text for each in advice)
        super().__init__(f"{reason}; {ways}" if advice else reason)
        options = (key for way in advice if not way.schedules for key in way.options)
        self.fields = fields or tuple(dict.fromkeys(options))
        self.reason = reason
        self.advice = tuple(advice)


class ScheduleError(RopescaleError, ValueError):
    """A schedule that does not exist, does not fit the model, or returns invalid frequencies."""


class ConfigError(RopescaleError, ValueError):
    """A configuration without RoPE, or with missing or contradictory fields."""


class CheckpointError(RopescaleError, OSError):
    """A file or folder that is missing, exists already, or cannot be read or written."""


class StorageError(CheckpointError):
    """A disk that is full or fails while something is written; nothing half-written is left."""


class DataError(RopescaleError, ValueError):
    """Invalid documents, lengths or tokens: empty, too short, or with ids that the model lacks."""


class ServerError(RopescaleError):
    """A server that cannot be reached, rejects a request, or sends an invalid response."""


class RunError(RopescaleError):
    """A measurement with valid input that failed while running."""


class VerificationError(RopescaleError):
    """The model does not use the requested table, another limit is below the target length, or a run does not show a
    requirement."""
