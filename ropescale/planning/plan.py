"""What a schedule does to a configuration: the one computation behind patching in memory and on disk."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from ..configs.configuration import Configuration
from ..configs.families import family
from ..configs.reading import ALL_LAYERS, default_of, ignored_keys, is_scaled, read_rope, text_section
from ..configs.writing import Scaling, write_rope
from ..errors import ConfigError, ScheduleError
from ..formatting import brief, cut, listed, size
from ..lengths import LONGEST, parse_length
from ..request import Request, RequestOptions
from ..rope import Rope
from ..schedules import AsIs, Frequencies, Schedule, Table, compute, describe
from ..schedules import specs as schedule_specs
from ..schedules.as_is import from_rope_parameters
from ..schedules.base import label_of, plain
from ..schedules.table import NEVER_TURNS

if TYPE_CHECKING:
    from typing import Unpack

Spec = Any
"""A schedule, a spec string, its JSON form, or ``{layer type: one of these}``."""

_WINDOWED = ("sliding", "local", "chunked")


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
        beneath: the makers' scaling, in words, of each layer type whose schedule is composed with it.
        frozen: what was frozen and where, in words, of each layer type whose table stands for a schedule that is not
            fixed: ``dynamic:factor=4 frozen at 16384 tokens``.
        request: what was asked for.
    """

    config: dict[str, Any]
    before: Mapping[str, Any]
    schedules: Mapping[str, Schedule]
    ropes: Mapping[str, Rope]
    tables: Mapping[str, Frequencies]
    length: int
    notes: tuple[str, ...] = ()
    unsavable: str | None = None
    beneath: Mapping[str, str] = field(default_factory=dict)
    frozen: Mapping[str, str] = field(default_factory=dict)
    request: Request = field(default=Request("as-is"), compare=False)

    @property
    def changes(self) -> bool:
        """False for ``as-is``, which leaves everything alone."""
        return bool(self.schedules)

    def label(self, layer_type: str) -> str:
        """A layer type's schedule for people, with what lies under it: ``linear:factor=2 on yarn x32 of 4096``."""
        label = self.frozen.get(layer_type) or describe(self.schedules[layer_type])
        return f"{label} on {self.beneath[layer_type]}" if layer_type in self.beneath else label


def make_plan(config: Mapping[str, Any], request: Request) -> Plan:
    """Works out a schedule for a configuration.

    Args:
        config: a parsed ``config.json`` or ``model.config.to_dict()``.
        request: the schedule, and how it is to be applied.

    Raises:
        ConfigError: no RoPE, already scaled and not told what to do, contradicting views.
        ScheduleError: the schedule does not fit, or would change nothing.
    """
    original_length, freeze_at = request.original_length, request.freeze_at
    replace_scaling, on_top = request.replace_scaling, request.on_top
    target_length = request.target_length
    parsed = schedule_specs.parse(request.spec)
    ropes = read_rope(config, original_length)
    chosen = _choose(parsed, ropes, request.layers, config)
    if not chosen:
        if freeze_at is not None:
            raise ScheduleError("as-is changes nothing, so there is nothing to freeze; name the schedule that you want")
        return Plan(dict(config), config, {}, {}, {}, max(rope.max_length for rope in ropes.values()), request=request)
    notes = _notes(config, ropes, chosen, original_length)
    grounds = {key: _ground(ropes[key], replace_scaling, on_top, original_length) for key in chosen}
    grounds = _counted_alike(grounds, original_length)
    given = {"factor": request.factor, "target_length": target_length, "overrides": request.overrides}
    asked = {key: schedule_specs.resolve(part, grounds[key], **given) for key, part in chosen.items()}
    schedules = {key: _frozen(schedule, grounds[key], freeze_at) for key, schedule in asked.items()}
    frozen = freeze_at if schedules != asked else None
    if freeze_at is not None:
        notes += _freezing_notes(asked, schedules, grounds, freeze_at)
    if replace_scaling:
        notes += [*_lost_softmax_scale(ropes, asked), *_other_fields(ropes, asked)]
        notes += _shorter(ropes, asked, target_length)
    plan = _planned(config, schedules, grounds, target_length or frozen, notes, ropes)
    changed = {key: describe(asked[key]) for key in asked if schedules[key] != asked[key]}
    labels = {key: f"{spec} frozen at {freeze_at} tokens" for key, spec in changed.items()}
    return replace(plan, frozen=labels, request=request)


