"""Puts a schedule into a GGUF file, so that stock llama.cpp computes it.

The file's keys become a configuration, :mod:`ropescale.planning.plan` works the schedule out as for any other
checkpoint, and the result becomes keys again, or a table that llama.cpp rotates by, by architecture. Weights are
copied, never decoded.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .. import __version__
from ..configs.reading import ALL_LAYERS
from ..errors import CheckpointError, ConfigError, ScheduleError
from ..formatting import brief, cut
from ..planning.plan import Plan, Spec, length_dependent, make_plan
from ..request import Request, RequestOptions
from ..rope import Rope
from ..schedules import Frequencies, Schedule, compute, describe
from ..schedules.as_is import from_rope_parameters
from ..schedules.base import label_of
from ..schedules.table import NEVER_TURNS
from ..schedules.yarn import temperature
from . import architectures as known
from .files import SIZE, TIME, GgufFile, Value, is_storable, open_gguf

if TYPE_CHECKING:
    from typing import Unpack

SCHEDULE, VERSION, ORIGINAL = "ropescale.schedule", "ropescale.version", "ropescale.original"
"""Keys of ours: the schedule's spec, our version, and (JSON) what every key and tensor we set was before."""

FREQS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
TABLES = (FREQS, LONG, SHORT)

_SCALING = (
    "type factor alpha attn_factor original_context_length yarn_log_multiplier yarn_ext_factor yarn_attn_factor "
    "yarn_beta_fast yarn_beta_slow"
)
SCALING_KEYS = (*(f"rope.scaling.{name}" for name in _SCALING.split()), "rope.scale_linear")
"""Keys that a scaling may leave behind; ``rope.scaling.finetuned`` is not one (Granite's says whether it rotates)."""

_LONGEST = 2**31 - 1
_LONGEST_NAME = 100
"""Characters of an architecture's name, with which every key begins."""
_BETAS = (32.0, 1.0)
_MODEL_TYPES = {"qwen3": "qwen3", "qwen3moe": "qwen3_moe"}
"""Architectures whose configuration states more than was trained, which :mod:`ropescale.rope` knows by this name."""


