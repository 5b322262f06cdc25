"""Finds the form of a schedule in a GGUF file: a theta, a formula of llama.cpp, or one factor per pair."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..errors import ConfigError, ScheduleError, WayOut
from ..files import Json, is_number, present
from ..planning.layers import of_scale
from ..planning.plan import Plan
from ..rope import Rope
from ..schedules import Frequencies, Schedule, compute
from ..schedules.as_is import from_rope_parameters, stock_table
from ..schedules.base import label_of, length_dependent
from ..schedules.by_parts import Yarn, temperature
from ..schedules.table import divisors
from . import architectures as known
from .files import Value
from .model import BETAS, FREQS, LONG, SHORT, GgufModel, Keys, Tables, refuse_architecture

_LONGEST = 2**31 - 1


@dataclass(frozen=True)
class Route:
    """A form of a schedule in a GGUF file.

    Attributes:
        name: a description of the form.
        keys: the keys of the scaling, without the architecture. All other keys in
            :data:`ropescale.gguf.patching.SCALING_KEYS` are removed from the file.
        tables: the per-pair tensors, by name. All other per-pair tensors are removed from the file.
    """

    name: str
    keys: Keys
    tables: Tables = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The value of ``rope.scaling.type``."""
        return str(self.keys["rope.scaling.type"].value)


@dataclass(frozen=True)
class Goal:
    """The table that llama.cpp should compute, and the schedule behind it.

    Attributes:
        schedule: the resolved schedule.
        rope: the geometry that the schedule applies to.
        table: the frequencies of the schedule at ``length``.
        parameters: the schedule as transformers' rope parameters.
        length: the target context in tokens.
    """

    schedule: Schedule
    rope: Rope
    table: Frequencies
    parameters: Json
    length: int

    def number(self, name: str, default: float) -> float:
        """Returns a number from the rope parameters, or the default if the number is missing or 0."""
        value = self.parameters.get(name)
        return float(value) if is_number(value) and value else default


def goal_of(plan: Plan) -> Goal:
    """Returns the goal of a plan for a GGUF file; such a plan has a single schedule.

    Raises:
        ScheduleError: the plan changes nothing.
    """
    if not plan.changes:
        raise ScheduleError("as-is changes nothing, so no file is written; name a schedule")
    [layer] = plan.layers.values()
    table = layer.table(plan.length)
    return Goal(layer.schedule, layer.rope, table, plan.config["rope_parameters"], plan.length)


def find_route(model: GgufModel, goal: Goal) -> Route:
    """Returns a form of the schedule that llama.cpp supports for the model's architecture.

    Raises:
        ScheduleError: llama.cpp supports no form of the schedule.
    """
    if goal.length > _LONGEST:
        raise ScheduleError(f"positions in llama.cpp go up to {_LONGEST}, and this schedule needs {goal.length}")
    if length_dependent(goal.schedule):
        route = _two_lists(model, goal)
    else:
        route = _by_formula(model, goal) or _by_table(model, goal)
    if model.architecture in known.OWN_SOFTMAX_SCALE and (route.kind != "none" or model.factor != 1):
        raise ScheduleError(
            f"{model.architecture} derives a softmax scale of its own from the scaling factor in llama.cpp"
        )
    # llama.cpp multiplies its own attention scale by rope.scaling.attn_factor
    scale = goal.table.attention_scale
    own = temperature(goal.number("factor", 1.0)) if route.kind == "yarn" else 1.0
    if math.isclose(scale, own, rel_tol=1e-6):
        return route
    if model.windowed and model.architecture in known.SLIDING_SHARES_SCALE:
        raise ScheduleError(
            f"an attention scale of {scale:g} would also affect the sliding-window layers in llama.cpp's "
            f"{model.architecture}, which keep their own frequencies",
            advice=[of_scale(own)],
        )
    return replace(route, keys={**route.keys, "rope.scaling.attn_factor": Value("FLOAT32", scale / own)})


def refusal(architecture: str, keys: Keys, parameters: Json, rope: Rope, length: int) -> str | None:
    """Returns why a schedule is rejected for all files of an architecture, or None if it may be accepted.

    Args:
        architecture: the ``general.architecture`` of the files.
        keys: the keys that can affect the result, without the architecture.
        parameters: the schedule as rope parameters of transformers 5.
        rope: the rotary geometry of the model.
        length: the target context in tokens.
    """
    model = GgufModel(None, architecture, {f"{architecture}.{name}": value for name, value in keys.items()}, {})
    stated = present(parameters)
    stock = replace(rope, scaling=stated, table=None, table_scale=1.0)
    schedule, ground = from_rope_parameters(stock)
    try:
        refuse_architecture(model)
        find_route(model, Goal(schedule, ground, stock_table(stock, length), stated, length))
    except (ConfigError, ScheduleError) as error:
        return error.reason
    return None


