"""The schedule protocol, the registry of built-in schedules, and checks of fields and results.

A schedule is any callable ``(rope, length) -> Frequencies``. Built-in schedules are frozen
dataclasses whose fields are the parameters. Users' own schedules need no base class and no registration.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, Self, TypeVar, cast, runtime_checkable

from ..errors import ScheduleError
from ..files import Json, is_number
from ..output.formatting import brief, cut, suggest
from ..rope import Rope
from .fields import check_value, parameters, plain


@dataclass(frozen=True)
class Frequencies:
    """The frequencies that a schedule returns.

    Attributes:
        inv_freq: the angular step of each pair, in radians per token, in the order of the pairs.
        attention_scale: the factor on cos and sin; its square multiplies the logits of the rotated part.
    """

    inv_freq: Sequence[float]
    attention_scale: float = 1.0

    @property
    def wavelengths(self) -> list[float]:
        """The tokens per full turn of each pair, ``2 pi / inv_freq``; infinite for a pair that never turns."""
        return [2 * math.pi / f if f else math.inf for f in self.inv_freq]


@runtime_checkable
class Schedule(Protocol):
    """A callable that maps a rotary geometry, and the length of the context being processed, to frequencies.

    A schedule whose frequencies depend on ``length`` declares ``length_dependent = True``.
    """

    def __call__(self, rope: Rope, length: int, /) -> Frequencies: ...


def length_dependent(schedule: object) -> bool:
    """Whether a schedule declares that its frequencies change with the length of the context."""
    return bool(getattr(schedule, "length_dependent", False))


class Varying:
    """A descriptor that computes ``length_dependent`` per instance; True on the class itself."""

    def __init__(self, answer: Callable[..., bool]) -> None:
        self.answer = answer

    def __get__(self, instance: object, owner: type | None = None) -> bool:
        return True if instance is None else self.answer(instance)


class BuiltIn:
    """Base of the built-in schedules: validates the fields; subclasses define the formula.

    Attributes:
        name: the registered name.
        does: a short description for the list of schedules; by default the start of the docstring.
        paper: author, year, and source.
        length_dependent: whether the frequencies change with the length of the context.
        falling: fields whose values must not increase in this order, such as the ends of a ramp.
    """

    name = ""
    does = ""
    paper = ""
    length_dependent = False
    falling: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, field in parameters(self).items():
            value = check_value(f"{self.name}: {name}", field.hint, getattr(self, name), field.limits)
            object.__setattr__(self, name, value)  # a tuple instead of a list keeps the schedule hashable
        for one, next_one in pairwise(self.falling):
            high = getattr(self, one)
            low = getattr(self, next_one)
            if high < low:
                raise ScheduleError(f"{self.name}: {one} is {high} and {next_one} is {low}; {one} must not be smaller")

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        """Returns the frequencies for ``rope`` when ``length`` tokens are processed.

        Raises:
            ScheduleError: the formula is undefined for this geometry.
        """
        raise TypeError(f"{type(self).__name__} does not define __call__")

    def rope_parameters(self, rope: Rope) -> Json | None:
        """Returns the schedule as transformers' rope parameters (``rope_type`` first); None if it has no such form.

        Keys that describe the geometry, such as ``mrope_section``, are not included, except the
        ``partial_rotary_factor`` of proportional RoPE. ``rope_theta`` is included only if the schedule changes it.
        """
        return None

    def bound(self, rope: Rope) -> Self:
        """Returns the schedule bound to a geometry, which changes only ``as-is``, alone or as an inner schedule."""
        return self


class OtherTheta(BuiltIn):
    """Base of the schedules that only replace theta."""

    def theta(self, rope: Rope) -> float | None:
        """Returns the new theta, or None to keep the model's."""
        return None

    def __call__(self, rope: Rope, length: int) -> Frequencies:
        theta = self.theta(rope)
        return Frequencies(rope.inv_freq() if theta is None else with_theta(rope, theta), rope.table_scale)

    def rope_parameters(self, rope: Rope) -> Json | None:
        return plain_form(rope, theta=self.theta(rope))


S = TypeVar("S", bound=type[BuiltIn])
_REGISTRY: dict[str, type[BuiltIn]] = {}


def register(name: str) -> Callable[[S], S]:
    """Registers the decorated class as the built-in schedule ``name``."""

    def decorate(cls: S) -> S:
        cls.name = name
        _REGISTRY[name] = cls
        return cls

    return decorate


def names() -> list[str]:
    """Returns the names of the registered schedules, in the order of docs/schedules.md."""
    return list(_REGISTRY)


def lookup(name: str) -> type[BuiltIn]:
    """Returns the class registered as ``name``; ignores case.

    Raises:
        ScheduleError: the name is unknown; the message suggests a similar name.
    """
    if name.lower() in _REGISTRY:
        return _REGISTRY[name.lower()]
    is_path = re.search(r"[/\\]|\.[A-Za-z]\w*$", name) is not None
    other = "a schedule's file must end in .json or .py" if is_path else "see `ropescale schedules`"
    written = re.sub(r"[\s_]", "-", name[:100].lower())
    starts = [known for known in _REGISTRY if written.startswith(known)]  # such as "yarn factor=8"
    advice = f"did you mean {max(starts, key=len)!r}?" if starts else suggest(written, names(), other)
    raise ScheduleError(f"no schedule named {brief(name)}; {advice}")


