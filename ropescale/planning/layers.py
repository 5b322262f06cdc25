"""The schedule of a layer type on its base geometry, and its form in transformers' rope parameters.

Every table is computed only once.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from ..configs.class_defaults import ALL_LAYERS
from ..configs.configuration import Configuration, Scaling, read_by_queries
from ..configs.families import Family
from ..configs.finding import ORIGINAL
from ..configs.section import Parameters
from ..errors import ConfigError, ScheduleError, WayOut
from ..files import is_number
from ..lengths import LONGEST
from ..output.formatting import brief, cut, listed, suggest
from ..request import Request, beyond, frozen, others
from ..rope import Rope
from ..schedules import Frequencies, Schedule, Table, compute, describe
from ..schedules.as_is import from_rope_parameters, stock_table
from ..schedules.base import label_of, length_dependent
from ..schedules.fields import plain
from ..schedules.specs import Spec, parse
from ..schedules.table import divisors


@dataclass(frozen=True)
class PlannedLayer:
    """A layer type with its planned schedule.

    Attributes:
        current: the geometry in the configuration.
        rope: the geometry that the schedule builds on.
        requested: the requested schedule.
        freeze_at: the length in tokens at which a length-dependent schedule is frozen.
    """

    current: Rope
    rope: Rope
    requested: Schedule
    freeze_at: int | None = None
    _tables: dict[int, Frequencies] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def is_frozen(self) -> bool:
        """Whether the schedule is replaced by its table at one length."""
        return self.freeze_at is not None and length_dependent(self.requested)

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule that changes the layers: the requested one, or its frozen table."""
        if not self.is_frozen:
            return self.requested
        table = compute(self.requested, self.rope, self.freeze_at)
        return Table(inv_freq=tuple(table.inv_freq), attention_factor=table.attention_scale / self.rope.table_scale)

    @property
    def label(self) -> str:
        """The schedule in one line: ``dynamic:factor=4 frozen at 16384 tokens``."""
        return describe(self.requested) + (f" frozen at {self.freeze_at} tokens" if self.is_frozen else "")

    def table(self, length: int) -> Frequencies:
        """Returns the frequencies at a length in tokens."""
        if length not in self._tables:
            self._tables[length] = compute(self.schedule, self.rope, length)
        return self._tables[length]

    @property
    def stretch(self) -> float:
        """The factor of the innermost schedule; 1 if it has no factor."""
        factor = plain(getattr(innermost(self.schedule), "factor", 1.0))
        if isinstance(factor, int) and factor > LONGEST:
            return math.inf  # an integer of hundreds of digits exceeds float
        return float(factor) if is_number(factor) else 1.0

    @property
    def reach(self) -> int:
        """The trained length times the factor, in tokens.

        Raises:
            ScheduleError: the result exceeds any context.
        """
        trained = self.rope.original_length
        length = self.stretch * trained
        if not length <= LONGEST:
            raise ScheduleError(
                f"{describe(self.schedule)} extends {trained:,} tokens to {length:.3g}; give a smaller factor"
            )
        return max(round(length), trained)

    def leaves_all(self, length: int) -> bool:
        """Whether the schedule changes no frequency at a length."""
        return list(self.table(length).inv_freq) == self.rope.inv_freq()

    def replaces(self, length: int) -> bool:
        """Whether the schedule changes frequencies at a length, or replaces scaling."""
        dropped = self.current.is_scaled and self.rope.table is None
        return dropped or not self.leaves_all(length)

    def refuse_undeclared(self, length: int) -> None:
        """Raises an error for an undeclared dependence on the length, because the schedule would be frozen silently.

        Built-in schedules are also checked, because they may contain a user's schedule.
        """
        if length_dependent(self.schedule):
            return
        first, *others = map(self.table, (1, self.rope.original_length, length, 2 * length, 8 * length))
        if any(other != first for other in others):
            raise ScheduleError(
                f"{label_of(innermost(self.schedule))} changes its frequencies with the length without declaring it; "
                "set the class attribute length_dependent = True"
            )


PlannedLayers = Mapping[str, PlannedLayer]
"""The planned layers, by layer type."""


