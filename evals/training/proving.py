"""Proves that the schedule is live in every process of a training, and that what is saved are numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...checkpoints.saving import carries_ours, refuse_incompletable
from ...errors import VerificationError
from ...models.patching import Patch, check_live, configuration_before, held_at, patch
from ...planning.plan import make_plan
from ...request import Request, RequestOptions
from ...verifying.examining import examine_model, examine_tables
from ...verifying.verification import in_memory
from ..running import fingerprints
from .agreeing import Verdict, settle
from .finite import LastLoss, problem_of

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.hooks import RemovableHandle


def plain(model: Any) -> Any:
    """Returns the model inside a compiled one, or inside DistributedDataParallel; adapters and FSDP stay.

    Its forward pass is the same, without compilation, and without waiting for other processes under data parallelism.
    """
    from torch.nn.parallel import DistributedDataParallel

    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(model, DistributedDataParallel):
            model = model.module
        else:
            return model


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
    _loss: LastLoss = field(default_factory=LastLoss)
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
        settle(lambda: self._at_rest(model))
        settle(lambda: Verdict("; ".join(examine_model(model).problems)))

    def watch(self, model: nn.Module) -> None:
        """Keeps the losses of a model's passes in training, of which :meth:`check` looks at the last."""
        self.unwatch()
        self._loss = LastLoss()
        self._hook = plain(model).register_forward_hook(self._loss)

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
            settle(lambda: Verdict(problem_of(model, self._loss.value)))

    def _at_rest(self, model: nn.Module) -> Verdict:
        report = examine_tables(model)
        if report.problems:
            return Verdict("; ".join(report.problems))
        if self.schedule is not None:
            self._refuse_other(model)
        if self.saved:
            refuse_incompletable(model)
        return Verdict(carried=f"{report.intended} (tables {fingerprints.table_sha256(model)[:12]})")

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
