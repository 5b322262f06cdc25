"""Verifies that the schedule is live in every training process, and that saved weights are finite."""

import math
import os
from collections.abc import Callable, Sequence

import torch
from torch import nn

from ...checkpoints.saving import refuse_incompletable
from ...errors import RopescaleError, RunError, VerificationError
from ...models.patching import check_live, configuration_before, held_at
from ...output.formatting import first_line
from ...planning.plan import Plan, make_plan
from ...request import Request
from ...verifying.examining import examine_model, examine_tables
from ...verifying.verification import Verification, in_memory
from ..backends import fingerprints
from ..parallel.processes import Group, World


def plain(model: nn.Module) -> nn.Module:
    """Unwraps compiled models and DistributedDataParallel, but not adapters and FSDP.

    The unwrapped model computes the same outputs, but without compilation, and without waiting for other data-parallel
    processes.
    """
    from torch.nn.parallel import DistributedDataParallel

    while True:
        inner = model.module if isinstance(model, DistributedDataParallel) else getattr(model, "_orig_mod", None)
        if inner is None:
            return model
        model = inner


_ADVICE = "this step is not saved; train with a lower learning rate, or in bfloat16 instead of float16"


def check_finite(model: nn.Module, loss: torch.Tensor | None) -> None:
    """Checks that the last loss, if known, and the trained weights in this process are finite.

    Raises:
        VerificationError: the loss or a weight is not finite.
    """
    if loss is not None and not math.isfinite(loss.item()):
        raise VerificationError(f"the last loss is {loss.item()}; {_ADVICE}")
    trained: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        to_local = getattr(parameter, "to_local", None)  # this process's shard
        local = to_local() if to_local else parameter
        if parameter.requires_grad and local.numel():
            trained[name] = local.detach()
    if trained and not math.isfinite(nn.utils.get_total_norm(trained.values(), math.inf)):
        wrong = [name for name, values in trained.items() if not values.isfinite().all()]
        raise VerificationError(
            f"{len(wrong)} of {len(trained)} trained tensors are not finite, such as {wrong[0]}; {_ADVICE}"
        )


def check_tables(model: nn.Module) -> None:
    """Checks that the tables of an unwrapped model (see :func:`plain`) are live, without a forward pass.

    Raises:
        VerificationError: a table is not live.
    """
    _check(examine_tables(model))


def prove(model: nn.Module, schedule: object, saved: bool) -> None:
    """Verifies that the schedule of an unwrapped model is live in every process.

    The first check compares the tables, and the second one runs a forward pass to see which modules are called. Every
    process runs both checks, and all processes get the same result. The first check runs no forward pass, so that no
    collective forward pass starts if one process has a problem.

    Args:
        schedule: the requested schedule, or None for the model's own.
        saved: whether ropescale will save the model; a schedule that no file can express is then a problem.

    Raises:
        VerificationError: the schedule is not live; every process raises the same message with the rank, the module and
            the difference.
    """

    def at_rest() -> str:
        report = examine_tables(model)
        _check(report)
        if schedule is not None:
            _refuse_other(model, make_plan(configuration_before(model), Request(schedule)))
        if saved:
            refuse_incompletable(model)
        return f"{report.intended} (tables {fingerprints.table_sha256(model)[:12]})"

    settle(at_rest)
    settle(lambda: _check(examine_model(model)))


def _check(report: Verification) -> None:
    if report.problems:
        raise VerificationError("; ".join(report.problems))


def _refuse_other(model: nn.Module, wanted: Plan) -> None:
    """Checks that the model has the wanted schedule.

    Raises:
        VerificationError: the model has a different schedule; the message names both.
    """
    try:
        if wanted.changes:
            check_live(model, wanted, held_at(model))
    except VerificationError:
        requested = ", ".join(dict.fromkeys(wanted.label(key) for key in wanted.layers))
        carried = ", ".join(dict.fromkeys(in_memory(model, 1).schedules.values()))
        raise VerificationError(
            f"the model carries {carried}, but the callback has {requested}; use one of the two"
        ) from None


# --- Agreement among processes: a problem in one process stops all of them with the same message


def processes(model: nn.Module | None = None) -> Group:
    """Returns the processes of torch.distributed's default group, or only this process if there is no such group.

    Args:
        model: if processes share this model's weights, they form one team, which runs every forward pass together.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return Group(World())
    size = dist.get_world_size()
    team = size if model is not None and is_shared(model) else 1
    return Group(World(dist.get_rank(), size, int(os.environ.get("LOCAL_RANK", "0")), team))


def is_shared(model: nn.Module) -> bool:
    """Returns whether several processes share the weights (FSDP, tensor parallelism, ZeRO-3)."""
    wrapped = any("_fsdp_wrapped_module" in name for name, _ in model.named_modules())
    return wrapped or any(hasattr(each, "full_tensor") or hasattr(each, "ds_id") for each in model.parameters())


def settle(check: Callable[[], object], kind: type[RopescaleError] = VerificationError) -> None:
    """Runs a check in every process. If the check fails in one process, all processes raise the same error.

    Every exception is treated as a failed check, so that every process reports a result.

    Args:
        check: raises an error, or returns a value that must be equal in all processes, such as a hash of the tables.

    Raises:
        VerificationError, or ``kind``: the check failed in a process, or the values differ between processes.
    """
    problem = ""
    carried = None
    try:
        carried = check()
    except RopescaleError as error:
        problem = str(error)
    except Exception as error:
        problem = f"{type(error).__name__}: {first_line(error)}"
    if line := first_problem(processes().from_all((problem, carried))):
        raise kind(line)


def settle_leader(act: Callable[[], object]) -> None:
    """Runs an action, such as writing, only in the first process.

    Raises:
        RunError: the action failed; raised in every process.
    """

    def led() -> None:
        if processes().world.leads:
            act()

    settle(led, RunError)


def first_problem(found: Sequence[tuple[str, object]]) -> str:
    """Returns the message for all processes: the first problem; "" if there is none.

    Args:
        found: the problem (or "") of each rank, and the value that must be equal in all ranks.
    """
    if len(found) == 1:
        return found[0][0]
    for rank, (problem, _) in enumerate(found):
        if problem:
            return f"rank {rank} of {len(found)}: {problem}"
    first = found[0][1]
    for rank, (_, carried) in enumerate(found):
        if carried != first:
            return f"rank {rank} of {len(found)} carries {carried}, and rank 0 {first}"
    return ""
