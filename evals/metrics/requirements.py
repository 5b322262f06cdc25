"""Requirements on a measurement, such as ``yarn:factor=8 cost<=0.05 at 4k``, judged as verdicts are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...errors import DataError
from ...lengths import parse_length
from ...output.formatting import brief
from ..facts import AS_IS
from ..statistics.intervals import Average, familywise
from .stored import Stored
from .verdicts import METRIC, WHOLE, effect, too_few, worse_than_a_guess

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_FORM = re.compile(rf"(.*\S)\s+(?:cost\s*<=\s*({_NUMBER})|gain\s*>=\s*({_NUMBER}))\s+at\s+(\S+)", re.ASCII | re.DOTALL)

_EXAMPLES = "'yarn:factor=8 cost<=0.05 at 4k' or 'yarn:factor=8 gain>=0.5 at 32k' (nats against as-is)"


@dataclass(frozen=True)
class Requirement:
    """The largest change of a schedule's loss from the unchanged model's at a length.

    Attributes:
        text: the requirement as it was written.
        most: the change in nats in the average document; a required gain is a change of at most minus the gain.
    """

    text: str
    schedule: str
    most: float
    length: int


def read_requirement(text: str) -> Requirement:
    """Reads ``SCHEDULE cost<=NATS at LENGTH`` or ``SCHEDULE gain>=NATS at LENGTH``.

    Raises:
        DataError: the text has another form.
    """
    found = _FORM.fullmatch(text.strip())
    if not found:
        raise DataError(f"the requirement {brief(text)} cannot be read; write it like {_EXAMPLES}", "require")
    schedule, cost, gain, length = found.groups()
    most = float(cost) if cost else -float(gain)
    return Requirement(" ".join(text.split()), schedule, most, parse_length(length))


def unmet(stored: Stored, texts: Iterable[str]) -> list[str]:
    """Returns a line for every requirement that the measurement does not show, with what it shows.

    A requirement is shown if the whole interval of the change keeps it, and the mean over all tokens does, too. The
    intervals hold together with those of the verdicts, and there are none below ten documents.

    Raises:
        DataError: a requirement cannot be read, or its schedule or length was not measured.
    """
    wanted = [_measured(stored, read_requirement(text)) for text in texts]
    changes = _changes(stored, wanted)
    no_verdict, lines = stored.unfinished or worse_than_a_guess(stored), []
    for each in wanted:
        change = changes[each.schedule, each.length]
        is_shown = change.high is not None and max(change.high, change.per_token) <= each.most
        if no_verdict or not is_shown:
            lines.append(f"not shown: {each.text}: {no_verdict or _shown_instead(change, each)}")
    return lines


def _measured(stored: Stored, wanted: Requirement) -> Requirement:
    """Returns the requirement with the label of its schedule, which may be named by the short name of its file."""
    labels = {stored.named(label): label for label in stored.schedules}
    label = labels.get(wanted.schedule, wanted.schedule)
    for each in (label, AS_IS):
        stored.refuse_unmeasured(each, wanted.length)
    return replace(wanted, schedule=label)


def _changes(stored: Stored, wanted: Iterable[Requirement]) -> dict[tuple[str, int], Average]:
    """Returns the change against the unchanged model at every required place."""
    rows = METRIC.rows(stored)
    places = {(row.schedule, row.length) for row in rows if (row.against, row.tokens) == (AS_IS, WHOLE)}
    required = {(each.schedule, each.length) for each in wanted}
    comparisons = len(rows) + len(required - places)
    level = familywise(stored.groups * comparisons)
    changes = {}
    for schedule, length in required:
        difference = stored.totals(schedule, length).minus(stored.totals(AS_IS, length))
        changes[schedule, length] = stored.average(*difference, level)
    return changes


def _shown_instead(change: Average, wanted: Requirement) -> str:
    """Describes the change that does not show a requirement."""
    few = too_few(change.documents)
    if not change.documents:
        return few
    said = f"it {effect(change, 'gains', 'costs', f'at {wanted.length:,} tokens', few)}"
    if change.high is not None and change.high <= wanted.most:
        said += f"; over all tokens the loss changes by {change.per_token:+.3g}"
    return f"{said}; {few}" if few else said
