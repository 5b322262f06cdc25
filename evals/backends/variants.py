"""Variants of a model: patched with a schedule, frozen at a length if needed, and reverted bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING

from ...configs.configuration import trained_in
from ...errors import RopescaleError
from ...models import patching
from ...models.rotary_modules import text_config, unwrapped, whole_config
from ...planning.plan import Plan, plan_of_own
from ...request import Request
from ...schedules.specs import ParsedSpec, Spec, spelled_out
from . import fingerprints
from .schedules import UNCHANGED, HeldTables

if TYPE_CHECKING:
    from torch import nn

    from ...models.patching import Patch


class Variant:
    """A model under a schedule.

    Args:
        schedule: the schedule, parsed; ``as-is`` for the model's current state.
        plan: the plan of the schedule; None for the current state.
        label: the schedule's name in the results; "" for its spec.
        is_unpatched: whether the model's own patches are reverted while the schedule is measured.
    """

    def __init__(
        self,
        model: nn.Module,
        schedule: ParsedSpec = UNCHANGED,
        plan: Plan | None = None,
        label: str = "",
        is_unpatched: bool = False,
    ) -> None:
        self.model, self.asked, self.plan = model, schedule, plan
        self.label = label or spelled_out(schedule)
        self.is_unpatched = is_unpatched

    @contextmanager
    def applied(self, length: int | None = None) -> Iterator[Patch | None]:
        """Patches the model inside the block, frozen at ``length`` if given."""
        with patching.unpatched(self.model) if self.is_unpatched else nullcontext():
            if self.plan is None and length is None:
                yield None
                return
            with patching.Patch(self.model, self.plan or self._current, length) as patch:
                yield patch

    @cached_property
    def _current(self) -> Plan:
        """The plan that keeps the model's current state."""
        return patching.plan_for(self.model, Request(UNCHANGED))

    @property
    def rotation(self) -> str:
        """A hash of the model's live tables."""
        return fingerprints.rotation_sha256(unwrapped(self.model))

    def tables(self, lengths: Iterable[int]) -> dict[int, HeldTables]:
        """Returns the tables at each length, or the same object for all lengths if the tables do not depend on them."""
        with self.applied() as patch:
            if not self._depends_on_length(patch):
                return dict.fromkeys(lengths, self._held(None))
        found = {}
        for length in lengths:
            with self.applied(length):
                found[length] = self._held(length)
        return found

    def _held(self, length: int | None) -> HeldTables:
        model = unwrapped(self.model)
        figures = fingerprints.live_tables(model)
        return HeldTables(self, length, self.rotation, fingerprints.table_sha256(model), figures)

    def _depends_on_length(self, patch: Patch | None) -> bool:
        """Returns whether the tables depend on the length because of this patch, because of an earlier patch, or
        because transformers recomputes the tables of ``dynamic`` and ``longrope`` inside ``forward`` and keeps them."""
        if patch is not None:
            return bool(patch.length_dependent)
        if any(outer.length_dependent for outer in patching.patches_in(self.model)):
            return True
        kinds = (getattr(module, "rope_type", None) for module in self.model.modules())
        flat = (kind for each in kinds for kind in (each.values() if isinstance(each, dict) else [each]))
        return any(isinstance(kind, str) and ("dynamic" in kind or kind == "longrope") for kind in flat)


def of_own_patch(model: nn.Module) -> list[Variant]:
    """Returns the model under its own patch, if it has one."""
    plan = patching.installed(model)
    if plan is None:
        return []
    parts = {key: Spec.of(schedule) for key, schedule in plan.schedules.items()}
    is_same_everywhere = len({part.text for part in parts.values()}) == 1
    spec = next(iter(parts.values())) if is_same_everywhere else parts
    length = patching.held_at(model)
    frozen = f" at {length:,} tokens" if length else ""
    return [Variant(model, spec, label=spelled_out(spec) + frozen)]


def as_trained(model: nn.Module) -> Variant:
    """Returns a model with its training tables, that is, without ropescale's scaling in memory or in its folder."""
    before = patching.configuration_before(model)
    is_scaled = before != whole_config(model).to_dict()
    return Variant(model, plan=plan_of_own(before) if is_scaled else None)


def trained_length(model: nn.Module) -> int | None:
    """Returns the trained length of a model, from its configuration.

    ropescale's scaling, in memory or in the model's folder, is ignored. If the model has scaling of its own, its vendor
    trained it with this scaling up to ``max_position_embeddings``. Schedules start from the original length instead,
    which `ropescale inspect` also shows.
    """
    try:
        return trained_in(patching.configuration_before(model))
    except RopescaleError:  # no readable rotation, such as learned positions
        return getattr(text_config(model), "max_position_embeddings", None)