@dataclass(frozen=True)
class GgufModel:
    """The keys of a GGUF file that concern RoPE, as they were before ropescale changed any.

    Attributes:
        file: the file as it lies.
        architecture: ``general.architecture``, with which its keys begin.
        keys: the scalar keys, without ours.
        tables: the per-pair tensors that it has.
    """

    file: GgufFile
    architecture: str
    keys: Mapping[str, Value]
    tables: Mapping[str, Sequence[float]]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a key of the architecture."""
        found = self.keys.get(f"{self.architecture}.{name}")
        return default if found is None else found.value

    def number(self, name: str, default: float | None = None) -> Any:
        """The same, which must be a number."""
        value = self.get(name, default)
        where = cast("GgufFile | None", self.file)  # None where only a few keys are asked about
        return value if value is None else _number(where and where.path, f"{self.architecture}.{name}", value)

    @property
    def windowed(self) -> bool:
        """Whether some of its layers see only a window of the text (Llama 4 has chunks unless it says 0)."""
        return bool(self.number("attention.sliding_window", 1 if self.architecture == "llama4" else 0))


def _number(path: Path | None, name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"{name} is {brief(value)} in {path}; it must be a number, and finite")
    return value


@dataclass(frozen=True)
class Route:
    """How a schedule is said in a GGUF file.

    Attributes:
        name: for people.
        keys: the scaling's keys, without the architecture; every other key in :data:`SCALING_KEYS` goes.
        tables: the per-pair tensors; every other one goes.
    """

    name: str
    keys: Mapping[str, Value]
    tables: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass
class PatchedGguf:
    """What :func:`patch_gguf` did, or would do.

    Attributes:
        path: the file written (None after a dry run).
        model: the file it was made of.
        plan: the schedule worked out; its configuration is one that the keys were translated into.
        route: how the file says it.
        keys: every key that changes, with its value before and after (None: not there).
        tables: every per-pair tensor that changes, likewise.
        notes: how the numbers came about.
        warnings: where llama.cpp, or a program around it, may compute something else.
    """

    path: Path | None
    model: GgufModel
    plan: Plan
    route: Route
    keys: dict[str, tuple[Value | None, Value | None]]
    tables: dict[str, tuple[Sequence[float] | None, Sequence[float] | None]]
    notes: list[str]
    warnings: list[str]


def patch_gguf(
    source: str | Path,
    out: str | Path | None,
    schedule: Spec,
    *,
    dry_run: bool = False,
    force: bool = False,
    progress: Callable[[int], object] = lambda copied: None,
    **options: Unpack[RequestOptions],
) -> PatchedGguf:
    """Writes a copy of a GGUF file that carries a schedule.

    Args:
        source: the GGUF file.
        out: the file to make; None with ``dry_run``.
        schedule: a schedule or a spec such as ``"yarn:factor=8"``.
        dry_run: write nothing, only say what would be done.
        force: replace ``out`` if ropescale wrote it.
        progress: called with the number of bytes after each block of tensor data that was copied.
        options: the fields of :class:`ropescale.request.Request`.

    Raises:
        CheckpointError: a file is missing, exists already, or cannot be written; nothing is left behind.
        ConfigError: not a GGUF file, or not one of a language model with RoPE.
        ScheduleError: the schedule does not fit, or llama.cpp cannot carry it for this architecture.
    """
    if out is None and not dry_run:
        raise CheckpointError("say where the patched file goes (-o OUT), or --dry-run")
    request = Request.of(schedule, **options)
    file = open_gguf(source)
    target = None if out is None else _check_target(file.path, out, force)
    model = read_model(file)
    plan = make_plan(config_of(model), request)
    route = find_route(model, plan)
    keys, tables = _changes(model, plan, route)
    notes, warnings = [*plan.notes, *_notes(model, route)], [*_warnings(model, plan)]
    result = PatchedGguf(None, model, plan, route, keys, tables, notes, warnings)
    if target is not None and not dry_run:
        set_keys = {name: after for name, (_, after) in keys.items()} | {
            name: Value("UINT64", 0) for name in (SIZE, TIME)
        }
        check = partial(_refuse_foreign, target) if os.path.lexists(target) else None
        file.rewrite(target, set_keys, {name: after for name, (_, after) in tables.items()}, progress, check)
        result.path = target
    return result


# ---------------------------------------------------------------------------------------------------------
# Reading


def read_model(file: GgufFile) -> GgufModel:
    """The model in a file, with what an earlier ``ropescale gguf`` changed put back.

    Raises:
        ConfigError: an adapter or a projector, one part of several, no RoPE, or a rotation of another kind.
    """
    kind, parts = (file.keys.get(name) for name in ("general.type", "split.count"))
    if kind is not None and kind.value != "model":
        other = cut(str(kind.value), 60)
        raise ConfigError(f"{file.path} is of type {other}, not a model; give the language model's file")
    if parts is not None and _number(file.path, "split.count", parts.value) > 1:
        raise ConfigError(
            f"{file.path} is one of {parts.value} parts; join them first: llama-gguf-split --merge {file.path} WHOLE"
        )
    architecture = file.keys.get("general.architecture")
    if architecture is None or not isinstance(architecture.value, str):
        raise ConfigError(f"{file.path} does not say its general.architecture; is it a model's file?")
    if len(architecture.value) > _LONGEST_NAME:
        raise ConfigError(f"{file.path} has {brief(architecture.value)} as general.architecture, which is none")
    keys, tables = _originals(file)
    model = GgufModel(file, architecture.value, keys, tables)
    _refuse_other_rotations(model)
    return model


def _originals(file: GgufFile) -> tuple[dict[str, Value], dict[str, Sequence[float]]]:
    """Keys and per-pair tensors without our changes."""
    keys = {name: value for name, value in file.keys.items() if not name.startswith("ropescale.")}
    tables: dict[str, Sequence[float]] = {name: x for name in TABLES if (x := file.floats(name)) is not None}
    record = file.keys.get(ORIGINAL)
    if record is not None:
        was = _read_record(file.path, record.value)
        keys |= {name: Value(*pair) for name, pair in was["keys"].items() if pair is not None}
        keys = {name: value for name, value in keys.items() if was["keys"].get(name, True) is not None}
        tables = {name: x for name, x in was["tables"].items() if x is not None}
    return keys, tables


def _read_record(path: Path, text: Any) -> dict[str, Any]:
    try:
        was = json.loads(text)
        pairs, tables = was["keys"].values(), was["tables"].values()
        whole = all(map(_is_pair, pairs)) and all(map(_is_list, tables))
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
        was, whole = {}, False
    if not whole:
        raise ConfigError(f"{path}: {ORIGINAL} is not one that ropescale {__version__} can read; patch the original")
    return was


def _is_pair(pair: Any) -> bool:
    """Whether this is how a key's type and value are recorded, or that there was none."""
    return pair is None or (isinstance(pair, list) and len(pair) == 2 and is_storable(*pair))


