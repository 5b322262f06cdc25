"""Agreement among the processes of a training: a problem that one of them has stops all, with one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...errors import RopescaleError, RunError, VerificationError
from ...output.formatting import first_line
from ..parallel.processes import Group, World

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Verdict:
    """The findings of one process.

    Attributes:
        problem: why the training must not go on, in a sentence; empty where it may.
        carried: what must be the same in all processes, such as a hash of the tables.
    """

    problem: str = ""
    carried: str = ""


def processes(model: nn.Module | None = None) -> Group:
    """Returns the processes of this training run, which torch.distributed has joined; one alone where it has not.

    Args:
        model: processes that share its weights are one team: each of them must take part in every forward pass.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return Group(World())
    size = dist.get_world_size()
    world = World(dist.get_rank(), size, int(os.environ.get("LOCAL_RANK", "0")), launched=True)
    return Group(replace(world, team=size) if model is not None and is_shared(model) else world)


def is_shared(model: nn.Module) -> bool:
    """Whether several processes hold the weights together: FSDP, tensor parallel, ZeRO-3."""
    wrapped = any("_fsdp_wrapped_module" in name for name, _ in model.named_modules())
    return wrapped or any(hasattr(each, "full_tensor") or hasattr(each, "ds_id") for each in model.parameters())


def settle(find: Callable[[], Verdict], kind: type[RopescaleError] = VerificationError) -> None:
    """Finds in every process, and goes on in all of them or in none.

    An error of any kind is a problem, so that every process can say what it found.

    Raises:
        VerificationError, or ``kind``: one of them has a problem, or they carry different things; in every process,
            with the same line.
    """
    try:
        own = find()
    except RopescaleError as error:
        own = Verdict(str(error))
    except Exception as error:
        own = Verdict(f"{type(error).__name__}: {first_line(error)}")
    line = first_problem(processes().from_all(own))
    if line:
        raise kind(line)


def settle_leader(act: Callable[[], object]) -> None:
    """Lets the first process alone do something, such as writing.

    Raises:
        RunError: it failed; in every process.
    """

    def find() -> Verdict:
        if processes().world.leads:
            act()
        return Verdict()

    settle(find, RunError)


def first_problem(found: list[Verdict]) -> str:
    """Returns the line for all processes: the first one's problem, and how many others have one; empty for none."""
    if len(found) == 1:
        return found[0].problem
    failed = [rank for rank, each in enumerate(found) if each.problem]
    if failed:
        others = [str(rank) for rank in failed[1:]]
        more = f" (a problem also in rank {', '.join(others[:8])}{', ...' * (len(others) > 8)})" if others else ""
        return f"rank {failed[0]} of {len(found)}: {found[failed[0]].problem}{more}"
    other = next((rank for rank, each in enumerate(found) if each.carried != found[0].carried), None)
    if other is None:
        return ""
    return f"rank {other} of {len(found)} carries {found[other].carried}, and rank 0 {found[0].carried}"
