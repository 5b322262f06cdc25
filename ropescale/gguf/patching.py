"""Writes a schedule into a GGUF file, so that stock llama.cpp computes it.

The file's keys are translated into a configuration, for which :mod:`ropescale.planning.plan` plans the schedule as for
any other checkpoint. The architecture decides whether the result is written as keys or as a table of factors. Weights
are copied without being decoded.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Unpack

from .. import __version__
from ..errors import CheckpointError, ScheduleError
from ..files import writable_file
from ..planning.plan import Plan, is_possible, make_plan, refuse_unused
from ..request import Request, RequestOptions, advised, check_keywords, frozen, others
from ..schedules import describe
from . import architectures as known
from .files import GgufFile, Value, open_gguf
from .model import SCHEDULE, TABLES, GgufModel, config_of, read_model
from .routes import Goal, Route, find_route, goal_of

VERSION = "ropescale.version"
"""The key with the version of ropescale that wrote the file."""

_SCALING = (
    "type factor alpha attn_factor original_context_length yarn_log_multiplier yarn_ext_factor yarn_attn_factor "
    "yarn_beta_fast yarn_beta_slow"
)
SCALING_KEYS = (*(f"rope.scaling.{name}" for name in _SCALING.split()), "rope.scale_linear")
"""All keys of a scaling, except ``rope.scaling.finetuned``, which turns rotation on or off in Granite."""


@dataclass
class PatchedGguf:
    """The result of :func:`patch_gguf`, written or planned.

    Attributes:
        path: the written file; None after a dry run.
        file: the source file.
        model: the model in the source file.
        plan: the plan, for a configuration that is translated from the file's keys.
        route: the form of the schedule in the written file.
        keys: the old and the new value of every key that changes; None for a missing key.
        tables: the old and the new numbers of every per-pair tensor that changes; None for a missing tensor.
        notes: remarks on the origin of the numbers.
        warnings: cases in which llama.cpp, or a program that embeds it, may compute something else.
    """

    path: Path | None
    file: GgufFile
    model: GgufModel
    plan: Plan
    route: Route
    keys: Mapping[str, tuple[Value | None, Value | None]]
    tables: Mapping[str, tuple[Sequence[float] | None, Sequence[float] | None]]
    notes: list[str]
    warnings: list[str]


def patch_gguf(
    source: str | Path,
    out: str | Path | None,
    schedule: object,
    *,
    dry_run: bool = False,
    progress: Callable[[int], object] = lambda copied: None,
    **options: Unpack[RequestOptions],
) -> PatchedGguf:
    """Writes a copy of a GGUF file that carries a schedule.

    Args:
        source: the GGUF file.
        out: the file to write, which must not exist; optional with ``dry_run``.
        schedule: a schedule or a spec such as ``"yarn:factor=8"``.
        dry_run: only plan, without writing a file.
        progress: called after every copied block of tensor data, with the number of bytes in the block.
        options: the fields of :class:`ropescale.request.Request`.

    Raises:
        CheckpointError: the source is missing, or ``out`` exists or cannot be written; no partial file is left.
        ConfigError: the source is not the GGUF file of a language model with RoPE.
        ScheduleError: the schedule does not fit the model, or llama.cpp cannot compute it for this architecture.
    """
    check_keywords("patch_gguf", options)
    request = Request.of(schedule, **options)
    if out is None and not dry_run:
        raise CheckpointError("name the output file, or use a dry run", "out", "dry_run")
    file = open_gguf(source)
    model = read_model(file, request.on_top)

    def suits(plan: Plan) -> bool:
        try:
            return bool(find_route(model, goal_of(plan)))
        except ScheduleError:
            return False

    config = config_of(model)
    plan = make_plan(config, request, suits)
    refuse_unused(request, plan.used)
    target = None if out is None or dry_run else writable_file(out, _refuse_existing)
    goal = goal_of(plan)
    try:
        route = find_route(model, goal)
    except ScheduleError as error:
        works = partial(is_possible, config, suits=suits)
        raise advised(error, request, works, frozen(goal.length, goal.rope), others(goal.length)) from None
    (keys, tables), (notes, warnings) = _wanted(model, goal, route), _remarks(model, plan, route)
    new_keys = {name: value for name, value in keys.items() if file.keys.get(name) != value}
    new_tables = {name: numbers for name, numbers in tables.items() if model.tables.get(name) != numbers}
    both_keys = {name: (file.keys.get(name), value) for name, value in new_keys.items()}
    both_tables = {name: (model.tables.get(name), numbers) for name, numbers in new_tables.items()}
    result = PatchedGguf(None, file, model, plan, route, both_keys, both_tables, [*plan.notes, *notes], warnings)
    if target is not None:
        file.rewrite(target, new_keys, new_tables, progress)
        result.path = target
    return result


def _wanted(
    model: GgufModel, goal: Goal, route: Route
) -> tuple[dict[str, Value | None], dict[str, list[float] | None]]:
    """Returns the new values of all keys and per-pair tensors that belong to a schedule; None for those to remove."""
    prefix = model.architecture
    keys: dict[str, Value | None] = dict.fromkeys(f"{prefix}.{key}" for key in SCALING_KEYS)
    for key, value in route.keys.items():
        as_stored = _in_float32([float(value.value)])[0] if value.kind == "FLOAT32" else value.value
        keys[f"{prefix}.{key}"] = Value(value.kind, as_stored)
    length = f"{prefix}.context_length"
    kind = model.keys[length].kind
    keys[length] = Value(kind if kind.endswith(("32", "64")) else "UINT32", goal.length)
    keys |= {SCHEDULE: Value("STRING", describe(goal.schedule)), VERSION: Value("STRING", __version__)}
    return keys, dict.fromkeys(TABLES) | {name: _in_float32(x) for name, x in route.tables.items()}


def _in_float32(numbers: Sequence[float]) -> list[float]:
    """Rounds numbers to float32, the precision of the file.

    Raises:
        ScheduleError: a number exceeds the range of float32.
    """
    try:
        return list(struct.unpack(f"<{len(numbers)}f", struct.pack(f"<{len(numbers)}f", *numbers)))
    except OverflowError:
        raise ScheduleError(f"{max(numbers):g} exceeds the float32 of a GGUF file") from None


def _refuse_existing(path: Path) -> None:
    raise CheckpointError(f"{path} exists already; choose another file, or remove it first")


def _remarks(model: GgufModel, plan: Plan, route: Route) -> tuple[list[str], list[str]]:
    """Returns notes on sliding-window layers, and warnings about other settings that affect the result."""
    name = model.architecture
    notes = []
    warnings = []
    unchanged = known.SLIDING_UNSCALED
    if route.kind == "none":  # a theta alone
        unchanged = known.SLIDING_SHARES_SCALE | known.SLIDING_HAS_THETA
    if model.windowed:
        becomes = "stay unchanged" if name in unchanged else "change as well"
        notes.append(f"the sliding-window layers {becomes}")
    if name not in known.ROPE:
        warnings.append(f"{known.SOURCE} has no architecture {name}; other versions were not checked")
    if name in known.READS_BETAS:
        warnings.append("llama-cpp-python's Llama class overrides the file's betas with 32 and 1; pass them to it")
    if name == "mistral3":
        warnings.append("where attention.temperature_scale is set, original_context_length also scales the queries")
    window = model.number("attention.sliding_window", 0)
    if window and window < plan.length:
        warnings.append(f"{name}.attention.sliding_window is {window}; no schedule lets those layers attend further")
    return notes, warnings
