"""The result of a search, its files, and the commands for the found schedule."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...engines import ENGINES, deviations
from ...engines.exported import applied_options, patch_command
from ...errors import CheckpointError
from ...files import Contents, Data, Json, local_path, write_checked
from ...output.formatting import Page, code_span, escaped, fenced, grid
from ...planning.plan import Plan
from ...schedules import Schedule, specs
from ...schedules.fields import PROVENANCE
from .. import checking
from ..backends.schedules import label
from ..checking import Damaged
from ..facts import AS_IS, TRUNCATION
from ..metrics import perplexity, verdicts
from ..metrics.base import Metric
from ..metrics.cells import Line, digits, percent
from ..metrics.drawing import Curves
from ..metrics.stored import Measured
from ..metrics.verdicts import worse_than_a_guess
from ..results.result import Result
from ..results.saving import Saved
from ..statistics.intervals import PERCENT, Estimate, familywise
from .metrics import FoundRow, HistoryRow, Search, verdict


def commands(model: str, schedule: str, plan: Plan, engine: str | None) -> list[str]:
    """Returns the commands that patch a folder with a schedule and, if an engine is given, export the result; or only
    the command that exports the schedule if the engine cannot use a patched folder.

    Args:
        schedule: the schedule, in the form that ``--schedule`` accepts.
        plan: the plan of the schedule.
        engine: a key of ``ENGINES``, or None.
    """
    patch = patch_command(model, schedule, plan.request)
    if engine is None:
        return [patch]
    if deviations(ENGINES[engine], plan):
        using = ["--for", engine, "--schedule", schedule, *applied_options(plan.request)]
        return [shlex.join(["ropescale", "export", model, *using])]
    return [patch, shlex.join(["ropescale", "export", "OUT", "--for", engine])]


class Finding(Metric["SearchResult", FoundRow]):
    """The searched schedule."""

    row = FoundRow
    key = "found"

    def reduce(self, stored: SearchResult) -> list[FoundRow]:
        """Returns a single row."""
        search = stored.search
        measured = stored.comparison
        changes = stored.changes()
        unmoved = search.found.point == search.checks[0].point
        guessed = worse_than_a_guess(measured)
        said = [guessed] if guessed else verdict(changes, measured.lengths, measured.texts, unmoved)
        figures = {name: [change.mean, change.low, change.high] for name, change in changes.items()}
        return [FoundRow(search.spec, search.spent, said, figures)]

    def to_markdown(self, stored: SearchResult) -> Page:
        """Returns the commands to use the schedule; `patch` warns of engines that differ."""
        return [*map(code_span, stored.commands)]


class History(Metric["SearchResult", HistoryRow]):
    """The losses during the search, by tokens spent."""

    row = HistoryRow
    key = "history"

    def reduce(self, stored: SearchResult) -> list[HistoryRow]:
        """Returns one row per trial, sorted by tokens spent."""
        search = stored.search
        rows = [HistoryRow(step.spent, step.loss, False) for step in search.steps]
        rows += [HistoryRow(check.spent, check.loss, True) for check in search.checks]
        return sorted(rows, key=lambda row: row.tokens)


FINDING = Finding()
HISTORY = History()


@dataclass(repr=False, kw_only=True)
class SearchResult(Saved):
    """A finished search.

    Attributes:
        search: the search and its result.
        comparison: the measurement of the found schedule and its baselines on held-out windows.
    """

    kind: ClassVar[str] = "search"
    metrics = (FINDING, HISTORY)

    search: Search
    comparison: Result

    @property
    def _computed(self) -> list[tuple[Metric[Any, Any], Measured]]:
        # The sentences of a search have comparisons and intervals of their own.
        others = [each for each in self.comparison.metrics if each is not verdicts.METRIC]
        return [*super()._computed, *((each, self.comparison) for each in others)]

    def to_dict(self) -> Data:
        """Returns the content of results.json."""
        measured = self.comparison.to_dict()
        measured.pop(verdicts.METRIC.key, None)
        return {**measured, **super().to_dict()}

    @property
    def _perplexities(self) -> dict[str, dict[str, float]]:
        """The perplexities of the schedules and of truncation, by length; lengths are text, as in JSON."""
        found = {}
        for schedule, points in perplexity.curves_of(self.comparison).items():
            found[self.named(schedule)] = {str(length): ppl for length, ppl, *_ in points}
        return found

    def changes(self) -> dict[str, Estimate]:
        """Returns the loss of the found schedule at the target minus those of the start, the unchanged model, and
        truncation if it was measured. The intervals hold for all of them together. They have no bounds if the same
        documents chose the schedule."""
        measured = self.comparison
        target = measured.lengths[-1]
        names = [self.search.start, AS_IS]
        if measured.truncated(target):
            names.append(TRUNCATION)
        found = {}
        ours = measured.totals(self.label, target)
        for name in names:
            change = measured.average(*ours.minus(measured.totals(name, target)), familywise(len(names)))
            found[name] = change if self.protocol["judged"] else Estimate(change.mean, None, None)
        return found

    @property
    def label(self) -> str:
        """The found schedule's label in the measurement, which is that of the start if both are the same schedule."""
        found = label(self.search.spec)
        return found if found in self.comparison.schedules else self.search.start

    @property
    def schedule(self) -> Schedule | dict[str, Schedule]:
        """The found schedule for :func:`ropescale.patch`, or a dict by layer type if the schedules of layer types
        differ."""
        return self.search.schedule

    def save(self, out: str | Path, force: bool = False) -> Path:
        """Writes the schedule's file if the name ends in ``.json``, and else the run's folder. Returns the path.

        ``--schedule`` and :func:`ropescale.patch` read this file.

        Raises:
            CheckpointError: the path cannot be written, or something else exists there.
        """
        path = local_path(out)
        if path.suffix != ".json":
            folder = super().save(path, force)
            return folder if self.search.file is None else self.save(self.search.file)
        content = specs_of(self.schedule)
        origin = {
            "made_by": "ropescale search",
            **{name: dict(getattr(self, name)) for name in ("model", "data", "protocol", "versions")},
            "tokens_spent": self.search.spent,
            "held_out_perplexity": self._perplexities,
        }
        content[PROVENANCE] = {**origin, checking.SEAL: _seal(content, origin)}
        return write_checked((json.dumps(content, indent=1) + "\n").encode(), path, check_ours)

    @property
    def command(self) -> str:
        """The command that patches the model with the schedule, or exports the schedule if the engine cannot use a
        patched folder."""
        return self.commands[0]

    @property
    def commands(self) -> list[str]:
        """The commands that patch the model with the schedule and, if an engine is given, export the result; or only
        export the schedule if the engine cannot use a patched folder."""
        from .search_space import planned_with  # late, because it imports torch

        plan = planned_with(self.search.plan, self.schedule)
        engine = self.protocol["engine"]
        named = self.search.spec if self.search.file is None else str(self.search.file)
        return commands(self.model["path"], named, plan, engine)

    def sentences(self) -> list[str]:
        """Compares the searched schedule with the baselines."""
        return FINDING.rows(self)[0].verdict

    def main_table(self) -> Page:
        """Returns the command that patches with the schedule, and a table of the perplexities at the target and at the
        trained length, and of the found schedule's changes."""
        short, *_, target = self.comparison.lengths
        found = self.named(self.label)
        ppl = self._perplexities
        changes = self.changes()
        lines = []
        for name in dict.fromkeys([found, *ppl]):
            shown = f"{TRUNCATION} (last {short:,})" if name == TRUNCATION else escaped(name)
            cells = [digits(ppl[name][str(length)], 4) for length in (target, short)]
            change = percent(changes[name]) if name in changes else ""
            lines.append([shown, *cells, "-" if name == found else change])
        said = f"Perplexity, and the difference of the found schedule at {target:,} tokens (below 0: it is better):"
        header = ["schedule", f"at {target:,}", f"at {short:,}", "difference"]
        return [fenced("sh", self.command), said, grid(header, lines, right=range(1, 4))]

    def rests_on(self) -> str:
        """Describes the fed tokens, the selection data and the judging data."""
        p = self.protocol
        source = escaped(self.data["source"])
        said = f"Searched with {self.search.spent:,} tokens in pieces of {p['target_length']:,}. "
        said += f"{len(p['held_out'])} pieces of {source} chose among {len(self.search.checks)} schedules"
        if not p["judged"]:
            return f"{said} and also measured the table, so the table is too favourable."
        simultaneous = f"{PERCENT} intervals, wide enough to hold for the whole table at once"
        return f"{said}, {len(p['judged'])} others measured the table. {simultaneous}."

    def protocol_line(self) -> str:
        """Describes the protocol of the search in sentences."""
        p = self.protocol
        start = escaped(self.search.start)
        return f"By {p['method']} over {p['numbers']} numbers from {start}, weights frozen, seed {p['seed']}."

    def _curves(self) -> Curves:
        return self.comparison._curves()

    def _lines(self) -> list[Line]:
        return self.comparison._lines()

    def _other_files(self) -> Contents:
        return self.comparison._other_files()

    def _heading(self) -> str:
        return "Search"


