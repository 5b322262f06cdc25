"""Variants of a model: patched with a schedule, frozen at a length if needed, and reverted bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from ...configs.configuration import trained_in
from ...errors import DataError, RopescaleError
from ...models import patching
from ...models.rotary_modules import text_config, unwrapped, whole_config
from ...planning.plan import Plan, plan_of_own
from ...request import Request
from ...schedules import specs
from ...schedules.specs import is_same, repeated, spelled_out
from ..facts import AS_IS
from . import fingerprints
from .schedules import Schedules
from .tables import HeldTables

if TYPE_CHECKING:
    from torch import nn

    from ...models.patching import Patch
    from ...request import RequestOptions
    from ..progress import Notes


class Variant:
    """A model under a schedule.

    Attributes:
        label: the schedule's name in the results.
        schedule: a spec such as ``yarn:factor=8``, or a schedule object.
    """

    def __init__(self, model: nn.Module, schedule: object, request: RequestOptions) -> None:
        self.model, self.schedule, self.request = model, schedule, request
        self.asked = specs.parse(schedule)
        self.label = spelled_out(self.asked)
        self._plan: Plan | None = None

    def applied(self, length: int | None = None) -> AbstractContextManager[Patch | None]:
        """Patches the model inside the block, frozen at ``length`` if given."""
        if self.label == AS_IS and length is None:
            return nullcontext()
        if self._plan is not None:  # computed once: the model is the same at every length
            return patching.Patch(self.model, self._plan, length)
        request = self.request.copy()
        if self.label == AS_IS:  # constant tables cannot be frozen
            request["freeze_at"] = None
        self._plan = patching.plan_for(self.model, Request.of(self.schedule, **request))
        return patching.Patch(self.model, self._plan, length)

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


class Unpatched(Variant):
    """A model without the patches of a loaded model: ``as-is``."""

    @contextmanager
    def applied(self, length: int | None = None) -> Iterator[Patch | None]:
        with patching.unpatched(self.model), super().applied(length) as patch:
            yield patch


def with_own(model: nn.Module, given: Iterable[object]) -> list[object]:
    """Returns the schedules to measure, followed by that of a loaded model's own patch, if it has one."""
    named: list[object] = [given] if isinstance(given, str) else list(given)
    plan = patching.installed(model)
    if plan is None:
        return named
    parts = plan.schedules
    own, held = Variant(model, AS_IS, {}), patching.held_at(model)
    own.asked = specs.parse(parts if len({*map(str, parts.values())}) > 1 else next(iter(parts.values())))
    own.label = spelled_out(own.asked) + (f" at {held:,} tokens" if held else "")
    return [*named, own]


class AsTrained(Variant):
    """A model with its training tables, that is, without ropescale's scaling in memory or in the model's folder."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, AS_IS, {})
        before = patching.configuration_before(model)
        self._before = plan_of_own(before) if before != whole_config(model).to_dict() else None

    def applied(self, length: int | None = None) -> AbstractContextManager[Patch | None]:
        if self._before is None:
            return super().applied(length)
        return patching.Patch(self.model, self._before, length)


def variants(as_is: Variant, schedules: Schedules, notes: Notes) -> tuple[list[Variant], str]:
    """Returns the distinct schedules, including ``as-is`` and the baseline, and the baseline's label.

    Args:
        as_is: the model under ``as-is``.
        notes: receives a note on schedules that are the same in a different spelling.

    Raises:
        ScheduleError: a spec cannot be read.
        DataError: two different schedules have the same label.
    """
    given = [schedules.given] if isinstance(schedules.given, str) else list(schedules.given)
    named = [as_is, *given, as_is if schedules.baseline is None else schedules.baseline]
    made = [each if isinstance(each, Variant) else Variant(as_is.model, each, schedules.patching) for each in named]
    found: dict[str, Variant] = {}
    for variant in made:
        same = found.get(variant.label)
        if same and callable(same.schedule) and callable(variant.schedule) and same.schedule != variant.schedule:
            raise DataError(f"two different schedules are both called {variant.label!r}; give them different names")
        if same is None and not any(is_same(variant.asked, each.asked) for each in found.values()):
            found[variant.label] = variant
    for said in repeated([variant.asked for variant in made[1 : 1 + len(given)]]):
        notes.tell(f"note: {said}; it is measured once")
    same = (each.label for each in found.values() if is_same(made[-1].asked, each.asked))
    return list(found.values()), next(same, made[-1].label)


def label(schedule: object) -> str:
    """Returns a schedule's spec on one line with the given fields, such as ``yarn:factor=8``.

    Raises:
        ScheduleError: a spec cannot be read.
    """
    return spelled_out(specs.parse(schedule))


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
