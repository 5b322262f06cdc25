"""The result of a search, its files, and the commands for the found schedule."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import torch

from ...engines import ENGINES, deviations, engine_warnings
from ...engines.exported import applied_options
from ...errors import CheckpointError, VerificationError
from ...files import local_path, writable_file, write_checked
from ...output.formatting import cut, escaped
from ...planning.plan import Plan, make_plan
from ...schedules import Schedule, specs
from ...schedules.fields import PROVENANCE, parameters
from .. import checking
from ..checking import Wrong
from ..metrics.stored import AS_IS
from ..results.saving import Saved, csv_file, sentences_of
from ..statistics.intervals import PERCENT
from .metrics import (
    CHANGES,
    FINDING,
    FOUND,
    HELD_OUT,
    HISTORY,
    METRICS,
    TRUNCATION,
    Divided,
    HistoryRow,
    Searched,
)
from .options import schedule_file
from .search_space import Point, Space


def commands(model: str, schedule: str, plan: Plan, engine: str | None) -> list[str]:
    """Returns the commands that patch a folder with a schedule, and export it for an engine.

    Args:
        schedule: the schedule, as ``--schedule`` takes it.
        plan: its plan.
        engine: a key of ``ENGINES``.
    """
    patch = patch_command(model, schedule, plan)
    if engine is None:
        return [patch]
    if not deviations(ENGINES[engine], plan):  # the engine computes a patched folder as planned
        return [patch, shlex.join(["ropescale", "export", "OUT", "--for", engine])]
    words = ["ropescale", "export", model, "--for", engine, "--schedule", schedule]
    return [shlex.join([*words, *applied_options(plan.request)])]


def patch_command(model: str, schedule: str, plan: Plan) -> str:
    """Returns the ``ropescale patch`` command for a schedule, with the options of its plan."""
    words = ["ropescale", "patch", model, "-o", "OUT", "--schedule", schedule]
    return shlex.join([*words, *applied_options(plan.request)])


_EXACT = 1e-12
"""The largest relative difference between the learned tables and those of the written schedule."""


_SAVED = {AS_IS: "as_is", FOUND: FOUND, TRUNCATION: TRUNCATION}
"""The names of the curves in the schedule's file; the start's is "before"."""


@dataclass(frozen=True)
class Learned:
    """A point of a search space.

    Attributes:
        plan: the plan of the starting schedule.
        space: the search space.
        point: the learned numbers.
    """

    plan: Plan
    space: Space
    point: Point

    @cached_property
    def schedule(self) -> Schedule | dict[str, Schedule]:
        """The schedule; by layer type if these differ.

        Raises:
            VerificationError: its tables differ from the learned ones.
        """
        found = self.space.schedule(self.point)
        planned = self.planned(found).tables
        for key, (inv_freq, scale) in self.space.tables(torch.tensor(self.point, dtype=torch.float64)).items():
            pairs = zip([*planned[key].inv_freq, planned[key].attention_scale], [*inv_freq.tolist(), float(scale)])
            off = max(abs(written - learned) / learned if learned else abs(written) for written, learned in pairs)
            if not off <= _EXACT:
                raise VerificationError(f"the schedule's table differs from the learned one by {off:.1e} relative")
        return found

    @property
    def tables(self) -> dict[str, Divided]:
        """The frequencies by layer type: the model's own, the starting ones, and the found ones."""
        start, found = (
            self.space.tables(torch.tensor(point, dtype=torch.float64)) for point in (self.space.start, self.point)
        )
        own = {key: layer.rope.inv_freq() for key, layer in self.plan.layers.items()}
        return {key: (own[key], start[key][0].tolist(), found[key][0].tolist()) for key in own}

    def planned(self, schedule: object) -> Plan:
        """Plans patching the model with the schedule."""
        return make_plan(self.plan.original.raw, replace(self.plan.request, spec=schedule, target_length=None))