def build(cls: type, fields: Json) -> Schedule:
    """Creates an instance of a schedule class; errors name the field.

    Raises:
        ScheduleError: a field is missing, or the class raises an error.
    """
    label = label_of(cls)
    make = cast("Callable[..., Schedule]", cls)
    known = parameters(cls) if dataclasses.is_dataclass(cls) else {}
    for field in known.values():
        if field.required and field.name not in fields:
            raise ScheduleError(f"{label} needs {field.name}; give it as {label}:{field.name}=...")
    try:
        return make(**fields)
    except ScheduleError:
        raise
    except Exception as error:
        reason = cut(str(error), 300)
        raise ScheduleError(
            f"{label}({brief(fields)}) could not be created: {type(error).__name__}: {reason}"
        ) from error


def at_least(minimum: float, default: Any = dataclasses.MISSING) -> Any:
    """Returns a dataclass field for numbers of at least ``minimum``."""
    return dataclasses.field(default=default, metadata={"at_least": minimum})


def above(minimum: float, default: Any = dataclasses.MISSING) -> Any:
    """Returns a dataclass field for numbers greater than ``minimum``."""
    return dataclasses.field(default=default, metadata={"above": minimum})


def divided(schedule: str, field: str, rope: Rope, factors: Sequence[float]) -> list[float]:
    """Returns the frequency of each pair divided by the pair's factor, ``b_i / factor_i``.

    Raises:
        ScheduleError: the number of factors differs from the number of pairs.
    """
    return [b / factor for b, factor in zip(rope.inv_freq(), one_per_pair(schedule, field, rope, factors))]


def one_per_pair(schedule: str, field: str, rope: Rope, numbers: Sequence[float]) -> list[float]:
    """Returns the numbers as a list, one per pair.

    Raises:
        ScheduleError: there are more or fewer numbers than pairs.
    """
    if len(numbers) != rope.pairs:
        raise ScheduleError(
            f"{schedule}: {field} has {len(numbers)} numbers, and this model rotates {rope.pairs} pairs; "
            "give one per pair"
        )
    return list(numbers)


def with_theta(rope: Rope, theta: float) -> list[float]:
    """Returns the frequencies of ``rope`` with a new theta; a table changes by the ratio of the new and old series."""
    if rope.table is None:
        return rope.geometric(theta)
    ratio = [new / old if old else 1.0 for new, old in zip(rope.geometric(theta), rope.geometric(rope.theta))]
    return [f * r for f, r in zip(rope.table, ratio)]


def plain_form(rope: Rope, *, factor: float = 1.0, theta: float | None = None) -> Json | None:
    """Returns rope parameters for theta's series divided by ``factor``, or None if ``rope`` has a table.

    If only some pairs rotate, the rope type is ``proportional``, with a ``partial_rotary_factor``.
    """
    if rope.table is not None:
        return None
    changed = {} if theta is None else {"rope_theta": float(theta)}
    if rope.rotated_pairs is not None:
        partial = partial_factor(rope, rope.rotated_pairs)
        return {"rope_type": "proportional", "factor": float(factor), "partial_rotary_factor": partial} | changed
    kind = {"rope_type": "default"} if factor == 1 else {"rope_type": "linear", "factor": float(factor)}
    return kind | changed


def compute(schedule: Schedule, rope: Rope, length: int | None = None) -> Frequencies:
    """Runs a schedule and checks the result.

    Args:
        length: the context being processed, in tokens. Default: the trained length.

    Raises:
        ScheduleError: the schedule raises an error, or returns something other than Frequencies, a wrong number of
            pairs, a negative or non-finite frequency, or an attention scale that is too large or not positive.
    """
    label = label_of(schedule)
    try:
        result = schedule(rope, rope.original_length if length is None else length)
    except ScheduleError:
        raise
    except Exception as error:
        raise ScheduleError(f"schedule {label} raised {type(error).__name__}: {cut(str(error), 300)}") from error
    if not isinstance(result, Frequencies):
        raise ScheduleError(f"schedule {label} returned {type(result).__name__}; it must return Frequencies")
    try:
        values = [float(f) for f in result.inv_freq]
    except (TypeError, ValueError):
        raise ScheduleError(f"schedule {label} returned inv_freq that is not a list of numbers") from None
    if len(values) != rope.pairs:
        raise ScheduleError(
            f"schedule {label} returned {len(values)} frequencies; this model rotates {rope.pairs} pairs"
        )
    for pair, value in enumerate(values):
        if not math.isfinite(value) or value < 0:
            raise ScheduleError(
                f"schedule {label} returned {value!r} for pair {pair}; a frequency is finite and not negative"
            )
    scale = plain(result.attention_scale)
    if not is_number(scale) or not 0 < scale < _LARGEST_SCALE:
        wanted = f"a positive number below {_LARGEST_SCALE:g}"
        raise ScheduleError(f"schedule {label} returned attention_scale {brief(scale)}; it must be {wanted}")
    return Frequencies(values, float(scale))


def label_of(schedule: object) -> str:
    """Returns a schedule's name for messages: the registered name, or the name of its class or function."""
    return getattr(schedule, "name", "") or getattr(schedule, "__name__", "") or type(schedule).__name__


def partial_factor(rope: Rope, turning: int) -> float:
    """Returns a ``partial_rotary_factor`` with which transformers rotates ``turning`` pairs.

    Keeps the configuration's factor if possible. A new factor includes half a coordinate more, so that rounding does
    not lose a pair.
    """
    stated = rope.scaling.get("partial_rotary_factor")
    if is_number(stated) and int(stated * rope.head_dim // 2) == turning:
        return stated
    return (2 * turning + 0.5) / rope.head_dim if 2 * turning < rope.head_dim else 1.0


_LARGEST_SCALE = 1e6
"""The upper bound of attention scales; real scales are near 1, and the logits grow with their square."""
