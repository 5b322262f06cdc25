"""The commands that patch a checkpoint with a schedule, and export it for an engine."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from ...engines.exported import applied_options
from ...output.formatting import argument
from ...request import Request, RequestOptions


@dataclass(frozen=True)
class Deployment:
    """The checkpoint and the engine that the commands are for.

    Attributes:
        model, revision: the checkpoint's folder or name, and its revision.
        request: how schedules were applied, such as ``layers``.
        engine: the target engine; None without one.
    """

    model: str
    revision: str | None
    request: RequestOptions
    engine: str | None

    def command(self, schedule: str, target: int) -> str:
        """Returns the ``ropescale patch`` command of a schedule."""
        words = ["ropescale", "patch", argument(self.model), "-o", self._folder(target), "--schedule", schedule]
        words += [] if self.revision is None else ["--revision", self.revision]
        return shlex.join([*words, *applied_options(Request.of(schedule, **self.request))])

    def following(self, target: int) -> str:
        """Returns the ``ropescale export`` command for the patched folder; "" without an engine."""
        words = ["ropescale", "export", self._folder(target), "--for"]
        return "" if self.engine is None else shlex.join([*words, self.engine])

    def _folder(self, target: int) -> str:
        length = f"{target // 1024}k" if target >= 1024 and target % 1024 == 0 else target
        return argument(f"{Path(self.model).name or 'model'}-{length}")
