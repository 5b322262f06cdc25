"""The commands that use a schedule that was found, for users to paste."""

from __future__ import annotations

import shlex

from ...engines.base import layers_of
from ...engines.exported import scaling_option
from ...engines.registry import ENGINES
from ...planning.plan import Plan

_FOLDER = "OUT"


def commands(model: str, schedule: str, plan: Plan, engine: str | None) -> list[str]:
    """Returns what puts a schedule into a folder; for an engine also what serves it from there, or without one.

    Args:
        schedule: as ``--schedule`` takes it.
        plan: of that schedule.
        engine: a key of ``ENGINES``.
    """
    patch = patch_command(model, schedule, plan)
    if engine is None:
        return [patch]
    if carries(plan, engine):
        return [patch, shlex.join(["ropescale", "export", _FOLDER, "--for", engine])]
    words = ["ropescale", "export", model, "--for", engine, "--schedule", schedule, *_where(plan)]
    return [shlex.join(words)]


def carries(plan: Plan, engine: str) -> bool:
    """Whether an engine computes a plan as it is from a patched folder."""
    found = (each for layers in layers_of(plan) for each in ENGINES[engine].differences(layers))
    return all(each.status == "honoured" for each in found)


def patch_command(model: str, schedule: str, plan: Plan) -> str:
    """Returns ``ropescale patch`` with a schedule, and with the options of the plan that say where it goes."""
    return shlex.join(["ropescale", "patch", model, "-o", _FOLDER, "--schedule", schedule, *_where(plan)])


def _where(plan: Plan) -> list[str]:
    request = plan.request
    words = [] if request.layers == "full" else ["--layers", request.layers]
    words += [] if request.original_length is None else ["--original-length", str(request.original_length)]
    return [*words, *scaling_option(request)]