def frequencies_of(
    config: Mapping[str, Any], spec: Spec, length: int | str | None = None, **options: Unpack[RequestOptions]
) -> dict[str, Frequencies]:
    """Returns ``{layer type: Frequencies}`` of a configuration under a schedule, in float64.

    Layer types that the schedule leaves alone carry what the configuration has. ``length`` is the context
    being processed (only length-dependent schedules look at it); the planned length when None.
    """
    request = Request.of(spec, **options)
    plan = make_plan(config, request)
    at = plan.length if length is None else parse_length(length)
    ropes = read_rope(config, request.original_length)
    return {key: compute(plan.schedules.get(key, AsIs()), plan.ropes.get(key, rope), at) for key, rope in ropes.items()}


def is_as_is(spec: Spec) -> bool:
    """Whether a spec, in any of its forms, asks for what the checkpoint has.

    Raises:
        ScheduleError: it cannot be read.
    """
    parsed = schedule_specs.parse(spec)
    return not isinstance(parsed, Mapping) and parsed.text == "as-is"


def length_dependent(schedule: Schedule) -> bool:
    """Whether a schedule says that its numbers change with the context being processed."""
    return bool(getattr(schedule, "length_dependent", False))


def _planned(
    config: Mapping[str, Any],
    schedules: Mapping[str, Schedule],
    ropes: Mapping[str, Rope],
    target_length: int | None,
    notes: list[str],
    there: Mapping[str, Rope],
) -> Plan:
    """The plan for schedules that stand on ``ropes``; ``there`` is what the configuration has, every layer type."""
    model_type = str(text_section(config).get("model_type"))
    original = max(rope.original_length for rope in ropes.values())
    reach = {key: _stretched(schedules[key], ropes[key]) for key in schedules}
    bounding = _bounding(schedules, there)
    had = max(rope.max_length for rope in there.values())
    length = (target_length or max(reach[key] for key in bounding)) if bounding else had
    if not bounding:
        notes = [*notes, f"only layers that see a window of the text change, so the context stays {had} tokens"]
    for key, schedule in schedules.items():
        _refuse_undeclared(schedule, ropes[key], length)
    tables = {key: compute(schedules[key], ropes[key], length) for key in schedules}
    notes = notes + _without_effect(schedules, ropes, tables)
    parameters = {key: _parameters(schedules[key], ropes[key], length, model_type) for key in schedules}
    _refuse_more_than_theta(model_type, schedules, parameters)
    unsavable = _unsavable(model_type, schedules, parameters, tables)
    written = {key: value or {"rope_type": "default"} for key, value in parameters.items()}
    max_length = _max_length(written, tables, original, length, model_type) if bounding else had
    notes += _length_notes(max_length, length, model_type, max(rope.rotary_dim for rope in ropes.values()))
    new = write_rope(Configuration.read(config), Scaling(written, max_length, original))
    _refuse_moved(there, read_rope(new), schedules)
    beneath = {key: describe_scaling(there[key]) for key, rope in ropes.items() if rope.table is not None}
    return Plan(new, config, schedules, ropes, tables, length, tuple(notes), unsavable, beneath)


def _refuse_moved(before: Mapping[str, Rope], after: Mapping[str, Rope], changed: Mapping[str, Schedule]) -> None:
    """Layers that are left as they are must stay so, also where their scaling follows the maximum, which changes.

    Raises:
        ScheduleError: they would not, or nobody can read what they have.
    """
    following = ("yarn", "dynamic", "longrope")
    for key in before.keys() - changed.keys():
        kind = _checked_kind(before[key])
        if kind in following and _as_it_is(before[key]) != _as_it_is(after[key]):
            raise ScheduleError(
                f"{brief(key)} layers are not to change, but their {kind} follows max_position_embeddings, which "
                "changes; write its factor into config.json, or give --layers all"
            )


