"""The schedules of a run: as they are requested, and with the fields and the plans that the request gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from ...configs.configuration import trained_in
from ...errors import RunError
from ...files import Json
from ...output.formatting import listed, names_of
from ...planning.plan import Plan, check_taken, is_as_is, lacks_factor, make_plan, refuse_unused, share_of
from ...request import Request, RequestOptions
from ...schedules import specs
from ...schedules.specs import ParsedSpec, Spec, file_of, of_several, spelled_out, with_each_factor
from ..facts import AS_IS
from ..progress import Notes

if TYPE_CHECKING:
    from ..facts import LayerTable


UNCHANGED = specs.parse(AS_IS)
"""The schedule of the unchanged model."""


def label(schedule: object) -> str:
    """Returns a schedule's spec on one line with the given fields, such as ``yarn:factor=8``.

    Raises:
        ScheduleError: a spec cannot be read.
    """
    return spelled_out(specs.parse(schedule))


@dataclass(frozen=True)
class Schedules:
    """The schedules of a run in addition to ``as-is``, and their patching options.

    Attributes:
        given: specs, schedule objects or parsed specs.
        baseline: the baseline's spec; None for ``as-is``.
        patching: keyword arguments of :func:`ropescale.patch`.
        plans: the plans that were made before the model was loaded, by the schedule's label.
        measures_own: whether the patch of a patched model is measured, too.
        remapped: whether remapped positions are measured, too, with and without their scale.
    """

    given: Iterable[object] = ()
    baseline: object = None
    patching: RequestOptions = field(default_factory=RequestOptions)
    plans: Mapping[str, Plan] = field(default_factory=dict)
    measures_own: bool = False
    remapped: bool = False


def requested(
    schedules: Iterable[object],
    baseline: object,
    factor: float | Sequence[float] | None,
    patching: RequestOptions,
    remapped: bool = False,
) -> Schedules:
    """Returns the schedules of a call; several factors multiply the schedules that take one."""
    given = [schedules] if isinstance(schedules, (str, Mapping)) or callable(schedules) else list(schedules)
    if isinstance(factor, Sequence):
        given = list(with_each_factor(given, factor))
        factor = None
    return Schedules(given, baseline, {**patching, "factor": factor}, measures_own=True, remapped=remapped)


def filled(asked: Schedules, configs: Callable[[bool], Json], longest: int, notes: Notes) -> Schedules:
    """Parses several schedules, and plans them with the requested factor, target length and fields.

    Args:
        asked: the schedules and their shared ``patching`` options.
        configs: returns the configuration without ropescale's scaling or, given True, the current one; called once the
            schedules are read.
        longest: the largest measured length, which determines a factor that is not given.
        notes: receives a note on such a factor.

    Raises:
        ScheduleError, ConfigError: a schedule is unknown, does not fit, or contradicts the request; no schedule has a
            requested field; or the model is already scaled, and no option allows that.
    """
    request = Request.of(None, **asked.patching)
    given = [specs.parse(each) for each in asked.given]
    baseline = None if asked.baseline is None else specs.parse(asked.baseline)
    every = [*given, *([] if baseline is None else [baseline])]
    check_taken(every, request)
    config = configs(request.on_top)
    complete: list[ParsedSpec] = []
    plans: dict[str, Plan] = {}
    without = []
    trained = 0
    for spec in every:
        if is_as_is(spec):
            complete.append(spec)
            continue
        share = share_of(spec, request)
        if share.target_length is None and lacks_factor(spec, share):
            trained = request.original_length or trained_in(config)
            if longest > trained:
                share = replace(share, target_length=longest)
                without.append(spelled_out(spec))
        with of_several(spec, len(every)):
            plan = make_plan(config, share)
        complete.append(_filled(spec, plan))
        plans[spelled_out(complete[-1])] = plan
    one = replace(request, spec=next((spec for spec in every if not is_as_is(spec)), None))
    refuse_unused(one, {"original_length"}.union(*(plan.used for plan in plans.values())))
    if without:
        notes.tell(
            f"note: {listed(without)}: no factor is given; uses {longest / trained:g}, the largest length divided "
            f"by the trained length ({longest:,} / {trained:,})"
        )
    return replace(asked, given=complete[: len(given)], baseline=baseline and complete[-1], plans=plans)


def _filled(spec: ParsedSpec, plan: Plan) -> ParsedSpec:
    """Returns a spec with the fields of its plan, or a spec for each layer type if the factors differ."""
    if isinstance(spec, Mapping):
        return {key: _with_fields(part, plan, key) for key, part in spec.items()}
    parts = {key: _with_fields(spec, plan, key) for key in plan.layers}
    texts = {part.text for part in parts.values()}
    return parts if len(texts) > 1 else next(iter(parts.values()), spec)


def _with_fields(spec: Spec, plan: Plan, key: str) -> Spec:
    """Returns a spec with the requested overrides and the resolved factor. Its name, such as a path, is unchanged."""
    spec = spec.with_text({name: text for name, text in plan.request.overrides.items() if name in spec.known})
    factor = Spec.of(plan.layers[key].requested).given.get("factor") if key in plan.layers else None
    return spec if factor is None or factor == spec.given.get("factor") else spec.with_fields(factor=factor)


# --- Their tables


@dataclass(frozen=True)
class HeldTables:
    """The rotary tables of a variant, frozen at a length.

    Attributes:
        variant: the model under a schedule, loaded or served.
        frozen_at: the length; None if the tables do not depend on the length.
        rotation: a hash of everything that the schedule determines; equal hashes mean equal outputs.
        table_sha256: the hash of the tables that the results show.
        figures: the tables by layer type, for the results.
    """

    variant: WithTables
    frozen_at: int | None
    rotation: str
    table_sha256: str
    figures: dict[str, LayerTable] = field(repr=False)

    @contextmanager
    def live(self) -> Iterator[None]:
        """Makes the tables live inside the ``with`` block, and verifies at its end that they are still live."""
        with self.variant.applied(self.frozen_at):
            yield
            self.check()

    def check(self) -> None:
        """Verifies that the tables are still live.

        Raises:
            RunError: the tables have changed, so the scores are invalid.
        """
        if self.variant.rotation != self.rotation:
            raise RunError(
                f"the rotary tables changed while {self.variant.label} was measured; a schedule, or code in the "
                "model, that changes them by itself cannot be measured"
            )


def passes_of(held: Mapping[int, HeldTables]) -> list[tuple[HeldTables, tuple[int, ...]]]:
    """Returns the distinct tables, each with the lengths that one pass measures, ascending.

    Args:
        held: the tables by length, ascending.
    """
    lengths: dict[str, tuple[int, ...]] = {}
    for length, tables in held.items():
        lengths[tables.rotation] = (*lengths.get(tables.rotation, ()), length)
    return [(held[each[-1]], each) for each in lengths.values()]


class WithTables(Protocol):
    """A schedule of a loaded model or of a server."""

    @property
    def label(self) -> str:
        """The schedule's name in the results."""
        ...

    @property
    def asked(self) -> specs.ParsedSpec:
        """The parsed schedule."""
        ...

    @property
    def rotation(self) -> str:
        """A hash of the current values of everything that the schedule determines."""
        ...

    def applied(self, length: int | None = None) -> AbstractContextManager[object]:
        """Applies the schedule inside the ``with`` block, frozen at ``length`` if given."""
        ...

    def tables(self, lengths: Iterable[int]) -> Mapping[int, HeldTables]:
        """Returns the tables at each length, or the same object for all lengths if the tables do not depend on them."""
        ...


def names_for(made: Iterable[WithTables]) -> dict[str, dict[str, str]]:
    """Returns the short names of schedules from files, for the protocol; empty if no schedule is from a file."""
    files = {each.label: file for each in made if (file := file_of(each.asked))}
    return {"named": names_of(files)} if files else {}
