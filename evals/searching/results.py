"""What a search found, and how it is written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from ...errors import CheckpointError, DataError, VerificationError
from ...files import atomic
from ...files.reading import local_path
from ...planning.plan import Plan, make_plan
from ...schedules import Schedule, specs
from ...schedules.fields import PROVENANCE, parameters
from ..results.stored import ModelFacts
from .asking import Check
from .family import Point
from .space import Space

_EXACT = 1e-12
"""The largest relative difference between the tables that were learned and those of the schedule that is written."""


@dataclass(frozen=True)
class Learned:
    """A point and what it means.

    Attributes:
        plan: the schedule that the search started at, and the geometry.
        space: the numbers' meaning.
        point: the numbers.
    """

    plan: Plan
    space: Space
    point: Point

    @cached_property
    def schedule(self) -> Schedule | dict[str, Schedule]:
        """The schedule; by layer type where these differ.

        Raises:
            VerificationError: its tables are not those that were learned.
        """
        found = self.space.schedule(self.point)
        self._verify(found)
        return found

    def _verify(self, schedule: object) -> None:
        """Compares the tables that a patch with this schedule has with those that were learned, in float64."""
        request = replace(self.plan.request, spec=schedule, target_length=None)
        planned = make_plan(self.plan.original.raw, request).tables
        for key, (inv_freq, scale) in self.space.tables(torch.tensor(self.point, dtype=torch.float64)).items():
            pairs = zip([*planned[key].inv_freq, planned[key].attention_scale], [*inv_freq.tolist(), float(scale)])
            off = max(abs(written - learned) / learned if learned else abs(written) for written, learned in pairs)
            if not off <= _EXACT:
                raise VerificationError(f"the schedule's table differs from the learned one by {off:.1e} relative")


@dataclass(frozen=True)
class SearchResult:
    """A finished search.

    Attributes:
        model: what was searched for, before any schedule.
        data: the text.
        protocol: the options that decide the result.
        versions: of the packages that it depends on.
        learned: the numbers that were found.
        lengths: ascending, where the held-out text's perplexity is known.
        checks: the held-out windows, each time they were fed; the first under YaRN's default.
        found: the check that was best.
        steps: of each point that was tried on the text to learn from, the tokens fed until then, and its loss.
        spent: tokens fed in all.
    """

    model: ModelFacts
    data: Mapping[str, object]
    protocol: Mapping[str, object]
    versions: Mapping[str, str]
    learned: Learned
    lengths: tuple[int, ...]
    checks: Sequence[Check]
    found: Check
    steps: Sequence[tuple[int, float]]
    spent: int

    @property
    def schedule(self) -> Schedule | dict[str, Schedule]:
        """The schedule that was found, as :func:`ropescale.patch` takes it; by layer type where these differ."""
        return self.learned.schedule

    @property
    def spec(self) -> str:
        """The schedule on one line, with every digit: as ``--schedule`` takes it."""
        if isinstance(self.schedule, dict):
            return json.dumps({key: specs.to_dict(each) for key, each in self.schedule.items()})
        fields = specs.to_dict(self.schedule)
        if any(isinstance(value, (list, dict)) for value in fields.values()):
            return json.dumps(fields)
        usual = {key: parameter.default for key, parameter in parameters(type(self.schedule)).items()}
        given = [f"{key}={_word(value)}" for key, value in fields.items() if key != "name" and value != usual[key]]
        return ":".join([str(fields["name"]), ",".join(given)] if given else [str(fields["name"])])

    def perplexity(self, check: Check) -> dict[int, float]:
        """Returns the perplexity of the held-out windows at each length, at one of the checks."""
        windows = len(check.by_length)
        means = [sum(each) / windows for each in zip(*check.by_length, strict=True)]
        return {length: math.exp(mean) for length, mean in zip(self.lengths, means, strict=True)}

    def to_dict(self) -> dict[str, object]:
        """Returns the schedule and where it comes from, as plain data: the content of the file that is saved."""
        schedule = self.schedule
        fields = (
            {key: specs.to_dict(each) for key, each in schedule.items()}
            if isinstance(schedule, dict)
            else specs.to_dict(schedule)
        )
        return {**fields, PROVENANCE: self.provenance}

    @property
    def provenance(self) -> dict[str, object]:
        """Where the numbers come from."""
        return {
            "model": dict(self.model),
            "data": dict(self.data),
            "protocol": dict(self.protocol),
            "versions": dict(self.versions),
            "tokens_spent": self.spent,
            "held_out_perplexity": {
                "before": {str(length): ppl for length, ppl in self.perplexity(self.checks[0]).items()},
                "found": {str(length): ppl for length, ppl in self.perplexity(self.found).items()},
            },
        }

    def save(self, path: str | Path) -> Path:
        """Writes the schedule's file, which ``--schedule`` and :func:`ropescale.patch` read; returns its path.

        Raises:
            CheckpointError: it cannot be written.
        """
        target = local_path(path)
        if target.suffix != ".json":
            return target
        try:
            atomic.write(target, json.dumps(self.to_dict(), indent=1) + "\n")
        except OSError as error:
            raise CheckpointError(f"{target} cannot be written: {error.strerror or error}") from error
        return target


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def files_of(out: str | Path) -> tuple[Path, Path]:
    """Returns the schedule's file and the run's folder beside it: ``factors.json`` and ``factors-search``.

    Raises:
        DataError: the name does not end in ``.json``.
    """
    file = local_path(out)
    if file.suffix != ".json":
        raise DataError(f"out {str(out)!r} is not the name of a schedule's file; give one like factors.json", "out")
    return file, file.with_name(f"{file.stem}-search")
