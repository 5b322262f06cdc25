"""Exports a checkpoint to an engine: the commands that serve it, and the values that the engine computes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Unpack

from .checkpoints.locating import ADAPTER, checked, locate, read_config
from .configs.configuration import Configuration, widened
from .engines import ENGINES
from .engines.advice import ways_out
from .engines.base import Engine, Serving, Source, as_it_lies, of_plan
from .engines.exported import Export, exported, scaling_option, words
from .errors import CheckpointError, ScheduleError
from .files import local_path
from .output.formatting import argument, brief
from .planning.plan import Plan, make_plan, refuse_unused
from .record import original_config, read_record
from .request import Request, RequestOptions
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
    folder = locate(model, revision, weights=False)
    if (folder / ADAPTER).exists():
        raise CheckpointError(
            f"{folder} is a PEFT adapter; merge it into its base (merge_and_unload), and export the saved result"
        )
    checked(folder)
    name = argument(local_path(model)) if local_path(model).is_dir() else str(model)
    if request.spec is None:
        refuse_unused(request, ())
        done, serving, request = _stored(ENGINES[engine], name, folder, revision)
    else:
        done, serving, request = _under_schedule(ENGINES[engine], name, folder, revision, request)
    if done.error is None:
        return done
    stored, original = _read(folder, request is not None and request.on_top)
    serve = partial(_serving, name, stored, folder, revision)
    return replace(done, advice=tuple(ways_out(engine, serving, request, original.raw, serve)))


def exports(
    model: str | Path,
    engines: Iterable[str] = ENGINES,
    schedule: object = None,
    *,
    revision: str | None = None,
    **options: Unpack[RequestOptions],
) -> list[Export]:
    """Returns what :func:`export` returns for each engine, by default for all."""
    return [export(model, engine, schedule, revision=revision, **options) for engine in dict.fromkeys(engines)]


def _read(folder: Path, on_top: bool = False) -> tuple[Configuration, Configuration]:
    """Reads a folder's configuration, and the configuration that a schedule builds on."""
    config = read_config(folder)
    return Configuration.read(config), Configuration.read(original_config(config, folder, on_top))


def _stored(engine: Engine, name: str, folder: Path, revision: str | None) -> tuple[Export, Serving, Request | None]:
    """Exports an unchanged folder; also returns the request that the folder was patched with, if any.

    Raises:
        ScheduleError: the rope type is unknown, or a parameter of the scaling is out of range.
    """
    (stored, original), record = _read(folder), read_record(folder)
    for rope in stored.ropes.values():
        stock_table(rope, rope.max_length)
    if record is None:
        serving = as_it_lies(name, stored, stored.meant_length, Source(revision=revision))
        return exported(engine, serving, {}), serving, None
    specs = dict(record.spec)
    # the request that the folder's record describes
    changed = {key: length for key, length in record.original_length.items() if key in original.ropes}
    other = [length for key, length in changed.items() if length != original.ropes[key].original_length]
    scaled, beneath = any(original.ropes[key].is_scaled for key in changed), bool(record.beneath)
    replaces = scaled and not beneath
    given = Request(specs, original_length=next(iter(other), None), replace_scaling=replaces, on_top=beneath)
    source = Source(words(specs, given), argument(record.source), revision, scaling_option(given))
    serving = as_it_lies(name, stored, record.length, source)
    return exported(engine, serving, specs), serving, given


def _under_schedule(
    engine: Engine, name: str, folder: Path, revision: str | None, request: Request
) -> tuple[Export, Serving, Request]:
    """Exports the weights with a schedule that is not saved in a folder."""
    stored, original = _read(folder, request.on_top)
    serve = partial(_serving, name, stored, folder, revision)
    plan = make_plan(original.raw, request, lambda other: engine.computes(serve(other)))
    refuse_unused(request, plan.used if plan.changes else {"target_length"})
    if plan.unsavable:
        raise plan.unsavable
    if not plan.changes and request.target_length is not None:
        wide = widened(stored, request.target_length)
        plan = replace(plan, original=stored, planned=wide, length=request.target_length)
    elif not plan.changes:
        raise ScheduleError("as-is changes nothing; leave the schedule out to serve the unchanged checkpoint")
    serving = serve(plan)
    done = exported(engine, serving, plan.specs)
    return replace(done, notes=(*plan.notes, *done.notes)), serving, request


def _serving(name: str, stored: Configuration, folder: Path, revision: str | None, plan: Plan) -> Serving:
    """Describes how to serve a folder's weights under a plan."""
    record = read_record(folder)
    scaled = scaling_option(plan.request) if plan.original.is_scaled else ()
    source = Source(words(plan.specs, plan.request), argument(record.source) if record else None, revision, scaled)
    return of_plan(name, stored, plan, source)
