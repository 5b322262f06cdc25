"""Proves that the schedule is live in every process of a training, and that what is saved are numbers."""

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
    """Returns the model inside a compiled one, or inside DistributedDataParallel; adapters and FSDP stay.

    Its forward pass is the same, without compilation, and without waiting for other processes under data parallelism.
    """
    from torch.nn.parallel import DistributedDataParallel

    while True:
        inner = model.module if isinstance(model, DistributedDataParallel) else getattr(model, "_orig_mod", None)
        if inner is None:
            return model
        model = inner


def problem_of(model: nn.Module, loss: torch.Tensor | None) -> str:
    """Says what is not finite, in a sentence; empty where all is. Of weights in several processes, this one's part."""
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
    return f"{len(wrong)} of {len(trained)} trained tensors are not finite, {wrong[0]} among them; {_ADVICE}"


_ADVICE = "nothing is saved of this step; train with a lower learning rate, or in bfloat16 instead of float16"


@dataclass
class Proof:
    """The schedule that a training must be done under.

    Attributes:
        schedule: a schedule or its spec; None takes what the model carries, or what its configuration says.
        options: how it is applied, as for :func:`ropescale.patch`.
        saved: whether the result is to be saved by us, so that a schedule that no file can hold is refused.
    """

    schedule: object = None
    options: RequestOptions | None = None
    saved: bool = True
    _loss: torch.Tensor | None = None
    _hook: RemovableHandle | None = None

    def install(self, model: nn.Module) -> Patch | None:
        """Puts the schedule into a model that carries none of ours; returns the undo, or None."""
        if self.schedule is None or carries_ours(plain(model)):
            return None
        return patch(plain(model), self.schedule, **(self.options or {}))

    def prove(self, model: nn.Module) -> None:
        """Makes sure that the schedule is live in every process: its tables, and the modules that are really called.

        Every process takes part in both parts, whatever it finds, and each part ends for all of them alike. The first
        runs nothing, so that no forward pass of several processes begins where one of them is broken.

        Raises:
            VerificationError: it is not; in every process with the same line, which names the rank, the module and the
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
        """Keeps the losses of a model's passes in training, of which :meth:`check` looks at the last."""
        self.unwatch()
        self._loss = None
        self._hook = plain(model).register_forward_hook(self._keep_loss)

    def _keep_loss(self, module: nn.Module, _: object, output: object) -> None:
        """Keeps the loss of the last pass in training mode, where the model itself computes one."""
        if module.training:
            first = output[0] if isinstance(output, tuple) and output else None
            loss = output.get("loss") if isinstance(output, Mapping) else first
            self._loss = loss.detach() if isinstance(loss, torch.Tensor) and loss.numel() == 1 else None

    def unwatch(self) -> None:
        """Ends :meth:`watch`."""
        if self._hook is not None:
            self._hook.remove()

    def check(self, model: nn.Module, *, numbers: bool = False) -> None:
        """Makes sure that the tables are still live in every process, without running anything.

        Args:
            numbers: make sure, too, that the last loss and the trained weights are finite.

        Raises:
            VerificationError: as :meth:`prove`, or a loss or a weight is not finite.
        """
        model = plain(model)
        settle(lambda: Verdict("; ".join(examine_tables(model).problems)))
        if numbers:
            settle(lambda: Verdict(problem_of(model, self._loss)))

    def _refuse_other(self, model: nn.Module) -> None:
        """Refuses a model that carries another schedule than was asked for.

        Raises:
            VerificationError: names both.
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
                f"the model carries {carried}, and the callback was given {asked}; give one of the two"
            ) from None


# --- agreement among processes: a problem that one of them has stops all, with one line


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