def innermost(schedule: Schedule) -> Schedule:
    """Returns the innermost schedule; ``resonance`` contains another schedule."""
    inner = getattr(schedule, "over", None)
    return schedule if inner is None else innermost(inner)


def choose(spec: object, configuration: Configuration, layers: str | None) -> dict[str, Spec]:
    """Returns the spec of each layer type; layer types that stay ``as-is`` are left out.

    Raises:
        ScheduleError: the spec is invalid, or names layer types that the model lacks.
        ConfigError: ``layers`` names layer types that the model lacks or that do not rotate.
    """
    parsed = parse(spec)
    if not isinstance(parsed, Mapping):
        return {} if parsed.text == "as-is" else dict.fromkeys(_layer_types(layers or "full", configuration), parsed)
    for key in parsed:
        if ALL_LAYERS in configuration.ropes:
            raise ScheduleError(
                f"this model keeps one table for all its layers, so {key} cannot have its own schedule; give "
                "one schedule for all"
            )
        if key not in configuration.ropes:
            raise ScheduleError(
                f"this model has no layer type {brief(key)} that rotates; it has {listed(configuration.ropes)}"
            )
    return {key: part for key, part in parsed.items() if part.text != "as-is"}


def is_windowed(layer_type: str) -> bool:
    """Whether the name of this layer type denotes sliding-window attention."""
    # "main" is DeepSeek-V4's name for its layers without a compressor.
    return any(word in layer_type for word in ("sliding", "local", "chunked")) or layer_type == "main"


def window_of(configuration: Configuration, layer_type: str) -> int | None:
    """Returns the attention window of a layer type in tokens; None for full attention or an unstated window."""
    if not is_windowed(layer_type):
        return None
    window = configuration.default_of(configuration.family.window or "sliding_window")
    return window if isinstance(window, int) and not isinstance(window, bool) and window > 0 else None


def _layer_types(layers: str, configuration: Configuration) -> list[str]:
    """Returns the layer types that ``full``, ``all`` or a layer type selects."""
    ropes = configuration.ropes
    section = configuration.section
    window = configuration.family.window
    if layers == "all":
        return list(ropes)
    if layers in ropes:
        return [layers]
    if layers != "full" and ALL_LAYERS in ropes:
        raise ConfigError(
            f"this model keeps one table for every layer, so {brief(layers)} cannot be changed separately; change all",
            "layers",
        )
    if layers != "full":
        advice = suggest(layers, [*ropes, "full", "all"], "")
        raise ConfigError(
            f"this model has no layers {brief(layers)}; {f'{advice} It' if advice else 'it'} has {listed(ropes)} "
            "(or full, or all)",
            "layers",
        )
    full = [key for key in ropes if not is_windowed(key)]
    # A list per layer (0: no rotation) may leave only sliding-window layers (Granite SWA, SmolLM 3).
    rotating = section.get("layer_rope_theta") or section.get("no_rope_layers")
    kinds = section.get("layer_types")
    rotating = rotating if isinstance(rotating, list) else []
    kinds = kinds if isinstance(kinds, list) and len(kinds) == len(rotating) else []
    only_windowed = {is_windowed(str(kind)) for kind, theta in zip(kinds, rotating) if theta} == {True}
    if (window and configuration.default_of(window)) or not full or only_windowed:
        raise ConfigError(
            f"the full-attention layers of {configuration.model_type} do not rotate, and changing the sliding-window "
            "layers does not extend the context",
            advice=[WayOut("choose all layers to change them anyway", options={"layers": "all"})],
        )
    return full


def base_geometry(configuration: Configuration, chosen: Iterable[str], request: Request) -> dict[str, Rope]:
    """Returns the geometry that the schedule of each chosen layer type builds on.

    Raises:
        ConfigError: a layer type is already scaled, and the request sets neither ``replace_scaling`` nor ``on_top``, or
            its choice is impossible for this scaling.
    """
    lengths = configuration.lengths
    found = {key: _base_of(configuration.ropes[key], request, lengths.other_trained is None) for key in chosen}
    if not request.on_top:
        return found
    # Layers without scaling start from the model's current length as well; another theta may have extended it.
    length = request.original_length or lengths.served.tokens
    if length == lengths.trained.tokens and lengths.other_served is None:
        length = lengths.served.tokens
    elif configuration.is_scaled and lengths.other_trained and length == lengths.other_trained.tokens:
        length = configuration.max_length
    return {key: replace(rope, original_length=length) for key, rope in found.items()}


