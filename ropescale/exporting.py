"""Exports a checkpoint to an engine: the commands that serve it, and the values that the engine computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Unpack

from .checkpoints.locating import find_model, read_config
from .configs.configuration import Configuration
from .engines import ENGINES
from .engines.base import Engine, Serving, Source, as_it_lies, of_plan
from .engines.exported import Export, exported, scaling_option, words
from .errors import ScheduleError
from .files import local_path
from .output.formatting import argument, brief
from .planning.plan import make_plan, refuse_unused
from .record import original_config, read_record
from .request import Request, RequestOptions
from .schedules import describe
from .schedules.as_is import stock_table


def export(
    model: str | Path,
    engine: str,
    schedule: object = None,
    *,
    revision: str | None = None,
    **options: Unpack[RequestOptions],
) -> Export:
    """Returns the commands that serve a checkpoint in an engine, and the values that the engine computes.

    Args:
        model: a checkpoint's folder (patched or not), or a Hub id; no weights are read.
        engine: a key of :data:`ENGINES`.
        schedule: a schedule to serve the checkpoint with, instead of its own scaling. Default: serve it unchanged.
        revision: branch, tag or commit of a Hub id.
        options: the fields of :class:`ropescale.request.Request`.

    Raises:
        ScheduleError: the engine is unknown, the schedule does not fit, or no configuration can express it.
        RopescaleError: the model cannot be read.
    """
    if engine not in ENGINES:
        raise ScheduleError(f"unknown engine {brief(engine)}; choose from {', '.join(ENGINES)}")
    request = Request.of(schedule, **options)
    folder = find_model(model, revision, weights=False)
    name = argument(local_path(model)) if local_path(model).is_dir() else str(model)
    if request.spec is None:
        request.refuse_without_schedule()
        return exported(ENGINES[engine], *_stored(name, folder, revision))
    return _under_schedule(ENGINES[engine], name, folder, revision, request)


def _read(folder: Path, on_top: bool = False) -> tuple[Configuration, Configuration]:
    """Reads a folder's configuration, and the configuration that a schedule builds on."""
    config = read_config(folder)
    return Configuration.read(config), Configuration.read(original_config(config, folder, on_top))


def _stored(name: str, folder: Path, revision: str | None) -> tuple[Serving, dict[str, str]]:
    """Returns how to serve an unchanged folder, and the schedules that the folder was patched with.

    Raises:
        ScheduleError: the rope type is unknown, or a parameter of the scaling is out of range.
    """
    (stored, original), record = _read(folder), read_record(folder)
    for rope in stored.ropes.values():
        stock_table(rope, rope.max_length)
    if record is None:
        # dynamic NTK counts from max_position_embeddings, which is the trained length there
        scalings = [rope.scaling for rope in stored.ropes.values() if rope.scaling.get("rope_type") == "dynamic"]
        stretch = max((scaling.get("factor", 1) for scaling in scalings if "alpha" not in scaling), default=1)
        return as_it_lies(name, stored, round(stored.max_length * stretch), Source(revision=revision)), {}
    specs = dict(record.spec)
    # the request that the folder's record describes
    changed = {key: length for key, length in record.original_length.items() if key in original.ropes}
    other = [length for key, length in changed.items() if length != original.ropes[key].original_length]
    scaled, beneath = any(original.ropes[key].is_scaled for key in changed), bool(record.beneath)
    replaces = scaled and not beneath
    given = Request(None, original_length=next(iter(other), None), replace_scaling=replaces, on_top=beneath)
    source = Source(words(specs, given), argument(record.source), revision, scaling_option(given))
    return as_it_lies(name, stored, record.length, source), specs


def _under_schedule(engine: Engine, name: str, folder: Path, revision: str | None, request: Request) -> Export:
    """Exports the weights with a schedule that is not saved in a folder."""
    (stored, original), record = _read(folder, request.on_top), read_record(folder)
    plan = make_plan(original.raw, request)
    refuse_unused(request, plan.used)
    if plan.unsavable:
        raise ScheduleError(plan.unsavable)
    if not plan.changes:
        raise ScheduleError("as-is changes nothing; leave the schedule out to serve the unchanged checkpoint")
    specs = {key: describe(each) for key, each in plan.schedules.items()}
    scaled = scaling_option(request) if plan.original.is_scaled else ()
    source = Source(words(specs, request), argument(record.source) if record else None, revision, scaled)
    return replace(exported(engine, of_plan(name, stored, plan, source), specs), notes=plan.notes)