def _is_list(numbers: Any) -> bool:
    return numbers is None or (isinstance(numbers, list) and all(is_storable("FLOAT64", x) for x in numbers))


def _refuse_other_rotations(model: GgufModel) -> None:
    _refuse_architecture(model)
    name = model.architecture
    for key in ("rope.dimension_count", "rope.freq_base", "context_length"):
        if model.file.is_array(f"{name}.{key}"):
            raise ConfigError(f"{name}.{key} differs from layer to layer, which one schedule cannot describe")


def _refuse_architecture(model: GgufModel) -> None:
    name = model.architecture
    if name in known.NO_ROPE:
        raise ConfigError(f"{name} has no rotary position embeddings in llama.cpp; there is nothing to scale")
    if name in known.OUT_OF_REACH:
        raise ConfigError(
            f"llama.cpp rotates {name}, or some of its layers, by numbers that the file's keys do not reach"
        )
    if name in known.ONLY_SLIDING_ROTATES and model.windowed:
        raise ConfigError(
            f"the full-attention layers of {name} do not rotate; only the layers that see a window of the text do, and "
            "changing those does not extend the context"
        )


def config_of(model: GgufModel) -> dict[str, Any]:
    """A configuration that says what the file's keys say, in transformers' words.

    Raises:
        ConfigError: a key is missing that no geometry can do without.
    """
    length = model.number("context_length")
    if length is None:
        raise ConfigError(f"{model.file.path} lacks {model.architecture}.context_length")
    theta = {"rope_theta": float(model.number("rope.freq_base", 10000.0))}
    return {
        "model_type": _MODEL_TYPES.get(model.architecture, "llama"),
        "head_dim": _rotary_dim(model),
        "max_position_embeddings": length,
        "rope_parameters": theta | _scaling(model, Rope(_rotary_dim(model), theta["rope_theta"], max(int(length), 1))),
    }


def _rotary_dim(model: GgufModel) -> int:
    """``rope.dimension_count``, else the head's width, as llama.cpp takes it.

    Raises:
        ConfigError: neither is known, or it is odd: llama.cpp turns pairs, and wants one factor for each.
    """
    stated = _stated_rotary_dim(model)
    if not isinstance(stated, int):
        raise ConfigError(
            f"{model.file.path} has {model.architecture} rotate {brief(stated)} coordinates; not a whole number"
        )
    if stated % 2:
        raise ConfigError(
            f"{model.file.path} has {model.architecture} rotate {stated} coordinates of a head, and llama.cpp turns "
            "them in pairs; an even rope.dimension_count is needed"
        )
    return stated


