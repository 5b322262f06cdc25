"""Exports a checkpoint to engines: the commands that serve it, and the values that each engine computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from .checkpoints.locating import ADAPTER, ModelFolder, checked, locate
from .configs.configuration import Configuration, widened
from .engines import ENGINES
from .engines.base import Serving, Source, as_it_lies, of_plan
from .engines.exported import Export, exported, gguf_options, scaling_option, source_of, ways_out
from .errors import CheckpointError, RopescaleError, ScheduleError, WayOut
from .files import local_path
from .output.formatting import argument, brief
from .planning.plan import Plan, make_plan, refuse_unused
from .request import Request, RequestOptions
from .schedules.as_is import stock_table

if TYPE_CHECKING:
    from .stored_record import Record


def exports(
    model: str | Path,
    engines: Iterable[str] = ENGINES,
    schedule: object = None,
    *,
    revision: str | None = None,
    **options: Unpack[RequestOptions],
) -> list[Export]:
    """Returns the commands that serve a checkpoint, and the values that are computed, for each engine.

    Args:
        model: a checkpoint's folder (patched or not), or a Hub id; no weights are read.
        engines: keys of :data:`ENGINES`. Default: all.
        schedule: a schedule to serve the checkpoint with, instead of its own scaling. Default: serve it unchanged.
        revision: branch, tag or commit of a Hub id.
        options: the fields of :class:`ropescale.request.Request`.

    Raises:
        ScheduleError: an engine is unknown, the schedule does not fit, or no configuration can express it.
        RopescaleError: the model cannot be read.
    """
    chosen = list(dict.fromkeys(engines))
    for engine in chosen:
        if engine not in ENGINES:
            raise ScheduleError(f"unknown engine {brief(engine)}; choose from {', '.join(ENGINES)}")
    request = Request.of(schedule, **options)
    folder = locate(model, revision, weights=False)
    if (folder / ADAPTER).exists():
        raise CheckpointError(
            f"{folder} is a PEFT adapter; merge it into its base (merge_and_unload), and export the saved result"
        )
    stored = ModelFolder(checked(folder))
    name = argument(local_path(model)) if local_path(model).is_dir() else str(model)
    weights = _Weights(name, revision, Configuration.read(stored.config), stored.record)
    if request.spec is None:
        refuse_unused(request, ())
        return [_of_folder(weights, engine) for engine in chosen]
    return [_of_schedule(weights, engine, request) for engine in chosen]


@dataclass(frozen=True)
class _Weights:
    """The weights to serve: their name in commands, and what their folder holds, read once."""

    name: str
    revision: str | None
    stored: Configuration
    record: Record | None

    def original(self, on_top: bool) -> Configuration:
        """Returns the configuration that a schedule builds on."""
        if self.record is None or on_top:
            return self.stored
        return Configuration.read(self.record.undo.apply(dict(self.stored.raw)))

    def under(self, plan: Plan) -> Serving:
        """Describes how to serve the weights under a plan."""
        folder = argument(self.record.source) if self.record else None
        return of_plan(self.name, self.stored, plan, source_of(plan, folder, self.revision))

    def export(self, engine: str, serving: Serving, specs: Mapping[str, str], request: Request | None) -> Export:
        """Exports the weights, with the ways out if the engine cannot compute the schedule of the request."""
        done = exported(ENGINES[engine], serving, specs)
        if done.error is None:
            return done
        config = self.original(request is not None and request.on_top).raw
        return replace(done, advice=tuple(ways_out(engine, serving, request, config, self.under)))


def _of_folder(weights: _Weights, engine: str, length: int | None = None) -> Export:
    """Exports an unchanged folder, which may have been patched, at a length (default: its own).

    Raises:
        ScheduleError: the rope type is unknown, or a parameter of the scaling is out of range.
    """
    stored = weights.stored
    record = weights.record
    for rope in stored.ropes.values():
        stock_table(rope, rope.max_length)
    if record is None:
        serving = as_it_lies(weights.name, stored, length or stored.meant_length, Source(revision=weights.revision))
        return weights.export(engine, serving, {}, None)
    length = length or record.length
    # the request that the record describes
    specs = dict(record.spec)
    ropes = weights.original(on_top=False).ropes
    changed = {key: length for key, length in record.original_length.items() if key in ropes}
    on_top = bool(record.beneath)
    replaces = not on_top and any(ropes[key].is_scaled for key in changed)
    other = next((each for key, each in changed.items() if replaces or each != ropes[key].original_length), None)
    given = Request(specs, original_length=other, replace_scaling=replaces, on_top=on_top)
    source = Source(
        gguf_options(record.schedule, given, length), argument(record.source), weights.revision, scaling_option(given)
    )
    return weights.export(engine, as_it_lies(weights.name, stored, length, source), specs, given)


def _planned(weights: _Weights, engine: str, request: Request) -> Plan:
    """Plans a schedule; the ways out in an error are those of the engine or, if it has none, of transformers 5."""
    config = weights.original(request.on_top).raw
    try:
        plan = make_plan(config, request, lambda other: ENGINES[engine].computes(weights.under(other)))
        refuse_unused(request, plan.used if plan.changes else {"target_length"})
        if plan.unsavable:
            raise plan.unsavable
    except RopescaleError as error:
        if not error.advice and engine != "transformers5":
            _refuse_elsewhere(weights, request)
        raise
    return plan


def _refuse_elsewhere(weights: _Weights, request: Request) -> None:
    """Raises the error of a request in transformers 5, if there is a way out."""
    try:
        _planned(weights, "transformers5", request)
    except RopescaleError as error:
        if error.advice:
            ways = [way.also(WayOut("serve it with transformers 5", engine="transformers5")) for way in error.advice]
            raise type(error)(error.reason, advice=ways) from None


def _of_schedule(weights: _Weights, engine: str, request: Request) -> Export:
    """Exports the weights with a schedule that is not saved in a folder."""
    plan = _planned(weights, engine, request)
    if not plan.changes and request.target_length is not None:
        wide = widened(weights.stored, request.target_length)
        if engine == "llama.cpp" and plan.original.is_scaled:  # the converted file has the tables
            return _of_folder(weights, engine, request.target_length)
        plan = replace(plan, original=weights.stored, planned=wide, length=request.target_length)
    elif not plan.changes:
        raise ScheduleError("as-is changes nothing; leave the schedule out to serve the unchanged checkpoint")
    done = weights.export(engine, weights.under(plan), plan.specs, request)
    return replace(done, notes=(*plan.notes, *done.notes))