def _checked_kind(rope: Rope) -> Any:
    """The rope type of layers that are left alone, once it is certain that there is such a type."""
    if rope.table is None:
        from_rope_parameters(rope)
    return rope.scaling.get("rope_type")


def _as_it_is(rope: Rope) -> Frequencies:
    """The table that a configuration asks for at its trained length."""
    return compute(AsIs(), rope, rope.original_length)


def _bounding(schedules: Mapping[str, Schedule], ropes: Mapping[str, Rope]) -> list[str]:
    """The layer types that change and decide how far the model reaches: not those that see a window of the text.

    Unless all its layers that rotate do, where it is they that were asked for.
    """
    full = [key for key in ropes if not is_windowed(key)]
    return [key for key in schedules if key in full or not full]


def _stretched(schedule: Schedule, rope: Rope) -> int:
    """The context, in tokens, that a schedule's factor makes of the trained length."""
    length = _stretch(schedule) * rope.original_length
    if not length <= LONGEST:
        name = describe(schedule)
        raise ScheduleError(f"{name} makes {length:.3g} tokens of {rope.original_length}; give a smaller factor")
    return max(round(length), rope.original_length)


def _refuse_undeclared(schedule: Schedule, rope: Rope, length: int) -> None:
    """A schedule that looks at the length must say so, or it would be frozen without a word.

    Of the built-in ones, those that hold another may hold one of the user's own.
    """
    if length_dependent(schedule):
        return
    lengths = (1, rope.original_length, length, 2 * length, 8 * length)
    first, *others = (compute(schedule, rope, n) for n in lengths)
    if any(other != first for other in others):
        raise ScheduleError(
            f"{label_of(_innermost(schedule))} gives other frequencies at other lengths and does not say so; "
            "set the class attribute length_dependent = True"
        )


def _innermost(schedule: Schedule) -> Schedule:
    """The schedule that one which holds another (resonance) was given."""
    inner = getattr(schedule, "over", None)
    return schedule if inner is None else _innermost(inner)