def _stated_rotary_dim(model: GgufModel) -> int:
    stated = model.number("rope.dimension_count", model.number("attention.key_length"))
    if stated is not None:
        return stated
    width, heads = model.number("embedding_length"), model.number("attention.head_count")
    if not (width and heads):
        raise ConfigError(
            f"{model.file.path} lacks {model.architecture}.rope.dimension_count (or embedding_length and "
            "attention.head_count)"
        )
    return width // heads


def _scaling(model: GgufModel, rope: Rope) -> dict[str, Any]:
    """The makers' scaling as rope parameters; what has no name there becomes one factor per pair."""
    factor, kind = _factor(model), model.get("rope.scaling.type", "linear")
    recorded = model.number("rope.scaling.original_context_length")
    original = {} if recorded is None else {"original_max_position_embeddings": recorded}
    if model.number("rope.scaling.alpha"):
        return {"rope_type": "dynamic", "factor": 1.0, "alpha": model.number("rope.scaling.alpha")} | original
    long, short = _lists(model, kind)
    turning = _turning(long) if long is short and factor == 1 else None
    extra = model.number("rope.scaling.attn_factor", 1.0)
    if turning is not None and extra == 1:
        return {"rope_type": "proportional", "partial_rotary_factor": _partial_factor(turning, rope)}
    if long is None and short is None and extra == 1 and kind != "yarn":
        return {"rope_type": "default"} if factor == 1 else {"rope_type": "linear", "factor": factor} | original
    if long is None and short is None and kind == "yarn":
        return _yarn_parameters(model, factor, extra) | original
    if kind == "yarn":
        raise ConfigError(f"{model.file.path} has both yarn and {FREQS}, which ropescale cannot read together")
    ones = [1.0] * rope.pairs
    lists = {"long_factor": long or ones, "short_factor": short or ones}
    lists = {name: [x * factor for x in numbers] for name, numbers in lists.items()}
    return {"rope_type": "longrope", **lists, "attention_factor": extra} | original


def _factor(model: GgufModel) -> float:
    """By what llama.cpp divides every pair: 1 under ``none``."""
    stated = model.number("rope.scaling.factor", model.number("rope.scale_linear", 0.0))
    return float(stated) if stated and model.get("rope.scaling.type") != "none" else 1.0


def _lists(model: GgufModel, kind: str) -> tuple[Sequence[float] | None, Sequence[float] | None]:
    """The divisors that llama.cpp rotates by beyond the original length and up to it; one table is both."""
    name, tables = model.architecture, model.tables
    if name in known.TAKES_LISTS and (kind == "longrope" or name in known.LISTS_OF_ANY_TYPE):
        return tables.get(LONG), tables.get(SHORT)
    freqs = tables.get(FREQS)
    return (freqs, freqs) if name in known.TAKES_FREQS | known.LEFT_OUT else (None, None)


def _turning(factors: Sequence[float] | None) -> int | None:
    """How many pairs turn, where the factors do nothing but stop the others (proportional RoPE)."""
    if factors is None:
        return None
    turning = next((i for i, x in enumerate(factors) if x != 1), len(factors))
    return turning if all(x >= NEVER_TURNS / 10 for x in factors[turning:]) else None


def _partial_factor(turning: int, rope: Rope) -> float:
    """The half keeps rounding from losing a pair."""
    return (2 * turning + 0.5) / rope.rotary_dim if turning < rope.pairs else 1.0


def _yarn_parameters(model: GgufModel, factor: float, extra: float) -> dict[str, Any]:
    fast, slow = _betas(model)
    multiplier = model.number("rope.scaling.yarn_log_multiplier", 0.0) if model.architecture == "mistral3" else 0.0
    scale = temperature(factor) / temperature(factor, multiplier) * extra
    return {"rope_type": "yarn", "factor": factor, "attention_factor": scale, "beta_fast": fast, "beta_slow": slow}


def _betas(model: GgufModel) -> tuple[float, float]:
    if model.architecture not in known.READS_BETAS:
        return _BETAS
    fast, slow = _BETAS
    return model.number("rope.scaling.yarn_beta_fast", fast), model.number("rope.scaling.yarn_beta_slow", slow)


