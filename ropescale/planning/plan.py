"""Plans a schedule: computes tables and the new configuration from a configuration and a request.

Patching in memory, on disk and in GGUF files starts with a plan; planning changes nothing.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..configs.class_defaults import ALL_LAYERS
from ..configs.configuration import Configuration, Scaling, read_rope, write_rope
from ..configs.finding import StatedLength, dotted, sections_in
from ..errors import ConfigError, RopescaleError, ScheduleError, WayOut
from ..files import Json, is_number
from ..output.formatting import brief, listed, size
from ..request import Request, advised, beyond, frozen, others
from ..rope import Rope
from ..schedules import Frequencies, Schedule, describe, resolve
from ..schedules.as_is import AsIs, from_rope_parameters, stock_table
from ..schedules.base import label_of
from ..schedules.specs import ParsedSpec, Spec, parse, parts_of, takes
from . import vendors
from .layers import (
    PlannedLayer,
    PlannedLayers,
    base_geometry,
    choose,
    describe_scaling,
    is_windowed,
    scaling_of,
    why_unsavable,
)


@dataclass(frozen=True)
class Plan:
    """The plan of a schedule for one configuration.

    Attributes:
        request: the request.
        original: the configuration that the plan starts from (the vendor's, if ropescale patched the model before).
        planned: the new configuration.
        layers: the layer types that change; empty for ``as-is``.
        length: the new context, in tokens.
        notes: remarks on the origin of the numbers.
        unsavable: why no configuration can express this schedule, or None.
    """

    request: Request = field(compare=False)
    original: Configuration
    planned: Configuration
    layers: PlannedLayers
    length: int
    notes: tuple[str, ...] = ()
    unsavable: ScheduleError | None = None

    @property
    def config(self) -> dict[str, Any]:
        """The new configuration as JSON data."""
        return dict(self.planned.raw)

    @property
    def changes(self) -> bool:
        """Whether any layer changes; False for ``as-is``."""
        return bool(self.layers)

    @property
    def used(self) -> set[str]:
        """The options of :attr:`request` that affect this plan."""
        if not self.changes:
            return set()
        layers = self.layers.values()
        used = {"factor", "target_length", "original_length", "overrides"}
        if not isinstance(parse(self.request.spec), Mapping):
            used.add("layers")
        given = self.request.original_length
        starts = [replace(each.current, original_length=given or each.current.original_length) for each in layers]
        if [layer.rope for layer in layers] != starts:
            used |= {"replace_scaling", "on_top"}
        return used | ({"freeze_at"} if self.frozen else set())

    @property
    def schedules(self) -> dict[str, Schedule]:
        """The resolved schedule of each layer type that changes."""
        return {key: layer.schedule for key, layer in self.layers.items()}

    @property
    def specs(self) -> dict[str, str]:
        """The spec of each schedule."""
        return {key: describe(layer.schedule) for key, layer in self.layers.items()}

    @property
    def ropes(self) -> dict[str, Rope]:
        """The geometry that each schedule builds on."""
        return {key: layer.rope for key, layer in self.layers.items()}

    @property
    def tables(self) -> dict[str, Frequencies]:
        """The float64 frequencies of each schedule at :attr:`length`."""
        return {key: layer.table(self.length) for key, layer in self.layers.items()}

    @property
    def beneath(self) -> dict[str, str]:
        """The scaling, as text, of every layer type whose schedule is composed with it."""
        return {
            key: describe_scaling(layer.current) for key, layer in self.layers.items() if layer.rope.table is not None
        }

    @property
    def frozen(self) -> dict[str, str]:
        """The frozen schedule and its length, as text, of every layer type with a frozen schedule."""
        return {key: layer.label for key, layer in self.layers.items() if layer.is_frozen}

    def label(self, layer_type: str) -> str:
        """Returns a layer type's schedule with the scaling beneath it: ``linear:factor=2 on yarn x32 of 4096``."""
        label = self.layers[layer_type].label
        beneath = self.beneath.get(layer_type)
        return f"{label} on {beneath}" if beneath else label


def make_plan(config: Json, request: Request, suits: Callable[[Plan], bool] = lambda plan: True) -> Plan:
    """Plans a schedule for a configuration.

    Args:
        config: a parsed ``config.json`` or ``model.config.to_dict()``.
        request: the schedule, and how to apply it.
        suits: whether a plan that an error may advise also serves the caller's purpose.

    Raises:
        ConfigError: the model has no RoPE or contradictory keys, or is already scaled, and the request sets neither
            ``replace_scaling`` nor ``on_top``.
        ScheduleError: the schedule does not fit, or would change nothing.
    """
    works = partial(is_possible, config, suits=suits)
    try:
        plan = _planned(config, request)
    except RopescaleError as error:
        tried = advised(error, request, works) if error.advice else error
        if error.advice and not tried.advice:  # what is there may be wrong itself
            for rope in read_rope(config, request.original_length).values():
                from_rope_parameters(rope)
                for other in (frozen(0, rope), others(beyond(request.target_length or rope.max_length, rope))):
                    if not tried.advice:
                        tried = advised(error, request, works, *(way.also(other) for way in error.advice))
        raise tried from None
    return replace(plan, unsavable=plan.unsavable and advised(plan.unsavable, request, works))


def is_possible(config: Json, request: Request, suits: Callable[[Plan], bool] = lambda plan: True) -> bool:
    """Whether a request changes the tables, can be saved, and also serves the caller's purpose (``suits``)."""
    try:
        plan = _planned(config, request)
        refuse_unused(request, plan.used)
    except RopescaleError:
        return False
    changes = any(layer.replaces(plan.length) for layer in plan.layers.values())
    return changes and plan.unsavable is None and suits(plan)


def _planned(config: Json, request: Request) -> Plan:
    """Plans a schedule; the ways out in an error are not tried yet."""
    # On top, the given length is where the schedule starts; the table beneath stays the file's.
    original = Configuration.read(config, None if request.on_top else request.original_length)
    chosen = choose(request.spec, original, request.layers)
    if not chosen:
        if request.freeze_at is not None:
            raise ScheduleError("as-is changes nothing, so it cannot be frozen; name a schedule")
        for rope in original.ropes.values():
            from_rope_parameters(rope)  # raises an error for scaling that cannot be read
        return Plan(request, original, original, {}, original.meant_length)
    settled = _settled(original, chosen, request)
    if settled is not None:
        plan = _planned(config, replace(request, original_length=settled.tokens))
        return replace(
            plan, notes=(f"the schedule starts from {settled}, which its factor extends to the target", *plan.notes)
        )
    given = {"factor": request.factor, "target_length": request.target_length, "overrides": request.overrides}
    layers = {}
    for key, rope in base_geometry(original, chosen, request).items():
        now = original.ropes[key]
        spec = chosen[key]
        kept = vendors.kept_fields(spec, now, request.overrides) if request.replace_scaling else {}
        layers[key] = PlannedLayer(now, rope, resolve(spec.with_fields(**kept), rope, **given), request.freeze_at)
    # Check idle schedules before the length, so that the error names the first cause.
    _refuse_idle(list(layers.values()), request.freeze_at)
    notes = [*_notes_on_start(original, layers, request)]
    # Sliding-window layers do not determine the context, unless no other layers rotate.
    full = [key for key in original.ropes if not is_windowed(key)]
    bounding = [key for key in layers if key in full or not full]
    if bounding:
        frozen = request.freeze_at if any(layer.is_frozen for layer in layers.values()) else None
        length = request.target_length or frozen or max(layers[key].reach for key in bounding)
    else:
        length = original.meant_length
        notes.append(f"only sliding-window layers change, so the context stays {length:,} tokens")
    for layer in layers.values():
        layer.refuse_undeclared(length)
    if request.replace_scaling:
        notes = [*vendors.remarks(layers, chosen, request.overrides, length), *notes]
    notes += _notes_on_effect(layers, length)
    scaling = scaling_of(layers, original, length)
    if not bounding:
        scaling = replace(scaling, max_length=original.max_length)
    if original.family.derives_attention_scale and scaling.max_length != length:
        rotary_dim = max(layer.rope.rotary_dim for layer in layers.values())
        notes.append(
            f"{original.model_type} derives its attention scale from max_position_embeddings, which therefore "
            f"becomes {scaling.max_length}; the intended context is {length}, which no engine enforces "
            f"(vLLM: --max-model-len {length}; its cos and sin for {scaling.max_length:,} positions take "
            f"{size(scaling.max_length * rotary_dim * 2)} at 16 bits)"
        )
    planned = Configuration.read(write_rope(original, scaling))
    _refuse_moved(original, planned, scaling, layers)
    return Plan(request, original, planned, layers, length, tuple(notes), why_unsavable(layers, length, original))


def _settled(configuration: Configuration, chosen: Mapping[str, Spec], request: Request) -> StatedLength | None:
    """Returns the one of two stated lengths that the request settles on; None if the file states one, or both do.

    Raises:
        ConfigError: the results differ, or one reading is refused.
    """
    first, second = configuration.lengths.start(request.on_top)
    is_stated = configuration.is_scaled and not any(configuration.ropes[key].is_scaled for key in chosen)
    if second is None or is_stated or request.original_length is not None:
        return None
    if request.target_length is not None:
        factors = [request.factor or spec.with_text(request.overrides).given.get("factor") for spec in chosen.values()]
        fitting = [
            each
            for each in (first, second)
            if all(is_number(by) and abs(by * each.tokens - request.target_length) < 1 for by in factors)
        ]
        if len(fitting) == 1:
            return fitting[0]
    found: list[object] = []
    for reading in (first, second):
        try:
            plan = _planned(configuration.raw, replace(request, original_length=reading.tokens))
        except RopescaleError:
            found.append(None)
        else:
            found.append((plan.tables, plan.length, plan.planned.max_length))
    if found[0] != found[1]:
        raise ConfigError(f"{configuration.lengths.doubt(request.on_top)}; give the original length", "original_length")
    return None


def plan_of_own(config: Json) -> Plan:
    """Plans a configuration's own tables, to restore them in a model with other tables.

    Raises:
        ConfigError: the model has no RoPE, or has contradictory keys.
        ScheduleError: transformers does not have the rope type.
    """
    original = Configuration.read(config)
    layers = {key: PlannedLayer(rope, rope, AsIs().bound(rope)) for key, rope in original.ropes.items()}
    return Plan(Request("as-is"), original, original, layers, original.meant_length)


def is_as_is(spec: object) -> bool:
    """Whether a spec, in any form, denotes ``as-is``.

    Raises:
        ScheduleError: the spec is invalid.
    """
    parsed = parse(spec)
    return not isinstance(parsed, Mapping) and parsed.text == "as-is"


def _refuse_idle(layers: Sequence[PlannedLayer], length: int | None) -> None:
    """Raises an error if all schedules are frozen at a length at which they change no frequency."""
    if length is not None and all(layer.is_frozen and layer.leaves_all(length) for layer in layers):
        trained = layers[0].rope.original_length
        raise ScheduleError(
            f"{describe(layers[0].requested)} frozen at {length:,} tokens leaves every frequency unchanged: the "
            f"schedule only affects contexts beyond the trained length of {trained:,}",
            advice=[frozen(length, layers[0].rope)],
        )


def _refuse_moved(before: Configuration, after: Configuration, scaling: Scaling, layers: PlannedLayers) -> None:
    """Raises an error if the new ``max_position_embeddings`` makes transformers compute unplanned tables.

    Raises:
        ScheduleError: dynamic scaling would start from a length other than the trained one, or unchanged layers have a
            scaling that depends on the maximum or is unknown.
        ConfigError: the new configuration contradicts itself.
    """
    for key, parameters in scaling.parameters.items():
        trained = layers[key].rope.original_length
        if parameters["rope_type"] == "dynamic" and trained != scaling.max_length:
            raise ScheduleError(
                f"dynamic scaling starts from max_position_embeddings, which stays {scaling.max_length}, and "
                f"{brief(key)} layers were trained at {trained}",
                advice=[others(2 * trained)],
            )
    for key in before.ropes.keys() - layers.keys():
        rope = before.ropes[key]
        new = after.ropes[key]
        from_rope_parameters(rope)  # raises an error for an unknown rope type
        kind = rope.kind
        if kind not in ("yarn", "dynamic", "longrope"):
            continue
        if stock_table(rope, rope.original_length) != stock_table(new, new.original_length):
            derived = f"; write its factor {rope.max_length / rope.original_length!r} there" if kind == "yarn" else ""
            raise ScheduleError(
                f"{brief(key)} layers must not change, but their {kind} follows max_position_embeddings in "
                f"config.json, which changes{derived}",
                advice=[WayOut("choose all layers", options={"layers": "all"})],
            )


def check_taken(specs: Sequence[ParsedSpec], request: Request) -> None:
    """Raises an error for an option that has no effect because no schedule has its field.

    Raises:
        ScheduleError: no schedule has a given field; the message names the field.
    """
    for name in ("factor", "target_length"):
        if getattr(request, name) is not None and not any(takes(spec, "factor") for spec in specs):
            raise ScheduleError(
                f"{name} is given, but no schedule takes a factor; name one, such as yarn, or leave {name} out", name
            )
    for key in request.overrides:
        if not any(takes(spec, key) for spec in specs):
            raise ScheduleError(
                f"none of the given schedules has the field {key!r}; use a schedule that has it, or remove the field",
                "overrides",
            )


_WITHOUT_EFFECT = {
    "factor": "no schedule takes a factor",
    "target_length": "no schedule takes a length",
    "original_length": "no schedule takes a length",
    "overrides": "no schedule has these fields",
    "replace_scaling": "this model has no scaling by its makers to replace",
    "on_top": "this model has no scaling to build on",
    "freeze_at": "the schedule has the same table at every length",
    "layers": "the schedule names its layer types",
}


def refuse_unused(request: Request, used: Collection[str]) -> None:
    """Raises an error for an option without effect; every public function asks this after planning.

    Args:
        request: the options as given.
        used: the options that the plans (:attr:`Plan.used`) or the caller use.

    Raises:
        ScheduleError: an option has no effect; the message says why.
    """
    for name in request.given():
        if name in used:
            continue
        if request.spec is None:
            raise ScheduleError(f"{name} needs a schedule; name one, such as yarn, or leave it out", name)
        why = "as-is keeps the frequencies" if is_as_is(request.spec) else _WITHOUT_EFFECT[name]
        raise ScheduleError(f"{name} has no effect: {why}; leave it out", name)


def share_of(spec: ParsedSpec, request: Request) -> Request:
    """Returns the request for one of several schedules, with only the fields that it accepts."""
    return replace(
        request,
        spec=spec,
        factor=request.factor if takes(spec, "factor") else None,
        overrides={key: text for key, text in request.overrides.items() if takes(spec, key)},
        freeze_at=None if is_as_is(spec) else request.freeze_at,
    )


def lacks_factor(spec: ParsedSpec, request: Request) -> bool:
    """Whether a schedule, or the schedule of any layer type, lacks a factor that it needs."""
    if request.factor is not None or "factor" in request.overrides:
        return False
    return any(part.lacks("factor") and part.known["factor"].required for part in parts_of(spec))


# --- Notes on the origin of a plan's numbers, and on surprising effects


def _notes_on_start(configuration: Configuration, layers: PlannedLayers, request: Request) -> Iterator[str]:
    """Yields notes on the configuration's lengths, on unchanged layers and on replaced scaling."""
    ropes = configuration.ropes
    kinds = configuration.layer_types
    if ALL_LAYERS in ropes and len(kinds) > 1 and any(map(is_windowed, kinds)):
        yield "this model keeps one table for all its layers, so the sliding-window layers change as well"
    rope = next(iter(ropes.values()))
    counts = not rope.is_scaled and not request.on_top and request.original_length is None
    if counts and rope.original_length != rope.max_length:
        yield (
            f"the configuration states {rope.max_length:,} positions, but the model was trained at "
            f"{rope.original_length}; the factor counts from {rope.original_length} (give the "
            f"original length {rope.max_length} to count from that)"
        )
    for name, value in configuration.ignored.items():
        yield (
            f"{name} {brief(value)} is left out of the new configuration: {configuration.model_type} does not "
            "read it, but transformers' scaled rope types would"
        )
    sections = [dotted(path) for path in sections_in(configuration.raw) if path != configuration.path]
    if sections:
        yield f"unchanged, though it describes a language model: {listed(sections)}"
    if untouched := [key for key in ropes if key not in layers]:
        yield f"unchanged layers: {listed(untouched)}"
    had = configuration.meant_length
    length = request.target_length or max(layer.reach for layer in layers.values())
    if request.replace_scaling and length < had:
        yield (
            f"the context becomes {length:,} tokens, shorter than the vendor's {had:,}; "
            f"a target length of {had:,}, without a factor, keeps it"
        )


def _notes_on_effect(layers: PlannedLayers, length: int) -> Iterator[str]:
    """Yields notes on schedules that change nothing in some layers.

    Raises:
        ScheduleError: a schedule with a factor leaves every layer unchanged; scaling must not be silently ineffective.
    """
    idle = {}
    for key, layer in layers.items():
        if layer.stretch > 1 and layer.leaves_all(length):
            slowest = min((turns for turns in layer.rope.turns() if turns > 0), default=0.0)
            trained = f"the trained length of {layer.rope.original_length:,} tokens"
            why = (
                f"even the slowest pair makes {slowest:.3g} turns within {trained}"
                if slowest > 1
                else f"{trained} is too short for its ramp to reach any pair"
            )
            label = f"{label_of(layer.schedule)} with factor {layer.stretch:g}"
            idle[key] = f"{label} leaves every frequency unchanged: {why}"
    if idle and len(idle) == len(layers):
        raise ScheduleError(next(iter(idle.values())), advice=[others(length)])
    for key, text in idle.items():
        yield f"{key}: {text}"