def _choose(parsed: Any, ropes: Mapping[str, Rope], layers: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Which part of the spec goes to which layer type; ``as-is`` goes nowhere."""
    if not isinstance(parsed, Mapping):
        return {} if parsed.text == "as-is" else dict.fromkeys(_layer_types(ropes, layers, config), parsed)
    for key in parsed:
        if ALL_LAYERS in ropes:
            raise ScheduleError(
                f"this model keeps one table for all its layers, so {key} cannot have a schedule of its own; give one"
            )
        if key not in ropes:
            raise ScheduleError(f"this model has no layer type {brief(key)} that rotates; it has {listed(ropes)}")
    return {key: part for key, part in parsed.items() if part.text != "as-is"}


def _layer_types(ropes: Mapping[str, Rope], layers: str, config: Mapping[str, Any]) -> list[str]:
    """``full``, ``all`` or a layer type as the keys of ``ropes``."""
    if layers == "all":
        return list(ropes)
    if layers in ropes:
        return [layers]
    if layers != "full":
        raise ConfigError(_no_layers(layers, ropes))
    model_type = str(text_section(config).get("model_type"))
    bound = family(model_type).window
    full = [key for key in ropes if not is_windowed(key)]
    if (bound and default_of(config, bound)) or not full or _only_windowed_rotate(config):
        raise ConfigError(
            f"the full-attention layers of {model_type} do not rotate; only the layers that see a window of the text "
            "do, and changing those does not extend the context. Give --layers all (layers='all' in Python) to "
            "change them all the same"
        )
    return full


def _only_windowed_rotate(config: Mapping[str, Any]) -> bool:
    """Whether a list per layer (0: no rotation) leaves only layers that see a window (Granite SWA, SmolLM 3)."""
    section = text_section(config)
    rotating = section.get("layer_rope_theta") or section.get("no_rope_layers")
    kinds = section.get("layer_types")
    if not (isinstance(rotating, list) and isinstance(kinds, list) and len(rotating) == len(kinds)):
        return False
    found = {is_windowed(str(kind)) for kind, theta in zip(kinds, rotating) if theta}
    return found == {True}


def _no_layers(layers: str, ropes: Mapping[str, Rope]) -> str:
    """What to say of a layer type that is not there; the start of a name or a slip of the pen finds the one meant."""
    if ALL_LAYERS in ropes:
        shown = brief(layers)
        return f"this model keeps one table for all its layers, so {shown} cannot be changed alone; leave --layers out"
    known = [*ropes, "full", "all"]
    begun = [key for key in known if key.startswith(layers)] if layers else []
    close = begun or difflib.get_close_matches(layers, known, n=1)
    meant = f"did you mean {brief(close[0])}? It has" if close else "it has"
    return f"this model has no layers {brief(layers)}; {meant} {listed(ropes)} (or full, or all)"


def is_windowed(key: str) -> bool:
    """Whether the name of a layer type says that its layers see only a window of the text."""
    return any(word in key for word in _WINDOWED) or key == "main"  # DeepSeek-V4's layers without a compressor


def _notes(
    config: Mapping[str, Any], ropes: Mapping[str, Rope], chosen: Mapping[str, Any], original_length: int | None
) -> list[str]:
    notes = []
    rope = next(iter(ropes.values()))
    kinds = set(default_of(config, "layer_types") or ())
    if ALL_LAYERS in ropes and len(kinds) > 1 and any(map(is_windowed, kinds)):
        notes.append("this model keeps one table for all its layers, so the sliding layers change as well")
    if rope.original_length != rope.max_length and not is_scaled(rope) and original_length is None:
        notes.append(
            f"the configuration says {rope.max_length} positions, of which {rope.original_length} were trained; "
            f"computing from {rope.original_length} (--original-length says otherwise)"
        )
    notes += [
        f"{name} {brief(value)} is left out of the new configuration: {text_section(config).get('model_type')} turns "
        "whole heads and does not look at it, but transformers' scaled tables would"
        for name, value in ignored_keys(config).items()
    ]
    untouched = [key for key in ropes if key not in chosen]
    if untouched:
        notes.append(f"layers left as they are: {listed(untouched)}")
    return notes


def _lost_softmax_scale(ropes: Mapping[str, Rope], schedules: Mapping[str, Schedule]) -> list[str]:
    """DeepSeek's models were trained with a softmax scale that hangs on their scaling's ``mscale_all_dim``."""
    lost = [
        ropes[key].scaling
        for key, schedule in schedules.items()
        if ropes[key].scaling.get("mscale_all_dim") and not getattr(schedule, "mscale_all_dim", None)
    ]
    if not lost:
        return []
    weights = ",".join(f"{key}={lost[0][key]:g}" for key in ("mscale", "mscale_all_dim") if lost[0].get(key))
    return [
        "replacing the makers' scaling also drops the softmax scale that they trained with (mscale_all_dim); "
        f"keep it with yarn:...,{weights}, or compose with --on-top"
    ]


def _other_fields(ropes: Mapping[str, Rope], schedules: Mapping[str, Schedule]) -> list[str]:
    """Where the makers' scaling of the same kind was given other fields, which a spec without them does not keep."""
    found = {}
    for key, schedule in schedules.items():
        theirs = ropes[key].scaling
        if theirs.get("rope_type") != label_of(schedule):
            continue
        for name in ("beta_fast", "beta_slow", "truncate", "low_freq_factor", "high_freq_factor"):
            ours = plain(getattr(schedule, name, None))
            if ours is not None and theirs.get(name, ours) != ours:
                found[name] = (label_of(schedule), json.dumps(theirs[name]), json.dumps(ours))
    return [
        f"the makers' {label} has {name}={theirs}, and this one {name}={ours}; keep theirs with {name}={theirs}"
        for name, (label, theirs, ours) in found.items()
    ]


def _shorter(ropes: Mapping[str, Rope], schedules: Mapping[str, Schedule], target_length: int | None) -> list[str]:
    """Replacing scaling counts from the original length, which can leave less than the makers had."""
    had = max(ropes[key].max_length for key in schedules)
    length = target_length or max(_stretched(schedules[key], ropes[key]) for key in schedules)
    if length >= had:
        return []
    return [f"the context becomes {length} tokens, shorter than the makers' {had}; --target-length asks for more"]


def _ground(rope: Rope, replace_scaling: bool, on_top: bool, original_length: int | None) -> Rope:
    """The geometry to build on: the plain one, unless there is scaling to compose with."""
    if not is_scaled(rope):
        return rope
    if replace_scaling:
        return _plain(rope, original_length)
    if on_top:
        return _current(rope, original_length)
    original = f"its original {rope.original_length} tokens" if _is_recorded(rope) else "the --original-length you give"
    raise ConfigError(
        f"this model is already scaled ({describe_scaling(rope)}); --replace-scaling computes from {original}, "
        "--on-top composes with what is there"
    )


def _counted_alike(grounds: Mapping[str, Rope], original_length: int | None) -> dict[str, Rope]:
    """Layers without scaling, beside composed ones, are computed from the length that the model has now, too."""
    composed = any(rope.table is not None for rope in grounds.values())
    return {
        key: dataclasses.replace(rope, original_length=original_length or rope.max_length)
        if composed and rope.table is None
        else rope
        for key, rope in grounds.items()
    }


def _is_recorded(rope: Rope) -> bool:
    """Whether a scaled model's configuration says what length it was trained at."""
    return bool(rope.scaling.get("original_max_position_embeddings")) or rope.original_length != rope.max_length


def describe_scaling(rope: Rope) -> str:
    """``yarn x32 of 4096``: the scaling a configuration has, for people."""
    parameters = rope.scaling
    factor = parameters.get("factor")
    known = isinstance(factor, (int, float)) and factor <= LONGEST
    times = f" x{factor:g}" if known else ""
    return f"{cut(str(parameters.get('rope_type', 'default')), 60)}{times} of {rope.original_length}"


def _plain(rope: Rope, original_length: int | None) -> Rope:
    if not (_is_recorded(rope) or original_length):
        raise ConfigError(
            f"this model is scaled by {rope.scaling['rope_type']} and does not record the length it was trained at; "
            "give it with --original-length"
        )
    partial = {key: value for key, value in rope.scaling.items() if key == "partial_rotary_factor"}
    kind = "proportional" if rope.rotated_pairs is not None else "default"
    return dataclasses.replace(rope, scaling={"rope_type": kind, "rope_theta": rope.theta, **partial})


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
    """A length-dependent schedule as the table it has at this length; a fixed one is that already."""
    if length is None or not length_dependent(schedule):
        return schedule
    table = compute(schedule, rope, length)
    return Table(inv_freq=tuple(table.inv_freq), attention_factor=table.attention_scale / rope.table_scale)


def _freezing_notes(
    asked: Mapping[str, Schedule], schedules: Mapping[str, Schedule], ropes: Mapping[str, Rope], length: int
) -> list[str]:
    """What freezing made of each layer type's schedule.

    Raises:
        ScheduleError: at this length none of them changes anything yet.
    """
    frozen = [key for key in asked if schedules[key] != asked[key]]
    idle = [key for key in frozen if compute(schedules[key], ropes[key], length) == _untouched(ropes[key])]
    if idle and len(idle) == len(asked):
        rope = ropes[idle[0]]
        raise ScheduleError(
            f"{describe(asked[idle[0]])} frozen at {length} tokens leaves every frequency as it is: the trained length "
            f"is {rope.original_length}, and it only changes what is longer; freeze it at a longer length"
        )
    return [
        f"{describe(asked[key])} leaves every frequency as it is at {length} tokens"
        if key in idle
        else f"{describe(asked[key])} is frozen as it is at {length} tokens; that table serves every length"
        if key in frozen
        else f"{describe(asked[key])} is the same at every length, so there is nothing to freeze at {length} tokens"
        for key in asked
    ]


def _untouched(rope: Rope) -> Frequencies:
    """What a schedule that changes nothing makes of a geometry."""
    return Frequencies(rope.inv_freq(), rope.table_scale)


def _without_effect(
    schedules: Mapping[str, Schedule], ropes: Mapping[str, Rope], tables: Mapping[str, Frequencies]
) -> list[str]:
    """Scaling that silently does nothing is the failure this package exists to prevent."""
    idle = [key for key in schedules if _is_idle(schedules[key], ropes[key], tables[key])]
    texts = [_idle_text(schedules[key], ropes[key]) for key in idle]
    if idle and len(idle) == len(schedules):
        raise ScheduleError(f"{texts[0]}; choose another schedule, such as linear or ntk")
    return [f"{key}: {text}" for key, text in zip(idle, texts)]


def _is_idle(schedule: Schedule, rope: Rope, table: Frequencies) -> bool:
    return _stretch(schedule) > 1 and list(table.inv_freq) == rope.inv_freq()


def _idle_text(schedule: Schedule, rope: Rope) -> str:
    slowest = min((turns for turns in rope.turns() if turns > 0), default=0.0)
    why = (
        f"even the slowest pair makes {slowest:.3g} turns within the trained length of {rope.original_length} tokens"
        if slowest > 1
        else f"the trained length of {rope.original_length} tokens is too short for its ramp to reach any pair"
    )
    return f"{label_of(schedule)} with factor {_stretch(schedule):g} leaves every frequency as it is: {why}"


def _stretch(schedule: Schedule) -> float:
    """How many times longer a schedule makes the context: its factor, or that of the schedule it wraps."""
    inner = getattr(schedule, "over", None)
    if inner is not None:
        return _stretch(inner)
    factor = plain(getattr(schedule, "factor", 1.0))
    if isinstance(factor, int) and factor > LONGEST:
        return math.inf  # which an integer of hundreds of digits cannot become
    return float(factor) if isinstance(factor, (int, float)) else 1.0


def _parameters(schedule: Schedule, rope: Rope, length: int, model_type: str) -> dict[str, Any] | None:
    """v5 rope parameters: the native form, else one factor per pair; None where neither can say it."""
    native = getattr(schedule, "rope_parameters", None)
    parameters = cast("dict[str, Any] | None", native(rope) if callable(native) else None)
    if parameters is not None and _is_usable(str(parameters["rope_type"]), rope, model_type):
        return _with_geometry(parameters, rope)
    if length_dependent(schedule) or family(model_type).takes_only_theta:
        return None
    return per_pair(compute(schedule, rope, length), rope, max(1.0, length / rope.original_length))


def _is_usable(kind: str, rope: Rope, model_type: str) -> bool:
    """Whether this model's class in transformers takes this native form."""
    return family(model_type).takes(kind) and (
        kind != "yarn" or rope.rotary_dim % 2 == 0
    )  # transformers' yarn cannot build half a pair


def _with_geometry(parameters: dict[str, Any], rope: Rope) -> dict[str, Any]:
    """A model whose plain form is proportional stays so under ``default``."""
    if parameters["rope_type"] == "default" and rope.rotated_pairs is not None:
        return {**parameters, "rope_type": "proportional"}
    return parameters


def per_pair(table: Frequencies, rope: Rope, factor: float) -> dict[str, Any]:
    """Any fixed table in the one form that carries it everywhere: longrope with equal lists.

    Factor i is ``theta^(-2i/d) / inv_freq_i``. ``short_mscale`` and ``long_mscale`` repeat the attention factor
    for those that read it from there: vLLM, SGLang, and everybody's code for phimoe; mlx-lm's other models do not.
    """
    plain = [rope.theta ** (-2 * i / rope.rotary_dim) for i in range(rope.pairs)]
    factors = [b / f if f else NEVER_TURNS for b, f in zip(plain, table.inv_freq)]
    scale = float(table.attention_scale)
    whole_head = {"partial_rotary_factor": 1.0} if rope.rotated_pairs is not None else {}
    # DeepSeek's classes scale the softmax by these whatever the rope type; what goes on top of them keeps that.
    softmax = rope.scaling if rope.table is not None and rope.scaling.get("mscale_all_dim") else {}
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
        **{key: softmax[key] for key in ("factor", "mscale", "mscale_all_dim") if key in softmax},
    }


