"""What a schedule does to a configuration: the one computation behind patching in memory and on disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import ConfigError, ScheduleError
from .rope import ALL_LAYERS, Rope, Scaling, is_scaled, read_rope, text_section, write_rope
from .schedules import AsIs, Frequencies, Schedule, Table, compute
from .schedules import specs as schedule_specs
from .schedules.as_is import from_rope_parameters
from .schedules.base import label_of

Spec = Any
"""A schedule, a spec string, its JSON form, or ``{layer type: one of these}``."""

NEVER_TURNS = 1e30
"""The per-pair factor that stands for frequency zero (JSON has no infinity)."""

_KEEPS_MAX_LENGTH = ("linear", "dynamic", "proportional")
"""Forms that leave ``max_position_embeddings`` at the trained length: engines multiply or read it themselves."""

_PER_PAIR_ONLY = ("phi3", "phi4_multimodal")
"""Types whose configuration class accepts no rope type but ``default`` and ``longrope``."""

_FULL_LAYERS_DO_NOT_ROTATE = ("afmoe", "cohere2", "cohere2_moe", "exaone4", "exaone_moe", "flint", "kolibri1")
"""Types with one table whose full-attention layers use no position embedding at all."""

_WINDOWED = ("sliding", "local", "compress", "chunked")


@dataclass(frozen=True)
class Plan:
    """A schedule worked out for one configuration; nothing is changed yet.

    Attributes:
        config: the configuration that carries the schedule.
        before: the configuration it started from (the original one, where ropescale had patched before).
        schedules: the resolved schedule of each layer type that changes.
        ropes: the geometry each of them was given.
        tables: their float64 frequencies at :attr:`length`.
        length: the context the model is meant for now, in tokens.
        notes: what the user should know about how the numbers came about.
        unsavable: why no configuration can carry this schedule, or None.
    """

    config: dict[str, Any]
    before: Mapping[str, Any]
    schedules: Mapping[str, Schedule]
    ropes: Mapping[str, Rope]
    tables: Mapping[str, Frequencies]
    length: int
    notes: tuple[str, ...] = ()
    unsavable: str | None = None

    @property
    def changes(self) -> bool:
        """False for ``as-is``, which leaves everything alone."""
        return bool(self.schedules)


def make_plan(
    config: Mapping[str, Any],
    spec: Spec,
    *,
    factor: float | None = None,
    target_length: int | None = None,
    original_length: int | None = None,
    overrides: Mapping[str, str] | None = None,
    layers: str = "full",
    replace_scaling: bool = False,
    on_top: bool = False,
    freeze_at: int | None = None,
) -> Plan:
    """Works out a schedule for a configuration.

    Args:
        config: a parsed ``config.json`` or ``model.config.to_dict()``.
        spec: the schedule, in any of its forms.
        factor, target_length, overrides: fill in the schedule's fields; they must not contradict each other.
        original_length: the trained length in tokens, where the configuration does not know it.
        layers: ``full``, ``all`` or a layer type, for models that keep one table per layer type.
        replace_scaling, on_top: what to do with scaling that the makers put in.
        freeze_at: turn a length-dependent schedule into the fixed table it has at this length.

    Raises:
        ConfigError: no RoPE, already scaled and not told what to do, contradicting views.
        ScheduleError: the schedule does not fit, or would change nothing.
    """
    if replace_scaling and on_top:
        raise ConfigError("--replace-scaling and --on-top exclude each other; choose one")
    parsed = schedule_specs.parse(spec)
    if _is_as_is(parsed):
        return Plan(dict(config), config, {}, {}, {}, max(r.max_length for r in read_rope(config).values()))
    ropes = read_rope(config, original_length)
    chosen = _choose(parsed, ropes, layers, config)
    notes = _notes(config, ropes, chosen, original_length)
    grounds = {key: _ground(ropes[key], replace_scaling, on_top, original_length) for key in chosen}
    schedules = {
        key: _frozen(
            schedule_specs.resolve(
                part, grounds[key], factor=factor, target_length=target_length, overrides=overrides
            ),
            grounds[key],
            freeze_at,
        )
        for key, part in chosen.items()
    }
    return _planned(config, schedules, grounds, target_length or freeze_at, notes)


def frequencies_of(config: Mapping[str, Any], spec: Spec, length: int | None = None, **options: Any) -> dict[str, Frequencies]:
    """``{layer type: Frequencies}`` of a configuration under a schedule, in float64.

    Layer types that the schedule leaves alone carry what the configuration has. ``length`` is the context
    being processed (only length-dependent schedules look at it); the planned length when None.
    """
    plan = make_plan(config, spec, **options)
    ropes = read_rope(config, options.get("original_length"))
    tables = {key: compute(AsIs(), rope, length) for key, rope in ropes.items()}
    for key, schedule in plan.schedules.items():
        tables[key] = plan.tables[key] if length is None else compute(schedule, plan.ropes[key], length)
    return tables


def length_dependent(schedule: Schedule) -> bool:
    """Whether a schedule says that its numbers change with the context being processed."""
    return bool(getattr(schedule, "length_dependent", False))


def _planned(
    config: Mapping[str, Any],
    schedules: Mapping[str, Schedule],
    ropes: Mapping[str, Rope],
    target_length: int | None,
    notes: list[str],
) -> Plan:
    model_type = str(text_section(config).get("model_type"))
    original = max(rope.original_length for rope in ropes.values())
    stretched = max(round(_stretch(schedules[key]) * ropes[key].original_length) for key in schedules)
    length = target_length or stretched
    tables = {key: compute(schedules[key], ropes[key], length) for key in schedules}
    _refuse_without_effect(schedules, ropes, tables)
    parameters = {key: _parameters(schedules[key], ropes[key], length, model_type) for key in schedules}
    unsavable = next((_reason(schedules[key]) for key, value in parameters.items() if value is None), None)
    written = {key: value or {"rope_type": "default"} for key, value in parameters.items()}
    max_length = _max_length(written, schedules, tables, original, length, model_type)
    new = write_rope(config, Scaling(written, max_length, original))
    return Plan(new, config, schedules, ropes, tables, length, tuple(notes), unsavable)


def _is_as_is(parsed: Any) -> bool:
    return not isinstance(parsed, Mapping) and isinstance(parsed.build() if parsed.text == "as-is" else None, AsIs)


def _choose(parsed: Any, ropes: Mapping[str, Rope], layers: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Which part of the spec goes to which layer type."""
    if isinstance(parsed, Mapping):
        unknown = [key for key in parsed if key not in ropes]
        if unknown:
            raise ScheduleError(f"this model has no layer type {unknown[0]!r} that rotates; it has {', '.join(ropes)}")
        return {key: part for key, part in parsed.items() if part.text != "as-is"}
    return {key: parsed for key in _layer_types(ropes, layers, config)}