# ---------------------------------------------------------------------------------------------------------
# Writing


def find_route(model: GgufModel, plan: Plan) -> Route:
    """How llama.cpp can be told this schedule for this architecture.

    Raises:
        ScheduleError: it cannot.
    """
    if not plan.changes:
        raise ScheduleError("as-is changes nothing, so there is nothing to write; name the schedule that you want")
    [schedule], [rope], [table] = plan.schedules.values(), plan.ropes.values(), plan.tables.values()
    if plan.length > _LONGEST:
        raise ScheduleError(f"llama.cpp counts positions up to {_LONGEST}, and this makes {plan.length} tokens")
    if length_dependent(schedule):
        route = _two_lists(model, schedule, rope)
    else:
        route = _by_formula(model, plan, rope, table) or _by_table(model, schedule, rope, table)
    _refuse_own_softmax_scale(model, route)
    return _with_attention_scale(model, route, table.attention_scale)


def refusal(
    architecture: str, keys: Mapping[str, Value], parameters: Mapping[str, Any], rope: Rope, length: int
) -> str | None:
    """Why :func:`patch_gguf` would refuse a schedule in some file of an architecture; None where it would write it.

    Args:
        architecture: what the file's ``general.architecture`` says.
        keys: those keys of the file that the answer can depend on, without the architecture.
        parameters: the schedule as v5 rope parameters.
        rope: the geometry of the file.
        length: the context that is wanted, in tokens.
    """
    nowhere = cast(GgufFile, None)  # no key is read from it that is not among these
    model = GgufModel(nowhere, architecture, {f"{architecture}.{name}": value for name, value in keys.items()}, {})
    usual = {"beta_fast": _BETAS[0], "beta_slow": _BETAS[1]}
    stated = usual | {name: value for name, value in parameters.items() if value is not None}
    schedule, ground = from_rope_parameters(replace(rope, scaling=stated, table=None, table_scale=1.0))
    table = compute(schedule, ground, length)
    plan = Plan(
        {"rope_parameters": stated}, {}, {ALL_LAYERS: schedule}, {ALL_LAYERS: ground}, {ALL_LAYERS: table}, length
    )
    try:
        _refuse_architecture(model)
        find_route(model, plan)
    except (ConfigError, ScheduleError) as error:
        return str(error)
    return None


def _by_formula(model: GgufModel, plan: Plan, rope: Rope, table: Frequencies) -> Route | None:
    """Theta, linear or yarn, where llama.cpp's formula gives this table."""
    parameters = plan.config["rope_parameters"]
    stated = float(parameters["rope_theta"]), float(parameters.get("factor") or 1.0)
    stopped = {FREQS: _divisors(rope.geometric(rope.theta), rope)} if rope.rotated_pairs is not None else {}
    for theta, factor in ((stated[0], 1.0), stated, *_fitted(table, rope)):
        if _are_equal(table.inv_freq, [f / factor for f in rope.geometric(theta)]):
            return _geometric(theta, factor, stopped)
    return _by_yarn(model, parameters, rope, table)


def _fitted(table: Frequencies, rope: Rope) -> list[tuple[float, float]]:
    """The theta and the factor of a table that is geometric, such as frozen dynamic NTK."""
    turning = [(i, f) for i, f in enumerate(table.inv_freq) if f]
    if len(turning) < 2 or turning[0][0] != 0:
        return []
    (_, first), (last, slowest) = turning[0], turning[-1]
    return [((first / slowest) ** (rope.rotary_dim / (2 * last)), 1 / first)]


def _geometric(theta: float, factor: float, tables: Mapping[str, Sequence[float]]) -> Route:
    base = {"rope.freq_base": Value("FLOAT32", theta)}
    if math.isclose(factor, 1.0, rel_tol=1e-9):
        return Route("rope.freq_base", base | {"rope.scaling.type": Value("STRING", "none")}, tables)
    linear = {"rope.scaling.type": Value("STRING", "linear"), "rope.scaling.factor": Value("FLOAT32", factor)}
    return Route("rope.scaling.type linear", base | linear, tables)