def _max_length(
    parameters: Mapping[str, Mapping[str, Any]],
    tables: Mapping[str, Frequencies],
    original: int,
    length: int,
    model_type: str,
) -> int:
    """The new ``max_position_embeddings``."""
    kinds = [value["rope_type"] for value in parameters.values()]
    if family(model_type).derives_attention_scale and kinds == ["longrope"]:
        return _phi3_length(next(iter(tables.values())).attention_scale, original)
    stays = "dynamic" in kinds or all(map(_keeps_max_length, parameters.values()))
    return original if stays else max(length, original)


def _keeps_max_length(parameters: Mapping[str, Any]) -> bool:
    """Forms whose engines multiply the maximum by the factor, or read the trained length in it."""
    kind = parameters["rope_type"]
    return kind in ("linear", "dynamic") or (kind == "proportional" and parameters.get("factor", 1) != 1)


def _length_notes(max_length: int, length: int, model_type: str, rotary_dim: int) -> list[str]:
    if not family(model_type).derives_attention_scale or max_length == length:
        return []
    return [
        f"{model_type} derives its attention scale from max_position_embeddings, which therefore becomes {max_length}; "
        f"the context is meant to be {length}, and nothing but you will keep an engine to it (vLLM: --max-model-len "
        f"{length}; its cos and sin for {max_length} positions take {size(max_length * rotary_dim * 2)} at 16 bits)"
    ]