def describe_scaling(rope: Rope) -> str:
    """Returns a configuration's scaling as text: ``yarn x32 of 4096``."""
    factor = rope.scaling.get("factor")
    times = f" x{factor:g}" if is_number(factor) and factor <= LONGEST else ""
    return f"{cut(rope.kind, 60)}{times} of {rope.scaling.get(ORIGINAL) or rope.original_length}"


def _base_of(rope: Rope, request: Request, is_clear: bool) -> Rope:
    """Returns the geometry without its scaling, or with the table of its scaling for further scaling on top.

    Args:
        is_clear: whether the trained length has one reading.
    """
    if not rope.is_scaled:
        return rope
    if request.replace_scaling:
        partial = {key: value for key, value in rope.scaling.items() if key == "partial_rotary_factor"}
        kind = "proportional" if rope.rotated_pairs is not None else "default"
        return replace(rope, scaling={"rope_type": kind, "rope_theta": rope.theta, **partial})
    if not request.on_top:
        original = f"its original {rope.original_length:,} tokens" if is_clear else "the original_length you give"
        given = {} if is_clear else {"original_length": rope.original_length}
        instead = f"replace the scaling (the new one computes from {original})"
        raise ConfigError(
            f"this model is already scaled ({describe_scaling(rope)})",
            advice=[
                WayOut(instead, options={"replace_scaling": True, **given}),
                WayOut("compose with it", options={"on_top": True}),
            ],
        )
    if length_dependent(from_rope_parameters(rope)[0]):
        raise ConfigError(
            f"this model's scaling ({describe_scaling(rope)}) changes with the length, so it has no single table to "
            "build on; replace the scaling",
            "replace_scaling",
        )
    table = stock_table(rope, rope.max_length)
    return replace(rope, table=tuple(table.inv_freq), table_scale=table.attention_scale)


# --- transformers' own keys: rope parameters and ``max_position_embeddings``


def scaling_of(layers: PlannedLayers, configuration: Configuration, length: int) -> Scaling:
    """Returns the schedules as a configuration's scaling; a schedule that it cannot express becomes plain RoPE.

    Raises:
        ScheduleError: the model's class supports only theta, or no length gives the attention scale that it derives.
    """
    family = configuration.family
    parameters = {}
    for key, layer in layers.items():
        form = parameters_of(layer, length, family)
        if form is None and family.takes_only_theta:  # applies in memory as well as to a file
            raise ScheduleError(
                f"{configuration.model_type} supports only another rope_theta, and {label_of(layer.schedule)} changes "
                "more",
                advice=[others(beyond(length, layer.rope))],
            )
        parameters[key] = form or {"rope_type": "default"}
    original = max(layer.rope.original_length for layer in layers.values())
    kinds = [form["rope_type"] for form in parameters.values()]
    if family.derives_attention_scale and kinds == ["longrope"]:
        scale = next(iter(layers.values())).table(length).attention_scale
        return Scaling(parameters, _derived_length(scale, original), original)
    # Engines multiply the maximum by these factors, or interpret it as the trained length.
    keeps = [
        form["rope_type"] in ("linear", "dynamic")
        or (form["rope_type"] == "proportional" and form.get("factor", 1) != 1)
        for form in parameters.values()
    ]
    stays = "dynamic" in kinds or all(keeps)
    return Scaling(parameters, original if stays else max(length, original), original)