def _by_yarn(model: GgufModel, parameters: Mapping[str, Any], rope: Rope, table: Frequencies) -> Route | None:
    if parameters["rope_type"] != "yarn" or rope.table is not None:
        return None
    factor, betas = parameters["factor"], (parameters["beta_fast"], parameters["beta_slow"])
    read = betas if model.architecture in known.READS_BETAS else _BETAS
    if not _are_equal(table.inv_freq, yarn_of_llama_cpp(rope, factor, *read)):
        return None
    keys = {
        "rope.freq_base": Value("FLOAT32", rope.theta),
        "rope.scaling.type": Value("STRING", "yarn"),
        "rope.scaling.factor": Value("FLOAT32", factor),
        "rope.scaling.original_context_length": Value("UINT32", rope.original_length),
    }
    if model.architecture in known.READS_BETAS:
        names = ("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow")
        keys |= {name: Value("FLOAT32", beta) for name, beta in zip(names, betas)}
    return Route("rope.scaling.type yarn", keys)


def yarn_of_llama_cpp(rope: Rope, factor: float, beta_fast: float = 32.0, beta_slow: float = 1.0) -> list[float]:
    """The table that llama.cpp computes for yarn (ggml's ``rope_yarn``): its ramp's ends are always whole pairs."""
    low = max(0, math.floor(rope.pair_at(beta_fast)))
    high = min(rope.rotary_dim - 1, math.ceil(rope.pair_at(beta_slow)))
    kept = [1 - min(1.0, max(0.0, (i - low) / max(0.001, high - low))) for i in range(rope.pairs)]
    return [b / factor * (1 - m) + b * m for b, m in zip(rope.inv_freq(), kept)]


def _by_table(model: GgufModel, schedule: Schedule, rope: Rope, table: Frequencies) -> Route:
    """One factor per pair."""
    factors = _divisors(table.inv_freq, rope)
    base = {"rope.freq_base": Value("FLOAT32", rope.theta)}
    if model.architecture in known.TAKES_FREQS:
        return Route(
            f"one factor per pair ({FREQS})", base | {"rope.scaling.type": Value("STRING", "none")}, {FREQS: factors}
        )
    if model.architecture in known.TAKES_LISTS:
        return Route(
            "one factor per pair (rope_factors_long and _short)",
            base | _longrope(rope),
            {LONG: factors, SHORT: factors},
        )
    raise ScheduleError(_no_table(model, schedule))


def _no_table(model: GgufModel, schedule: Schedule) -> str:
    name, label = model.architecture, label_of(schedule)
    why = "does not rotate by them" if name in known.LOADS_IN_VAIN else "has no place for them"
    text = f"{label} needs one factor per pair, and llama.cpp {why} in {name}"
    if label == "yarn" and getattr(schedule, "truncate", False):
        fast, slow, own = (getattr(schedule, key) for key in ("beta_fast", "beta_slow", "extrapolation_factor"))
        flags = f"--yarn-beta-fast {fast:g} --yarn-beta-slow {slow:g} --yarn-ext-factor {own:g}"
        return (
            f"{text} (it reads none of yarn's other numbers from the file); write plain yarn and start it with {flags}"
        )
    return f"{text}; ntk, abf, linear and yarn (betas 32 and 1, whole pairs) are what it carries there"