_PHI3_PRECISION = 1e-5
"""How near Phi-3's derived attention scale must be; at a trained length of 4,096 it is nearer than 1e-6."""


def _phi3_length(attention_scale: float, original: int) -> int:
    """The maximum from which Phi-3's own code derives this attention scale: ``L^(scale^2)``.

    Its v4 class accepts no attention factor and computes ``sqrt(1 + ln(max / L) / ln L)``.

    Raises:
        ScheduleError: the maximum would be longer than any context, or no whole number gives this scale.
    """
    log_length = max(attention_scale, 1.0) ** 2 * math.log(original)
    if log_length > math.log(LONGEST):
        raise ScheduleError(
            f"an attention scale of {attention_scale:g} needs a max_position_embeddings of e^{log_length:.0f} in this "
            "model, which derives the one from the other; give a smaller attention_factor"
        )
    maximum = round(original ** (max(attention_scale, 1.0) ** 2))
    derived = math.sqrt(math.log(maximum) / math.log(original))
    if not math.isclose(derived, max(attention_scale, 1.0), rel_tol=_PHI3_PRECISION):
        raise ScheduleError(
            f"this model derives its attention scale from the whole number max_position_embeddings, and at a trained "
            f"length of {original} none gives {attention_scale:.6g} (the nearest, {maximum}, gives {derived:.6g}); "
            f"give attention_factor={derived!r}"
        )
    return maximum


