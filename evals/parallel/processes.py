"""A measurement by many processes: ``torchrun --nproc_per_node N -m ropescale eval ...``.

Every process has the full model and scores its share of the batches. The batches are planned before they are shared
out, so their composition, and therefore every number, does not depend on the number of processes. No process waits for
another one until its own batches are finished. Then the first process gathers the results by batch number. Objects are
exchanged over gloo, which needs no accelerator and works between machines.

A model that is too large for one process is sharded by transformers (``tp``). In this case, all processes score every
batch together.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar, cast

from ...errors import DataError, RopescaleError, RunError
from ...output.formatting import first_line

T = TypeVar("T")

_PATIENCE = timedelta(days=30)
"""The timeout of the connection. The last process may need days longer than the first, and a process that dies ends the
connection at once."""


@dataclass(frozen=True)
class World:
    """This process's rank and the number of processes, from the launcher's environment variables.

    Attributes:
        rank: the global rank; only rank 0, the leader, prints and writes the results.
        size: the number of processes on all machines.
        local_rank: the rank on this machine; selects the accelerator.
        team: the number of processes that score the same batches together because the model is too large for one
            process: all processes, or 1 if each process scores its own batches.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    team: int = 1

    @property
    def writes(self) -> bool:
        """Whether this process stores its team's results."""
        return self.rank % self.team == 0

    @property
    def teams(self) -> int:
        """The number of teams that share the batches."""
        return self.size // self.team

    @property
    def leads(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.rank == 0

    def device(self, requested: str | None) -> str | None:
        """Returns the requested device or, with several processes and GPUs, the GPU of this process's local rank."""
        import torch

        if requested or self.size == 1 or not torch.cuda.is_available():
            return requested
        return f"cuda:{self.local_rank}"

    def __str__(self) -> str:
        return f"{self.size} processes" + (f" in teams of {self.team}" if self.team > 1 else "")


def world(environment: Mapping[str, str] = os.environ) -> World:
    """Returns the world of this process.

    Raises:
        DataError: the launcher's variables are not valid numbers.
    """
    given = {name: environment.get(name, usual) for name, usual in _VARIABLES.items()}
    with suppress(ValueError):
        rank, size, local = map(int, given.values())
        if 0 <= rank < size and local >= 0:
            return World(rank, size, local)
    values = ", ".join(f"{name}={value}" for name, value in given.items())
    raise DataError(
        f"{values} are not valid process numbers; start with torchrun, or unset these environment variables"
    )


_VARIABLES = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}


@dataclass(frozen=True)
class Group:
    """A group of processes that exchange objects, or a single process."""

    world: World

    def from_leader(self, value: T) -> T:
        """Broadcasts the leader's value to every process."""
        return cast(T, self.from_all(value if self.world.leads else None)[0])

    @contextmanager
    def leader_first(self, context: AbstractContextManager[object]) -> Iterator[None]:
        """Enters a context only in the leader, before any other process runs the block.

        Raises:
            RopescaleError: the leader could not enter the context; raised in every process.
        """
        with ExitStack() as stack:
            failed = None
            try:
                if self.world.leads:
                    stack.enter_context(context)
            except RopescaleError as error:
                failed = error
            failed = self.from_leader(failed)
            if failed is not None:
                raise failed
            yield

    def from_all(self, value: T) -> list[T]:
        """Gathers the values of all processes, by rank, in every process.

        Raises:
            RunError: another process has ended.
        """
        if self.world.size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.world.size
        try:
            dist.all_gather_object(values, value)
        except RuntimeError as error:
            raise RunError("another process of this run has stopped; see its own message") from error
        return values


@dataclass(frozen=True)
class Sharing:
    """The sharding of a model that is too large for one device, over processes or over the devices of one process.

    Attributes:
        tp: whether all processes share the model (tensor parallelism).
        device_map: accelerate's device map, which spreads the model over the devices of one process.
        device: the requested device.
    """

    tp: bool = False
    device_map: str | None = None
    device: str | None = None

    def teams(self, here: World) -> World:
        """Returns the world, with all processes as one team if they share the model.

        Raises:
            DataError: the options are mutually exclusive, or do not support the number of processes.
        """
        given = [name for name in ("tp", "device_map") if getattr(self, name)]
        if len(given) > 1:
            raise DataError(f"{' and '.join(given)} are mutually exclusive ways to share the work; choose one", *given)
        if given and self.device:
            raise DataError(f"{given[0]} assigns the devices itself; leave the device out", given[0], "device")
        if self.device_map and here.size > 1:
            raise DataError(
                f"device_map needs a single process, not {here.size}; leave torchrun out, or use tp", "device_map", "tp"
            )
        if self.tp and here.size == 1:
            raise DataError(
                "tp shards the model over several processes, but only one is running; start several with "
                "torchrun --nproc_per_node N -m ropescale eval ...",
                "tp",
            )
        return replace(here, team=here.size) if self.tp else here


@contextmanager
def together(sharing: Sharing) -> Iterator[Group]:
    """Connects the launched processes inside the block.

    An error of all processes is raised only by the first one, but a :class:`RunError` by every process that has one.
    """
    here = world()
    try:
        with _joined(sharing.teams(here)) as group:
            yield group
    except RopescaleError as error:
        if here.leads or isinstance(error, RunError):
            raise
        time.sleep(_SILENCE)
        raise SystemExit(2) from None  # the command line's exit code for wrong input


_SILENCE = 5.0
"""Seconds that a silent process waits before its exit, because its exit makes the launcher end the process that reports
the error."""


@contextmanager
def _joined(world: World) -> Iterator[Group]:
    """Connects all processes of a world inside the block."""
    if world.size == 1:
        yield Group(world)
        return
    import torch
    import torch.distributed as dist

    # gloo for objects, and NCCL for a team's tensors on GPUs.
    backends = "cpu:gloo,cuda:nccl" if world.team > 1 and torch.cuda.is_available() else "gloo"
    try:
        dist.init_process_group(backends, timeout=_PATIENCE)
    except ValueError as error:  # a missing variable of the launcher
        raise DataError(f"{first_line(error)}; start with torchrun, or unset WORLD_SIZE") from None
    try:
        yield Group(world)
    finally:
        dist.destroy_process_group()