@dataclass(repr=False)
class SearchResult(Searched, Saved):
    """A finished search; :class:`.metrics.Searched` has its numbers.

    Attributes:
        learned: the learned point and its space.
        file: the file for the schedule when the run is saved; None without one.
    """

    kind: ClassVar[str] = "search"
    metrics = METRICS

    learned: Learned
    file: Path | None = None

    @property
    def schedule(self) -> Schedule | dict[str, Schedule]:
        """The searched schedule for :func:`ropescale.patch`; per layer type if these differ."""
        return self.learned.schedule

    def perplexity(self, name: str) -> dict[int, float]:
        """Returns the perplexity at each length of a schedule in ``curves``."""
        return {n: math.exp(sum(values) / len(values)) for n, values in self.curves[name].items()}

    @property
    def provenance(self) -> dict[str, object]:
        """The origin of the numbers, as in the schedule's file."""
        curves = {_SAVED.get(name, "before"): self.perplexity(name) for name in self.curves}
        return {
            "made_by": "ropescale search",
            **{name: dict(getattr(self, name)) for name in ("model", "data", "protocol", "versions")},
            "tokens_spent": self.spent,
            "held_out_perplexity": {name: {str(n): ppl for n, ppl in each.items()} for name, each in curves.items()},
        }

    def save(self, out: str | Path, force: bool = False, files: Mapping[str, bytes] = MappingProxyType({})) -> Path:
        """Writes the schedule's file, if the name ends in ``.json``; else the run's folder. Returns its path.

        The file is what ``--schedule`` and :func:`ropescale.patch` read.

        Raises:
            CheckpointError: it cannot be written, or something else exists there.
        """
        path = local_path(out)
        if path.suffix != ".json":
            folder = Saved.save(self, path, force, files)
            return folder if self.file is None else self.save(self.file)
        content, origin = specs_of(self.schedule), self.provenance
        content[PROVENANCE] = {**origin, checking.SEAL: _seal(content, origin)}
        return write_checked((json.dumps(content, indent=1) + "\n").encode(), path, check_ours)

    @property
    def command(self) -> str:
        """The command that patches the model with the schedule."""
        return patch_command(self.model["path"], self._named, self.learned.plan)

    @property
    def commands(self) -> list[str]:
        """The commands to use the schedule: patching, and with an engine, exporting."""
        plan, engine = self.learned.planned(self.schedule), self.protocol["engine"]
        return commands(self.model["path"], self._named, plan, engine if isinstance(engine, str) else None)

    @property
    def _named(self) -> str:
        """The schedule's spec for commands."""
        return self.spec if self.file is None else str(self.file)

    @property
    def remarks(self) -> list[str]:
        """Remarks on using the schedule: deviating engines, and the switch between two tables."""
        switch = (
            "a cache that was filled within the trained length keeps the angles of its keys, and decoding past that "
            "length continues with the other table; transformers does not warn of it, so start long contexts beyond it"
        )
        plan = self.learned.planned(self.schedule)
        return [*([switch] if self.protocol["keep_short"] else []), *engine_warnings(plan)]

    def to_markdown(self) -> str:
        """Returns the schedule, the held-out figures, the commands to use it, and remarks."""
        remarks = "\n".join(
            f"* {escaped(remark)}".replace("\\`", "`") for remark in self.remarks
        )  # backticks mark code
        following = [f"`{each}`" for each in self.commands]
        return "\n\n".join(filter(None, [*self.tables_of_metrics(), *following, remarks, self.protocol_line()]))

    def sentences(self) -> list[str]:
        """Compares the searched schedule with the baselines."""
        return sentences_of(" ".join(FINDING.rows(self)[0].said))

    def main_table(self) -> str:
        """Returns the schedule, the command that patches with it, and the held-out perplexities."""
        return "\n\n".join([f"`{self.spec}`", f"```sh\n{self.command}\n```", HELD_OUT.brief(self)])

    def rests_on(self) -> str:
        """Describes the fed tokens, the selection data and the judging data."""
        return f"{self.spent:,} tokens in {self._fed}. {self._judged}."

    def protocol_line(self) -> str:
        """Returns sentences on the protocol of the search."""
        p, start = self.protocol, escaped(self.start)
        beside = f", and {self.beside:,} more to measure it" if self.beside else ""
        truncation = ""
        if TRUNCATION in self.curves:
            truncation = f"; truncation: the unchanged model on only the last {self.lengths[0]:,} tokens"
            truncation += f", stride {p['truncation_stride']:,}" if self.held == "text" else ""
        return (
            f"Searched by {p['method']} over {p['numbers']} numbers from {start}, weights frozen: {self.spent:,} "
            f"tokens in {self._fed}{beside}, seed {p['seed']}. {self._judged}{truncation}; "
            f"text sha256 {self.data['sha256'][:12]}"
        )

    @property
    def _judged(self) -> str:
        """Describes the selection data, the judging data, and the level of the intervals."""
        p, source = self.protocol, escaped(self.data["source"])
        held = "windows" if self.held == "text" else "sets of prompts, one of each length,"
        chose = f"Of {source}, {len(p['held_out'])} {held} chose among {len(self.checks)} checks"
        if not self.proved:
            return f"{chose}, and the table uses the same ones, so it is too favourable"
        together = len({row.baseline for row in CHANGES.rows(self)})
        return (
            f"{chose}; the table uses {len(p['judged'])} others, with {PERCENT} intervals over these; the intervals of "
            f"changes hold for all {together} at a length together"
        )

    @property
    def _fed(self) -> str:
        if self.held == "text":
            return f"windows of {self.protocol['target_length']:,}"
        return f"prompts of up to {self.protocol['target_length']:,} (only their answers count)"

    def _summary(self) -> str:
        return (
            f"{Path(self.model['path']).name}: {cut(self.spec, 120)}; {self.protocol['method']}, {self.spent:,} tokens"
        )

    def _other_files(self) -> dict[str, bytes]:
        return {"history.csv": csv_file(HistoryRow, HISTORY.rows(self))}

    def _source(self) -> str:
        return ""

    def _heading(self) -> str:
        return "Search"