def _two_lists(model: GgufModel, schedule: Schedule, rope: Rope) -> Route:
    """A schedule that changes at the trained length and nowhere else."""
    short, long = (compute(schedule, rope, rope.original_length + more) for more in (0, 1))
    varying = compute(schedule, rope, 8 * rope.original_length) != long or short.attention_scale != long.attention_scale
    if varying or model.architecture not in known.TAKES_LISTS:
        what = "changes with the length" if varying else "has two lists"
        raise ScheduleError(
            f"{label_of(schedule)} {what}, which llama.cpp has no place for in {model.architecture}; freeze it at one "
            "length with --freeze-at N"
        )
    tables = {LONG: _divisors(long.inv_freq, rope), SHORT: _divisors(short.inv_freq, rope)}
    base = {"rope.freq_base": Value("FLOAT32", rope.theta)}
    return Route("rope.scaling.type longrope, two lists", base | _longrope(rope), tables)


def _longrope(rope: Rope) -> dict[str, Value]:
    return {
        "rope.scaling.type": Value("STRING", "longrope"),
        "rope.scaling.original_context_length": Value("UINT32", rope.original_length),
    }


def _divisors(inv_freq: Sequence[float], rope: Rope) -> list[float]:
    """By what llama.cpp divides theta's own angle; 1e30 stops a pair."""
    plain = [rope.theta ** (-2 * i / rope.rotary_dim) for i in range(rope.pairs)]
    return [b / f if f else NEVER_TURNS for b, f in zip(plain, inv_freq)]