def _by_formula(model: GgufModel, goal: Goal) -> Route | None:
    """Returns the route by a theta, linear or yarn, or None if no formula of llama.cpp gives the table."""
    rope = goal.rope
    table = goal.table
    theta = goal.number("rope_theta", rope.theta)
    factor = goal.number("factor", 1.0)
    candidates = [(theta, 1.0), (theta, factor)]
    turning = [(i, f) for i, f in enumerate(table.inv_freq) if f]
    if len(turning) > 1 and turning[0][0] == 0:  # the table may follow from another theta, as for frozen dynamic NTK
        (_, first), (last, slowest) = turning[0], turning[-1]
        candidates.append(((first / slowest) ** (rope.rotary_dim / (2 * last)), 1 / first))
    stopped = {FREQS: divisors(rope.geometric(rope.theta), rope)} if rope.rotated_pairs is not None else {}
    for base, divisor in candidates:
        if _are_equal(table.inv_freq, [f / divisor for f in rope.geometric(base)]):
            if math.isclose(divisor, 1.0, rel_tol=1e-9):
                return Route("rope.freq_base", _keys("none", base), stopped)
            return Route("rope.scaling.type linear", _keys("linear", base, factor=divisor), stopped)
    if goal.parameters["rope_type"] != "yarn" or rope.table is not None:
        return None
    betas = goal.number("beta_fast", BETAS[0]), goal.number("beta_slow", BETAS[1])
    is_read = model.architecture in known.READS_BETAS
    ours = Yarn(factor, *(betas if is_read else BETAS))
    if not _are_equal(table.inv_freq, ours(rope, goal.length).inv_freq):
        return None
    told = dict(zip(("yarn_beta_fast", "yarn_beta_slow"), betas)) if is_read else {}
    return Route("rope.scaling.type yarn", _keys("yarn", rope.theta, rope.original_length, factor=factor, **told))


def _by_table(model: GgufModel, goal: Goal) -> Route:
    """Returns the route by one factor per pair.

    Raises:
        ScheduleError: llama.cpp does not apply per-pair factors for this architecture.
    """
    rope = goal.rope
    factors = divisors(goal.table.inv_freq, goal.rope)
    if model.architecture in known.TAKES_FREQS:
        return Route(f"one factor per pair ({FREQS})", _keys("none", rope.theta), {FREQS: factors})
    if model.architecture in known.TAKES_LISTS:
        keys = _keys("longrope", rope.theta, rope.original_length)
        return Route("one factor per pair (rope_factors_long and _short)", keys, {LONG: factors, SHORT: factors})
    schedule = goal.schedule
    name = model.architecture
    text = f"{label_of(schedule)} needs per-pair factors, and llama.cpp does not apply them in {name}"
    if isinstance(schedule, Yarn) and schedule.truncate:
        plain = "write plain yarn and start llama.cpp with"
        betas = f"--yarn-beta-fast {schedule.beta_fast:g} --yarn-beta-slow {schedule.beta_slow:g}"
        raise ScheduleError(
            f"{text} (and it does not read yarn's betas from the file)",
            advice=[
                WayOut(
                    f"{plain} {betas} --yarn-ext-factor {schedule.extrapolation_factor:g}",
                    ("yarn",),
                    {"target_length": goal.length},
                )
            ],
        )
    raise ScheduleError(text)


def _two_lists(model: GgufModel, goal: Goal) -> Route:
    """Returns the route of a schedule with one table up to the trained length and another table beyond.

    Raises:
        ScheduleError: the schedule has more than two tables, or the architecture does not use two lists.
    """
    schedule = goal.schedule
    rope = goal.rope
    trained = rope.original_length
    short = compute(schedule, rope, trained)
    long = compute(schedule, rope, trained + 1)
    far = compute(schedule, rope, 8 * trained)
    varying = far != long or short.attention_scale != long.attention_scale
    if varying or model.architecture not in known.TAKES_LISTS:
        what = "changes with the length" if varying else "has two lists"
        raise ScheduleError(f"{label_of(schedule)} {what}, which llama.cpp does not support for {model.architecture}")
    tables = {LONG: divisors(long.inv_freq, rope), SHORT: divisors(short.inv_freq, rope)}
    return Route("rope.scaling.type longrope, two lists", _keys("longrope", rope.theta, trained), tables)


def _keys(kind: str, theta: float, original_length: int | None = None, **scaling: float) -> Keys:
    keys = {"freq_base": Value("FLOAT32", theta), "scaling.type": Value("STRING", kind)}
    keys |= {f"scaling.{name}": Value("FLOAT32", number) for name, number in scaling.items()}
    if original_length is not None:
        keys["scaling.original_context_length"] = Value("UINT32", original_length)
    return {f"rope.{name}": value for name, value in keys.items()}


def _are_equal(left: Sequence[float], right: Sequence[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(left, right))