def _refuse_more_than_theta(
    model_type: str, schedules: Mapping[str, Schedule], parameters: Mapping[str, Mapping[str, Any] | None]
) -> None:
    """A class that computes its table from theta and from nothing else, in memory as well as from a file."""
    if not family(model_type).takes_only_theta:
        return
    for key, schedule in schedules.items():
        if parameters[key] is None:
            raise ScheduleError(
                f"{model_type} takes no scaling but another rope_theta, and {label_of(schedule)} is more than that; "
                "use ntk or abf"
            )


def _unsavable(
    model_type: str,
    schedules: Mapping[str, Schedule],
    parameters: Mapping[str, Mapping[str, Any] | None],
    tables: Mapping[str, Frequencies],
) -> str | None:
    """Why no configuration file can say this, or None."""
    reasons = (_reason(model_type, schedules[key], parameters[key], tables[key]) for key in schedules)
    return next((reason for reason in reasons if reason), None)


def _reason(
    model_type: str, schedule: Schedule, parameters: Mapping[str, Any] | None, table: Frequencies
) -> str | None:
    label = label_of(schedule)
    if parameters is None and length_dependent(schedule):
        return (
            f"{label} changes its frequencies with the length, which no configuration file can say; "
            "freeze it at a length (freeze_at=N in Python, --freeze-at N on the command line)"
        )
    if family(model_type).derives_attention_scale and table.attention_scale < 1:
        return (
            f"{model_type} has no key for an attention scale below 1, and {label} has {table.attention_scale:g}; "
            "give attention_factor=1 or more"
        )
    return None