def _layer_types(ropes: Mapping[str, Rope], layers: str, config: Mapping[str, Any]) -> list[str]:
    section = text_section(config)
    if layers == "all":
        return list(ropes)
    if layers not in ("full", *ropes):
        raise ConfigError(f"this model has no layers {layers!r}; it has {', '.join(ropes)} (or full, or all)")
    if layers in ropes:
        return [layers]
    if section.get("model_type") in _FULL_LAYERS_DO_NOT_ROTATE and section.get("sliding_window") is not None:
        raise ConfigError(
            f"{section['model_type']}: the full-attention layers do not rotate, so only the sliding layers would change; "
            "that does not extend the context. Give layers=all (--layers all) to change them all the same"
        )
    full = [key for key in ropes if not any(word in key for word in _WINDOWED)]
    if not full:
        raise ConfigError(
            f"the full-attention layers of this model do not rotate; only {', '.join(ropes)} do. "
            "Give layers=all (--layers all) to change them all the same"
        )
    return full


def _notes(
    config: Mapping[str, Any], ropes: Mapping[str, Rope], chosen: Mapping[str, Any], original_length: int | None
) -> list[str]:
    section, notes = text_section(config), []
    rope = next(iter(ropes.values()))
    if ALL_LAYERS in ropes and section.get("sliding_window") and len(set(section.get("layer_types") or ())) > 1:
        notes.append("this model keeps one table for all its layers, so the sliding layers change as well")
    if rope.original_length != rope.max_length and not is_scaled(rope) and original_length is None:
        notes.append(
            f"the configuration says {rope.max_length} positions, of which {rope.original_length} were trained; "
            f"computing from {rope.original_length} (--original-length says otherwise)"
        )
    untouched = [key for key in ropes if key not in chosen]
    if untouched:
        notes.append(f"layers left as they are: {', '.join(untouched)}")
    return notes


def _ground(rope: Rope, replace_scaling: bool, on_top: bool, original_length: int | None) -> Rope:
    """The geometry to build on: the plain one, unless there is scaling to compose with."""
    if not is_scaled(rope):
        return rope
    if replace_scaling:
        return _plain(rope, original_length)
    if on_top:
        return _current(rope, original_length)
    raise ConfigError(
        f"this model is already scaled ({describe_scaling(rope)}); --replace-scaling computes from its original "
        f"{rope.original_length} tokens, --on-top composes with what is there"
    )


def describe_scaling(rope: Rope) -> str:
    """``yarn x32 of 4096``: the scaling a configuration has, for people."""
    parameters = rope.scaling
    factor = parameters.get("factor")
    times = f" x{factor:g}" if isinstance(factor, (int, float)) else ""
    return f"{parameters.get('rope_type', 'default')}{times} of {rope.original_length}"


def _plain(rope: Rope, original_length: int | None) -> Rope:
    recorded = rope.scaling.get("original_max_position_embeddings") or rope.original_length != rope.max_length
    if not (recorded or original_length):
        raise ConfigError(
            f"this model is scaled by {rope.scaling['rope_type']} and does not record the length it was trained at; "
            "give it with --original-length"
        )
    kept = {"rope_type": "proportional" if rope.rotated_pairs is not None else "default", "rope_theta": rope.theta}
    return dataclasses.replace(rope, scaling=kept)


