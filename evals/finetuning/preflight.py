"""Checks a training before torch is imported: its folder, its schedule, its lengths."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ...checkpoints.folders import check_target
from ...checkpoints.locating import read_config
from ...checkpoints.metadata.record import original_config, read_record
from ...errors import CheckpointError, ConfigError, DataError, ScheduleError
from ...files import local_path
from ...planning.plan import Plan, make_plan
from .workspace import Workspace

if TYPE_CHECKING:
    from ...request import Request
    from .job import TrainingJob


@dataclass(frozen=True)
class Preflight:
    """A training as it is asked for.

    Attributes:
        name: the model's.
        folder: where its configuration lies; of an adapter, its base's.
        adapted: whether it is an adapter.
        request, job, out: the schedule, how it is trained, and the folder of the result.
        device: as it was asked for.
    """

    name: str
    folder: Path
    adapted: bool
    request: Request
    job: TrainingJob
    out: str | Path
    device: str | None = None

    def check(self, processes: int = 1) -> None:
        """Refuses what cannot be.

        Raises:
            RopescaleError: the model, the schedule, a length, the batch, the device or the folder of the result.
        """
        if self.adapted:
            raise DataError(f"{self.name} is an adapter; give its base, or merge it first")
        shared = [name for name in ("FSDP", "DEEPSPEED") if os.environ.get(f"ACCELERATE_USE_{name}", "") == "true"]
        if shared:
            raise DataError(
                f"each process holds the whole model here, and accelerate is set to {shared[0]}; launch it without, or "
                "use ropescale.TrainingCallback in a script of your own"
            )
        if self.job.lora and find_spec("peft") is None:
            raise ConfigError("lora is asked for, and peft is not installed; pip install 'ropescale[adapters]'", "lora")
        if self.device not in (None, "cpu", "cuda"):
            raise DataError(
                f"device={self.device!r} cannot be chosen for a training; leave it out, and set CUDA_VISIBLE_DEVICES",
                "device",
            )
        self.job.check(self.length, processes)
        self.space.refuse_foreign()

    @cached_property
    def space(self) -> Workspace:
        """Where the training is kept, and its result.

        Raises:
            CheckpointError: the result's folder is there already, or cannot be made.
        """
        target = local_path(self.out)
        if os.path.lexists(target):
            raise CheckpointError(f"{target} exists already; choose another folder, or remove it yourself")
        return Workspace(check_target(self.folder, target))

    @cached_property
    def plan(self) -> Plan:
        """The schedule, worked out; without changes where the model's own is kept.

        Raises:
            ScheduleError: it does not fit, no file can hold it, or the model is to stay as it is and carries none.
        """
        plan = make_plan(original_config(read_config(self.folder), self.folder), self.request)
        if not plan.changes and read_record(self.folder) is None:
            raise ScheduleError(
                f"{self.name} carries no schedule that ropescale put there, and none is given; name one, such as "
                "schedule='yarn:factor=8'",
                "schedule",
            )
        if plan.unsavable:
            raise ScheduleError(f"the result could not be saved: {plan.unsavable}", "freeze_at")
        return plan

    @cached_property
    def meant(self) -> int:
        """The length that the schedule is for."""
        record = read_record(self.folder)
        return record.length if record is not None and not self.plan.changes else self.plan.length

    @property
    def length(self) -> int:
        """The positions that windows reach: those that are asked for, or those that the schedule is for."""
        return self.meant if self.job.length is None else self.job.length

    def remarks(self) -> list[str]:
        """Returns what is not wrong, and should be known before hours of work."""
        said = []
        if self.length < self.meant:
            said.append(
                f"windows reach {self.length:,} positions, and the schedule is for {self.meant:,}: nothing beyond "
                f"{self.length:,} is trained"
            )
        if self.length > self.meant:
            said.append(f"windows reach {self.length:,} positions, beyond the {self.meant:,} that the schedule is for")
        recipe, steps = self.job.recipe, self.job.steps
        if steps <= recipe.warmup:
            share = recipe.share(steps - 1, steps)
            said.append(
                f"the warm-up takes {recipe.warmup:,} steps, and there are {steps:,}: the rate ends at {share:.0%} of "
                "its peak; warmup=N makes it shorter"
            )
        return said
