"""One measurement by many processes: ``torchrun --nproc_per_node N -m ropescale eval ...``.

Every process holds the whole model and scores its share of the batches. The batches are planned before they are
split, so what is fed together, and with it every number, does not depend on how many processes there are; and no
process waits for another before all of its batches are done. Then the first process gathers them by their numbers.
Objects travel over gloo, which needs no accelerator and works between machines.

Where the model is too large for one process, all of them score each batch together, and transformers shares it out
(``tp``).
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from ...errors import DataError, RopescaleError, RunError
from ...output.formatting import first_line

T = TypeVar("T")

_PATIENCE = timedelta(days=30)
"""The last process may need days longer than the first; one that dies ends the connection at once."""


@dataclass(frozen=True)
class World:
    """The number of this process, and how many there are, as the launcher says in its environment variables.

    Attributes:
        rank: from 0; the process of rank 0 leads: it alone prints and writes the results.
        size: how many processes there are, on all machines.
        local_rank: from 0 on each machine; chooses the accelerator.
        launched: whether a launcher (torchrun, accelerate) started this process at all.
        hint: tells why there is only one process, where that may surprise.
        team: how many processes share the same batches because the model is too large for one: all, or 1 where each
            has batches of its own.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    launched: bool = False
    hint: str = ""
    team: int = 1

    @property
    def writes(self) -> bool:
        """Whether this is the process of its team that keeps what the team scored."""
        return self.rank % self.team == 0

    @property
    def teams(self) -> int:
        """The number of teams that share the batches."""
        return self.size // self.team

    @property
    def leads(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.rank == 0

    def device(self, asked: str | None) -> str | None:
        """Returns the device that is asked for; else this process's own GPU, where there are several of both."""
        import torch

        if asked or self.size == 1 or not torch.cuda.is_available():
            return asked
        return f"cuda:{self.local_rank}"

    def __str__(self) -> str:
        together = f" in teams of {self.team}" if self.team > 1 else ""
        return f"{self.size} process{'es' * (self.size != 1)}{together}"


def world(environment: Mapping[str, str] = os.environ) -> World:
    """Returns the world that this process was started in.

    Raises:
        DataError: the launcher's variables hold no such numbers.
    """
    given = {name: environment.get(name, usual) for name, usual in _VARIABLES.items()}
    try:
        rank, size, local = map(int, given.values())
    except ValueError:
        rank = size = local = -1
    if not 0 <= rank < size or local < 0:
        said = ", ".join(f"{name}={value}" for name, value in given.items())
        raise DataError(f"{said} number no processes; start with torchrun, or unset these environment variables")
    accelerate = any(name.startswith("ACCELERATE_") for name in environment)
    hint = _LONELY if accelerate and size == 1 else ""
    return World(rank, size, local, accelerate or "WORLD_SIZE" in environment, hint)


_LONELY = " (on the CPU, accelerate launch starts one whatever --num_processes says; torchrun starts as many as asked)"
_VARIABLES = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}


class Group:
    """Processes that exchange objects; one process alone exchanges them with itself."""

    def __init__(self, world: World) -> None:
        self.world = world

    def from_leader(self, value: T) -> T:
        """Returns the leader's value in every process."""
        if self.world.size == 1:
            return value
        import torch.distributed as dist

        box = [value]
        with _connected():
            dist.broadcast_object_list(box, src=0)
        return box[0]

    @contextmanager
    def leader_first(self, what: AbstractContextManager[object]) -> Iterator[None]:
        """Lets the leader alone enter ``what`` before any process goes on, and leave it after all have.

        Raises:
            RopescaleError: entering failed; in every process.
        """
        with ExitStack() as stack:
            failed = None
            try:
                if self.world.leads:
                    stack.enter_context(what)
            except RopescaleError as error:
                failed = error
            failed = self.from_leader(failed)
            if failed is not None:
                raise failed
            yield

    def from_all(self, value: T) -> list[T]:
        """Returns every process's value, by rank, in every process."""
        if self.world.size == 1:
            return [value]
        import torch.distributed as dist

        found: list[Any] = [None] * self.world.size
        with _connected():
            dist.all_gather_object(found, value)
        return found

    def to_leader(self, value: T) -> list[T]:
        """Returns every process's value, by rank, in the leader; nothing in the others."""
        if self.world.size == 1:
            return [value]
        import torch.distributed as dist

        found: list[Any] | None = [None] * self.world.size if self.world.leads else None
        with _connected():
            dist.gather_object(value, found, dst=0)
        return found or []


@dataclass(frozen=True)
class Sharing:
    """How the processes, or the devices of one, share a model that is too large for one device.

    Attributes:
        tp: all processes share the model.
        device_map: the devices of one process share the model, as accelerate says.
        device: the one that was asked for.
    """

    tp: bool = False
    device_map: str | None = None
    device: str | None = None

    def teams(self, here: World) -> World:
        """Puts the processes into a team where they share the model.

        Raises:
            DataError: options that exclude each other, or a number of processes that they are not for.
        """
        given = [name for name in ("tp", "device_map") if getattr(self, name)]
        if len(given) > 1:
            raise DataError(
                f"{' and '.join(given)} are given, and share the work out in different ways; choose one", *given
            )
        if given and self.device:
            raise DataError(f"{given[0]} says itself what goes where; leave the device out", given[0], "device")
        if self.device_map and here.size > 1:
            raise DataError(
                f"device_map is for one process, and there are {here.size}; leave torchrun out, or use tp",
                "device_map",
                "tp",
            )
        if self.tp and here.size == 1:
            raise DataError(
                "tp shares the model out over several processes, and there is one; start them with "
                "torchrun --nproc_per_node N -m ropescale eval ...",
                "tp",
            )
        return dataclasses.replace(here, team=here.size) if self.tp else here


@contextmanager
def together(sharing: Sharing | None = None) -> Iterator[Group]:
    """Joins the processes that a launcher started, inside; an error that all of them meet is raised by the first."""
    here = world()
    with one_voice(here), joined((sharing or Sharing()).teams(here)) as group:
        yield group


_SILENCE = 5.0
"""Seconds until a process that has nothing to say gives up: its end makes the launcher end the one that speaks."""


@contextmanager
def one_voice(here: World) -> Iterator[None]:
    """Lets the first process alone raise an error that every process meets; one that stops a run is its process's."""
    try:
        yield
    except RopescaleError as error:
        if here.leads or isinstance(error, RunError):
            raise
        time.sleep(_SILENCE)
        raise SystemExit(2) from None  # as the command line does for wrong input


@contextmanager
def joined(world: World) -> Iterator[Group]:
    """Joins all the processes of a world, inside."""
    if world.size == 1:
        yield Group(world)
        return
    import torch
    import torch.distributed as dist

    # What carries objects, and tensors within a team where these lie on GPUs.
    backends = "cpu:gloo,cuda:nccl" if world.team > 1 and torch.cuda.is_available() else "gloo"
    try:
        dist.init_process_group(backends, timeout=_PATIENCE)
    except ValueError as error:  # a variable that the launcher should have set
        raise DataError(f"{first_line(error)}; start with torchrun, or unset WORLD_SIZE") from None
    try:
        yield Group(world)
    finally:
        dist.destroy_process_group()


@contextmanager
def _connected() -> Iterator[None]:
    """Turns the end of another process into an error."""
    try:
        yield
    except RuntimeError as error:
        raise RunError("another process of this run has stopped; its own message tells why") from error