def specs_of(schedule: object) -> dict[str, object]:
    """Returns a schedule's fields as JSON has them; by layer type if there are several."""
    if isinstance(schedule, dict):
        return {key: specs.to_dict(each) for key, each in schedule.items()}
    return specs.to_dict(schedule)


def spec_line(schedule: object) -> str:
    """Returns a schedule on one line with every digit, as ``--schedule`` takes it; long lists as JSON."""
    if isinstance(schedule, dict):
        return json.dumps(specs_of(schedule))
    given = specs_of(schedule)
    if any(isinstance(value, (list, dict)) for value in given.values()):
        return json.dumps(given)
    usual = {key: parameter.default for key, parameter in parameters(type(schedule)).items()}
    said = [
        f"{key}={str(value).lower() if isinstance(value, bool) else repr(value)}"
        for key, value in given.items()
        if key != "name" and value != usual[key]
    ]
    return ":".join(filter(None, [str(given["name"]), ",".join(said)]))


def files_of(out: str | Path) -> tuple[Path, Path]:
    """Returns the schedule's file and the run's folder beside it: ``factors.json`` and ``factors-search``.

    Raises:
        DataError: the name does not end in ``.json``.
        CheckpointError: the file there is not one of ours, or the folder holds files that no search wrote.
    """
    file = schedule_file(out)
    writable_file(file, check_ours)
    return file, SearchResult.writable_folder(file.with_name(f"{file.stem}-search"))


_LARGEST = 2**24
"""The largest size of a schedule's file, in bytes."""


def _seal(content: Mapping[str, object], origin: Mapping[str, object]) -> str:
    """Returns the hash of a schedule's file with this provenance, without the hash itself."""
    known = {name: value for name, value in origin.items() if name != checking.SEAL}
    return checking.sha256(json.dumps({**content, PROVENANCE: known}, sort_keys=True).encode())


def check_ours(path: Path) -> None:
    """Refuses to replace a file that no search wrote, or that was changed later, by provenance and hash.

    Raises:
        CheckpointError: the file is neither empty nor an unchanged schedule's file.
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
    except Wrong as error:
        why = str(error)
    raise CheckpointError(f"cannot write {path}: the file there {why}; choose another name")
