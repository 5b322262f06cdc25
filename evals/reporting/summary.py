"""What ``ropescale report`` prints: the sentences of each run, and the requirements that a run does not show."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import DataError
from ...output.formatting import escaped
from .page import StoredRun


def summary(runs: Sequence[StoredRun]) -> str:
    """Returns the conclusions of each run, as Markdown."""
    return "\n\n".join(filter(None, (_named(run, "\n".join(run.sentences), len(runs) > 1) for run in runs)))


def not_shown(runs: Sequence[StoredRun], requirements: Sequence[str]) -> list[str]:
    """Returns a line for every requirement that a run does not show.

    Raises:
        DataError: a requirement cannot be read, its schedule or length was not measured, or a run has no losses.
    """
    lines: list[str] = []
    for run in runs if requirements else ():
        if run.result is None:
            raise DataError(f"{run.folder} is a {run.kind} run, without losses to judge; give a run of `eval`")
        lines += [_named(run, line, len(runs) > 1) for line in run.result.unmet(requirements)]
    return lines


def _named(run: StoredRun, text: str, several: bool) -> str:
    """Returns a text about a run, after the run's name if there are several."""
    return f"{escaped(run.name)}: {text}" if several and text else text