def _current(rope: Rope, original_length: int | None) -> Rope:
    if length_dependent(from_rope_parameters(rope)[0]):
        raise ConfigError(
            f"this model's scaling ({describe_scaling(rope)}) changes with the length, so there is no one table to "
            "build on; use --replace-scaling"
        )
    table = compute(AsIs(), rope, rope.max_length)
    return dataclasses.replace(
        rope,
        original_length=original_length or rope.max_length,
        table=tuple(table.inv_freq),
        table_scale=table.attention_scale,
    )


def _frozen(schedule: Schedule, rope: Rope, length: int | None) -> Schedule:
    if length is None:
        return schedule
    table = compute(schedule, rope, length)
    return Table(inv_freq=tuple(table.inv_freq), attention_factor=table.attention_scale)


def _refuse_without_effect(
    schedules: Mapping[str, Schedule], ropes: Mapping[str, Rope], tables: Mapping[str, Frequencies]
) -> None:
    """Scaling that silently does nothing is the failure this package exists to prevent."""
    for key, schedule in schedules.items():
        if _stretch(schedule) > 1 and list(tables[key].inv_freq) == ropes[key].inv_freq():
            raise ScheduleError(
                f"{label_of(schedule)} leaves every frequency of this model as it is: the trained length of "
                f"{ropes[key].original_length} tokens is too short for its ramp to reach any pair"
            )


def _stretch(schedule: Schedule) -> float:
    """How many times longer a schedule makes the context: its factor, or that of the schedule it wraps."""
    inner = getattr(schedule, "over", None)
    if inner is not None:
        return _stretch(inner)
    factor = getattr(schedule, "factor", 1.0)
    return float(factor) if isinstance(factor, (int, float)) else 1.0


def _parameters(schedule: Schedule, rope: Rope, length: int, model_type: str) -> dict[str, Any] | None:
    """v5 rope parameters: the native form, else one factor per pair; None where neither can say it."""
    native = getattr(schedule, "rope_parameters", None)
    parameters = native(rope) if callable(native) else None
    usable = model_type not in _PER_PAIR_ONLY or (parameters or {}).get("rope_type") in ("default", "longrope")
    if parameters is not None and usable:
        return _with_geometry(parameters, rope)
    if length_dependent(schedule):
        return None
    return per_pair(compute(schedule, rope, length), rope, max(1.0, length / rope.original_length))


def _with_geometry(parameters: dict[str, Any], rope: Rope) -> dict[str, Any]:
    """A model whose plain form is proportional stays so under ``default``."""
    if parameters["rope_type"] == "default" and rope.rotated_pairs is not None:
        return {**parameters, "rope_type": "proportional"}
    return parameters


def per_pair(table: Frequencies, rope: Rope, factor: float) -> dict[str, Any]:
    """Any fixed table in the one form that carries it everywhere: longrope with equal lists.

    Factor i is ``theta^(-2i/d) / inv_freq_i``. ``short_mscale`` and ``long_mscale`` repeat the attention factor
    for engines (vLLM, mlx) that read it from there.
    """
    plain = [rope.theta ** (-2 * i / rope.rotary_dim) for i in range(rope.pairs)]
    factors = [b / f if f else NEVER_TURNS for b, f in zip(plain, table.inv_freq)]
    scale = float(table.attention_scale)
    whole_head = {"partial_rotary_factor": 1.0} if rope.rotated_pairs is not None else {}
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": list(factors),
        "factor": factor,
        "original_max_position_embeddings": rope.original_length,
        "attention_factor": scale,
        "short_mscale": scale,
        "long_mscale": scale,
        **whole_head,
    }


def _max_length(
    parameters: Mapping[str, Mapping[str, Any]],
    schedules: Mapping[str, Schedule],
    tables: Mapping[str, Frequencies],
    original: int,
    length: int,
    model_type: str,
) -> int:
    kinds = {value["rope_type"] for value in parameters.values()}
    if model_type in _PER_PAIR_ONLY and kinds == {"longrope"}:
        return _phi3_length(next(iter(tables.values())).attention_scale, original)
    return original if kinds & set(_KEEPS_MAX_LENGTH) else max(length, original)


def _phi3_length(attention_scale: float, original: int) -> int:
    """The maximum from which Phi-3's own code derives this attention scale: ``L^(scale^2)``.

    Its v4 class accepts no attention factor and computes ``sqrt(1 + ln(max / L) / ln L)``.
    """
    return round(original ** (max(attention_scale, 1.0) ** 2))


def _reason(schedule: Schedule) -> str:
    return (
        f"{label_of(schedule)} changes its frequencies with the length, which no configuration file can say; "
        "freeze it at a length (freeze_at=N in Python, --freeze-at N on the command line)"
    )
