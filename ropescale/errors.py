"""The errors that ropescale raises.

::

    RopescaleError                 one sentence: what is wrong, where, what to do
    ├── ScheduleError (ValueError) a schedule, its spec or its fields
    ├── ConfigError (ValueError)   a checkpoint's or a model's configuration
    ├── CheckpointError (OSError)  files and folders
    ├── DataError (ValueError)     documents, lengths, tokens
    ├── ServerError                a server that cannot be reached, rejects a request, or sends an invalid response
    ├── RunError                   a measurement or an upload that failed while running
    └── VerificationError          the intended table is not live, or another limit is below the target length

The command line prints the sentence after ``error:`` and exits with 2 (1 for RunError and VerificationError).
"""

from __future__ import annotations


class RopescaleError(Exception):
    """Base of every error that ropescale raises intentionally.

    Attributes:
        fields: the parameters that the message concerns; the command line appends their options: ``(--layers)``.
    """

    def __init__(self, message: str = "", *fields: str) -> None:
        super().__init__(message)
        self.fields = fields


class ScheduleError(RopescaleError, ValueError):
    """A schedule that does not exist, does not fit the model, or returns invalid frequencies."""


class ConfigError(RopescaleError, ValueError):
    """A configuration without RoPE, or with missing or contradictory fields."""


class CheckpointError(RopescaleError, OSError):
    """A file or folder that is missing, exists already, or cannot be read or written."""


class DataError(RopescaleError, ValueError):
    """Invalid documents, lengths or tokens: empty, too short, or with ids that the model lacks."""


class ServerError(RopescaleError):
    """A server that cannot be reached, rejects a request, or sends an invalid response."""


class RunError(RopescaleError):
    """A measurement or an upload with valid input that failed while running."""


class VerificationError(RopescaleError):
    """The model does not use the requested table, or another limit is below the target length."""