def _are_equal(left: Sequence[float], right: Sequence[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(left, right))


def _with_attention_scale(model: GgufModel, route: Route, scale: float) -> Route:
    """``rope.scaling.attn_factor`` multiplies whatever llama.cpp computes itself, which under yarn is 0.1 ln s + 1."""
    kind, factor = route.keys["rope.scaling.type"].value, route.keys.get("rope.scaling.factor")
    own = temperature(factor.value) if kind == "yarn" and factor else 1.0
    if math.isclose(scale, own, rel_tol=1e-6):
        return route
    if model.windowed and model.architecture in known.SLIDING_SHARES_SCALE:
        raise ScheduleError(
            f"an attention scale of {scale:g} would reach the layers with a window as well in llama.cpp's "
            f"{model.architecture}, and they keep their own frequencies; give attention_factor={own:.6g}"
        )
    return replace(route, keys={**route.keys, "rope.scaling.attn_factor": Value("FLOAT32", scale / own)})


def _refuse_own_softmax_scale(model: GgufModel, route: Route) -> None:
    plain = route.keys["rope.scaling.type"].value == "none" and _factor(model) == 1
    if model.architecture in known.OWN_SOFTMAX_SCALE and not plain:
        raise ScheduleError(
            f"llama.cpp's {model.architecture} derives a softmax scale of its own from the scaling factor, so only "
            "another theta (ntk, abf) on a file without scaling gives what was asked"
        )


def _changes(
    model: GgufModel, plan: Plan, route: Route
) -> tuple[dict[str, tuple[Value | None, Value | None]], dict[str, tuple[Any, Any]]]:
    """Every key and per-pair tensor that will differ from the file as it lies, with both values."""
    prefix, there = model.architecture, model.file.keys
    wanted: dict[str, Value | None] = dict.fromkeys(f"{prefix}.{key}" for key in SCALING_KEYS)
    wanted |= {f"{prefix}.{key}": _as_kept(value) for key, value in route.keys.items()}
    length = f"{prefix}.context_length"
    wanted[length] = Value((there.get(length) or model.keys[length]).kind, plan.length)
    tables: dict[str, Any] = dict.fromkeys(TABLES) | {name: _in_float32(x) for name, x in route.tables.items()}
    wanted |= _record(model, plan, wanted, tables)
    had = {name: model.file.floats(name) for name in tables}
    return (
        {name: (there.get(name), after) for name, after in wanted.items() if there.get(name) != after},
        {name: (had[name], after) for name, after in tables.items() if had[name] != after},
    )


def _as_kept(value: Value) -> Value:
    return Value(value.kind, _in_float32([value.value])[0]) if value.kind == "FLOAT32" else value


def _in_float32(numbers: Sequence[float]) -> list[float]:
    """As the file will hold them."""
    try:
        return list(struct.unpack(f"<{len(numbers)}f", struct.pack(f"<{len(numbers)}f", *numbers)))
    except OverflowError:
        raise ScheduleError(f"{max(numbers):g} is more than the float32 of a GGUF file can hold") from None


def _record(
    model: GgufModel, plan: Plan, wanted: Mapping[str, Value | None], tables: Mapping[str, Any]
) -> dict[str, Value | None]:
    """Keys of ours: what was asked, and what it takes to undo it."""
    [schedule] = plan.schedules.values()
    before = {name: model.keys.get(name) for name in wanted}
    original = {
        "keys": {name: [was.kind, was.value] if was else None for name, was in before.items() if was != wanted[name]},
        "tables": {name: model.tables.get(name) for name in tables},
    }
    text = {SCHEDULE: describe(schedule), VERSION: __version__, ORIGINAL: json.dumps(original)}
    return {name: Value("STRING", value) for name, value in text.items()}


def _check_target(source: Path, out: str | Path, force: bool) -> Path:
    """The file to make, once it is certain that making it harms nothing."""
    try:
        target = Path(out).expanduser()
        same = target.exists() and os.path.samefile(source, target)
    except (RuntimeError, ValueError, OSError) as error:
        raise CheckpointError(f"{str(out)!r} cannot be written: {error}; choose another file") from None
    if same:
        raise CheckpointError(f"{target} is the source itself; choose another file")
    if target.is_dir():
        raise CheckpointError(f"{target} is a folder; name the file to make, such as {target / source.name}")
    if os.path.lexists(target):
        _refuse_to_replace(target, force)
    if not target.absolute().parent.is_dir():
        raise CheckpointError(
            f"there is no folder {target.absolute().parent} to write {target.name} into; make it first"
        )
    return target


def _refuse_to_replace(target: Path, force: bool) -> None:
    if not force:
        raise CheckpointError(f"{target} exists already; choose another file, or replace it with --force")
    _refuse_foreign(target, target)


def _refuse_foreign(target: Path, path: Path) -> None:
    """``--force`` replaces the very file that we wrote, and none that was made of it.

    Args:
        target: what the file is called.
        path: where it lies.
    """
    try:
        file = None if path.is_symlink() else open_gguf(path)
    except (CheckpointError, ConfigError):
        file = None
    if file is None or SCHEDULE not in file.keys:
        raise CheckpointError(f"{target} was not written by ropescale, so --force leaves it; remove it yourself")
    if not file.is_as_written:
        why = "an earlier version wrote it, or " if file.is_as_written is None else ""
        raise CheckpointError(
            f"{target} may not be as ropescale wrote it ({why}another program changed or copied it), so --force leaves "
            "it; remove it yourself"
        )


# ---------------------------------------------------------------------------------------------------------
# What the user should know


def _notes(model: GgufModel, route: Route) -> list[str]:
    name, kind = model.architecture, route.keys["rope.scaling.type"].value
    notes = []
    apart = known.SLIDING_UNSCALED | (known.SLIDING_HAS_THETA if kind == "none" else frozenset())
    if model.windowed and name not in apart:
        notes.append("this model keeps one table for all its layers, so the layers with a window change as well")
    elif model.windowed and kind == "none" and name in known.SLIDING_SHARES_THETA:
        notes.append("the layers with a window take their theta from the same key, so they change as well")
    elif model.windowed:
        notes.append("layers left as they are: those with a window")
    return notes


def _warnings(model: GgufModel, plan: Plan) -> list[str]:
    name, warnings = model.architecture, []
    if name not in known.ROPE:
        warnings.append(f"{name} is not an architecture of {known.SOURCE}; what another version does was not looked at")
    if name in known.READS_BETAS:
        warnings.append("llama-cpp-python's Llama class passes betas of 32 and 1 over the file's; give it these")
    window = model.number("attention.sliding_window", 0)
    if window and window < plan.length:
        warnings.append(
            f"{name}.attention.sliding_window is {window}; those layers see no further, whatever the schedule"
        )
    return warnings