def parameters_of(layer: PlannedLayer, length: int, family: Family) -> Parameters | None:
    """Returns a layer's rope parameters: the native form, or one factor per pair; None if neither is possible."""
    native = getattr(layer.schedule, "rope_parameters", None)
    rope = layer.rope
    form = native(rope) if callable(native) else None
    kind = str(form["rope_type"]) if isinstance(form, Mapping) else ""
    odd = kind == "yarn" and rope.rotary_dim % 2  # transformers cannot build half a pair
    kept = read_by_queries(layer.current.scaling)
    if isinstance(form, Mapping) and family.takes(kind) and not odd and kept.items() <= {**kept, **form}.items():
        # A proportional model stays proportional if a user's own schedule requests the default type.
        stays = kind == "default" and rope.rotated_pairs is not None
        return {**form, "rope_type": "proportional"} if stays else dict(form)
    if length_dependent(layer.schedule) or family.takes_only_theta:
        return None
    return per_pair(layer.table(length), rope, max(1.0, length / rope.original_length))


def per_pair(table: Frequencies, rope: Rope, factor: float) -> Parameters:
    """Returns any fixed table in the most portable form: longrope with equal lists.

    Factor i is ``theta^(-2i/d) / inv_freq_i``. ``short_mscale`` and ``long_mscale`` repeat the attention factor
    for code that reads it there: vLLM, SGLang, and all code for phimoe. mlx-lm's other models ignore them.
    """
    factors = divisors(table.inv_freq, rope)
    scale = float(table.attention_scale)
    whole_head = {"partial_rotary_factor": 1.0} if rope.rotated_pairs is not None else {}
    # DeepSeek's classes scale the softmax by these for any rope type; a composed schedule keeps that.
    softmax = rope.scaling if rope.table is not None and rope.scaling.get("mscale_all_dim") else {}
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": list(factors),
        "factor": factor,
        ORIGINAL: rope.original_length,
        "attention_factor": scale,
        "short_mscale": scale,
        "long_mscale": scale,
        **whole_head,
        **{key: softmax[key] for key in ("factor", "mscale", "mscale_all_dim") if key in softmax},
    }


def why_unsavable(layers: PlannedLayers, length: int, configuration: Configuration) -> ScheduleError | None:
    """Returns why no configuration file can express these schedules, or None; the ways out are not tried yet."""
    family = configuration.family
    for layer in layers.values():
        label = label_of(layer.schedule)
        scale = layer.table(length).attention_scale
        if length_dependent(layer.schedule) and parameters_of(layer, length, family) is None:
            return ScheduleError(
                f"{label} changes its frequencies with the length, which no configuration file can express",
                advice=[frozen(length, layer.rope), others(beyond(length, layer.rope))],
            )
        if family.derives_attention_scale and scale < 1:
            return ScheduleError(
                f"{configuration.model_type} has no key for an attention scale below 1, and {label} has {scale:g}",
                advice=[of_scale(1.0), others(beyond(length, layer.rope))],
            )
    return None


def of_scale(scale: float) -> WayOut:
    """Returns the way out by another attention factor."""
    return WayOut(f"give attention_factor={scale!r}", options={"overrides": {"attention_factor": repr(scale)}})


_PRECISION = 1e-5
"""The relative tolerance of a derived attention scale; at a trained length of 4,096 the error is below 1e-6."""


def _derived_length(attention_scale: float, original: int) -> int:
    """Returns the maximum from which Phi-3's own code derives this attention scale: ``L^(scale^2)``.

    Phi-3's class in transformers 4 accepts no attention factor and computes ``sqrt(1 + ln(max / L) / ln L)``.

    Raises:
        ScheduleError: the maximum would be longer than any context, or no whole number gives this scale.
    """
    scale = max(attention_scale, 1.0)
    log_length = scale**2 * math.log(original)
    if log_length > math.log(LONGEST):
        raise ScheduleError(
            f"an attention scale of {attention_scale:g} needs a max_position_embeddings of e^{log_length:.0f} in this "
            "model, which derives the scale from the maximum",
            advice=[of_scale(1.0)],
        )
    maximum = round(original**scale**2)
    derived = math.sqrt(math.log(maximum) / math.log(original))
    if not math.isclose(derived, scale, rel_tol=_PRECISION):
        raise ScheduleError(
            "this model derives its attention scale from the whole number max_position_embeddings, and at a trained "
            f"length of {original} no maximum gives {attention_scale:.6g} (the nearest, {maximum}, gives "
            f"{derived:.6g})",
            advice=[of_scale(derived)],
        )
    return maximum
