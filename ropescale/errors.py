"""The errors that ropescale raises.

::

    RopescaleError                 one sentence: what is wrong, where, what to do
    ├── ScheduleError (ValueError) a schedule, its spec or its fields
    ├── ConfigError (ValueError)   a checkpoint's or a model's configuration
    ├── CheckpointError (OSError)  files and folders
    ├── DataError (ValueError)     documents, lengths, tokens
    ├── ServerError                a server that cannot be reached, refuses, or answers what cannot be used
    ├── RunError                   a measurement or an upload that failed while it ran
    └── VerificationError          the intended table is not live, or a limit stops before its length

The command line prints the sentence after ``error:`` and exits with 2 (1 for RunError and VerificationError).
"""

from __future__ import annotations


class RopescaleError(Exception):
    """Base of every error that ropescale raises on purpose.

    Attributes:
        fields: the parameters that the sentence is about; the command line puts its options for them after the
            sentence: ``(--layers)``.
    """

    def __init__(self, message: str = "", *fields: str) -> None:
        super().__init__(message)
        self.fields = fields


class ScheduleError(RopescaleError, ValueError):
    """A schedule that does not exist, does not fit, or returns nonsense."""


class ConfigError(RopescaleError, ValueError):
    """A configuration without RoPE, with fields missing, or that contradicts itself."""


class CheckpointError(RopescaleError, OSError):
    """A file or folder that is missing, exists already, or cannot be written."""


class DataError(RopescaleError, ValueError):
    """Documents that are empty, too short, or hold ids the model does not have."""


class ServerError(RopescaleError):
    """A server that cannot be reached, refuses, or answers what cannot be used."""


class RunError(RopescaleError):
    """A measurement or an upload whose input was fine and that failed while it ran."""


class VerificationError(RopescaleError):
    """The table that was asked for is not the one the model uses, or another limit stops before its length."""
