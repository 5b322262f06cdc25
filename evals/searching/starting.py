"""The start of a search, and refusals before any model, text or torch is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...adapters import read_configs
from ...engines.registry import ENGINES
from ...errors import DataError
from ...files import local_path
from ...planning.plan import Plan, make_plan
from ...request import Request, RequestOptions
from ...schedules.base import suggest

NOTHING_HIDDEN = "nothing is hidden in a text that is learned from; use the objective keys, or drop it"
"""Why a haystack is refused beside a text."""

WITHIN = 2.0
"""How much a token of a text counts whose context is within the trained length."""

NONE_WITHIN = "within is given, and prompts of the objective keys have the target length, so none is within; drop it"
"""Why a weight is refused beside keys."""


def check_early(
    model: str, revision: str | None, target: int, patching: RequestOptions, engine: str | None, within: float
) -> None:
    """Refuses from names and files alone what a search would refuse after it has loaded its libraries.

    Raises:
        RopescaleError: the model's folder, its configuration, the target or an option cannot be.
    """
    check_weight(within)
    check_engine(engine)
    plan_of_start(read_configs(model, revision)[patching.get("on_top", False)], target, patching)


def check_weight(within: float) -> None:
    """Refuses a weight that is not above 0.

    Raises:
        DataError: it is not.
    """
    if not within > 0:
        raise DataError(f"within {within!r} is not a weight; use a number above 0", "within")


def check_engine(engine: str | None) -> None:
    """Refuses an engine that is not known.

    Raises:
        DataError: it is not.
    """
    if engine is not None and engine not in ENGINES:
        known = suggest(engine, ENGINES, f"it is none of {', '.join(ENGINES)}")
        raise DataError(f"engine {engine!r} is not known; {known}", "engine")


def schedule_file(out: str | Path) -> Path:
    """Returns the path of a schedule's file.

    Raises:
        DataError: the name does not end in ``.json``.
    """
    file = local_path(out)
    if file.suffix != ".json" or not file.stem.strip("."):
        raise DataError(f"out {str(out)!r} is not the name of a schedule's file; give one like factors.json", "out")
    return file


def plan_of_start(config: Mapping[str, object], target: int, patching: RequestOptions) -> Plan:
    """Plans YaRN's default for the target length.

    Raises:
        ConfigError, ScheduleError: the model has no rotation that YaRN can change, or is scaled already.
        DataError: the model needs no schedule for this length.
    """
    asked: RequestOptions = {**patching, "target_length": target}
    plan = make_plan(config, Request.of("yarn", **asked))
    trained = max(layer.rope.original_length for layer in plan.layers.values())
    if target <= trained:
        raise DataError(
            f"the target length {target} is the trained length; the model needs no schedule for it; give a longer one",
            "target_length",
        )
    return plan