def specs_of(schedule: object) -> Data:
    """Returns a schedule's fields for JSON, or a dict of such fields by layer type."""
    if isinstance(schedule, dict):
        return {key: specs.to_dict(each) for key, each in schedule.items()}
    return specs.to_dict(schedule)


_LARGEST = 2**24
"""The size limit of a schedule's file, in bytes."""


def _seal(content: Json, origin: Json) -> str:
    """Returns the hash of a schedule's file with this provenance, without the hash itself."""
    known = {name: value for name, value in origin.items() if name != checking.SEAL}
    return checking.sha256(json.dumps({**content, PROVENANCE: known}, sort_keys=True).encode())


def check_ours(path: Path) -> None:
    """Checks, by provenance and hash, that a file may be replaced.

    Raises:
        CheckpointError: the file is neither empty nor an unchanged file of a search.
    """
    try:
        if not checking.content(path, _LARGEST):
            return
        content = checking.parsed(path, _LARGEST)
        origin = content.get(PROVENANCE)
        known = origin if isinstance(origin, dict) else {}
        ours = known.get("made_by") == "ropescale search"
        if ours and known.get(checking.SEAL) == _seal(content, known):
            return
        why = "was changed since a search wrote it" if ours else "was not written by a search"
    except Damaged as error:
        why = str(error)
    raise CheckpointError(f"cannot write {path}: the file there {why}; choose another name")
