"""Verifies that the schedule is live in every training process, and that saved weights are finite."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from ...checkpoints.saving import carries_ours, refuse_incompletable
from ...errors import RopescaleError, RunError, VerificationError
from ...models.patching import Patch, check_live, configuration_before, held_at, patch
from ...output.formatting import first_line
from ...planning.plan import make_plan
from ...request import Request, RequestOptions
from ...verifying.examining import examine_model, examine_tables
from ...verifying.verification import in_memory
from ..parallel.processes import Group, World
from ..running import fingerprints

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


def plain(model: nn.Module) -> nn.Module:
    """Unwraps a compiled model, or one in DistributedDataParallel; keeps adapters and FSDP.

    Its forward pass is the same without compilation, and without waiting for other data-parallel processes.
    """
    from torch.nn.parallel import DistributedDataParallel

    while True:
        inner = model.module if isinstance(model, DistributedDataParallel) else getattr(model, "_orig_mod", None)
        if inner is None:
            return model
        model = inner


def problem_of(model: nn.Module, loss: torch.Tensor | None) -> str:
    """Describes non-finite values in a sentence; empty if all are finite. Checks this process's shard of the
    weights."""
    if loss is not None and not math.isfinite(loss.item()):
        return f"the last loss is {loss.item()}; {_ADVICE}"
    trained: dict[str, torch.Tensor] = {}
    for name, each in model.named_parameters():
        local = getattr(each, "to_local", None)
        own = each if local is None else local()
        if each.requires_grad and own.numel():
            trained[name] = own.detach()
    if not trained or math.isfinite(nn.utils.get_total_norm(trained.values(), math.inf)):
        return ""
    wrong = [name for name, each in trained.items() if not each.isfinite().all()]
    return f"{len(wrong)} of {len(trained)} trained tensors are not finite, such as {wrong[0]}; {_ADVICE}"


_ADVICE = "this step is not saved; train with a lower learning rate, or in bfloat16 instead of float16"


@dataclass
class Proof:
    """The schedule that must be live during training.

    Attributes:
        schedule: a schedule or its spec. Default: the model's current schedule, or its configuration's.
        options: keywords of :func:`ropescale.patch`.
        saved: whether ropescale will save the result, so that it refuses a schedule that no file can express.
    """

    schedule: object = None
    options: RequestOptions | None = None
    saved: bool = True
    _loss: torch.Tensor | None = None
    _hook: RemovableHandle | None = None

    def install(self, model: nn.Module) -> Patch | None:
        """Patches a model that has no schedule from ropescale; returns the undo function, or None."""
        if self.schedule is None or carries_ours(plain(model)):
            return None
        return patch(plain(model), self.schedule, **(self.options or {}))

    def prove(self, model: nn.Module) -> None:
        """Verifies that the schedule is live in every process: its tables, and the called modules.

        Every process runs both checks, and each check has the same result in all of them. The first check runs no
        forward pass, so that no collective pass starts while a process is broken.

        Raises:
            VerificationError: it is not live; every process raises the same line with the rank, the module and the
                difference.
        """
        model = plain(model)

        def at_rest() -> Verdict:
            report = examine_tables(model)
            if report.problems:
                return Verdict("; ".join(report.problems))
            if self.schedule is not None:
                self._refuse_other(model)
            if self.saved:
                refuse_incompletable(model)
            return Verdict(carried=f"{report.intended} (tables {fingerprints.table_sha256(model)[:12]})")

        settle(at_rest)
        settle(lambda: Verdict("; ".join(examine_model(model).problems)))

    def watch(self, model: nn.Module) -> None:
        """Records the training losses of a model's forward passes; :meth:`check` tests the last one."""
        self.unwatch()
        self._loss = None
        self._hook = plain(model).register_forward_hook(self._keep_loss)

    def _keep_loss(self, module: nn.Module, _: object, output: object) -> None:
        """Records the loss of the last pass in training mode, if the model computes it."""
        if module.training:
            first = output[0] if isinstance(output, tuple) and output else None
            loss = output.get("loss") if isinstance(output, Mapping) else first
            self._loss = loss.detach() if isinstance(loss, torch.Tensor) and loss.numel() == 1 else None

    def unwatch(self) -> None:
        """Ends :meth:`watch`."""
        if self._hook is not None:
            self._hook.remove()

    def check(self, model: nn.Module, *, numbers: bool = False) -> None:
        """Verifies that the tables are still live in every process, without a forward pass.

        Args:
            numbers: also verify that the last loss and the trained weights are finite.

        Raises:
            VerificationError: as for :meth:`prove`, or a loss or a weight is not finite.
        """
        model = plain(model)
        settle(lambda: Verdict("; ".join(examine_tables(model).problems)))
        if numbers:
            settle(lambda: Verdict(problem_of(model, self._loss)))

    def _refuse_other(self, model: nn.Module) -> None:
        """Refuses a model that carries another schedule than the requested one.

        Raises:
            VerificationError: the schedules differ; names both.
        """
        wanted = make_plan(configuration_before(model), Request.of(self.schedule, **(self.options or {})))
        if not wanted.changes:
            return
        try:
            check_live(model, wanted, held_at(model))
        except VerificationError:
            asked = ", ".join(dict.fromkeys(wanted.label(key) for key in wanted.layers))
            carried = ", ".join(dict.fromkeys(in_memory(model, 1).schedules.values()))
            raise VerificationError(
                f"the model carries {carried}, but the callback has {asked}; use one of the two"
            ) from None


# --- Agreement among processes: a problem of one stops all, with one line


@dataclass(frozen=True)
class Verdict:
    """The result of a check in one process.

    Attributes:
        problem: why training must stop, in a sentence; empty if it may continue.
        carried: a value that must be equal in all processes, such as a hash of the tables.
    """

    problem: str = ""
    carried: str = ""


def processes(model: nn.Module | None = None) -> Group:
    """Returns the processes of torch.distributed's default group; a single one without it.

    Args:
        model: processes that share its weights form one team, which runs every forward pass together.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return Group(World())
    size = dist.get_world_size()
    world = World(dist.get_rank(), size, int(os.environ.get("LOCAL_RANK", "0")), launched=True)
    return Group(replace(world, team=size) if model is not None and is_shared(model) else world)


def is_shared(model: nn.Module) -> bool:
    """Whether several processes share the weights: FSDP, tensor parallel, ZeRO-3."""
    wrapped = any("_fsdp_wrapped_module" in name for name, _ in model.named_modules())
    return wrapped or any(hasattr(each, "full_tensor") or hasattr(each, "ds_id") for each in model.parameters())


def settle(find: Callable[[], Verdict], kind: type[RopescaleError] = VerificationError) -> None:
    """Runs a check in every process; continues in all of them or in none.

    Any error counts as a problem, so that every process reports its result.

    Raises:
        VerificationError, or ``kind``: a process has a problem, or their values differ; every process raises the same
            line.
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
    """Runs an action, such as writing, only in the first process.

    Raises:
        RunError: the action failed; raised in every process.
    """

    def find() -> Verdict:
        if processes().world.leads:
            act()
        return Verdict()

    settle(find, RunError)


def first_problem(found: list[Verdict]) -> str:
    """Returns the line for all processes: the first problem, and the other ranks with problems; empty for none."""
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
