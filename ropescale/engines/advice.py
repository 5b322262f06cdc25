"""What to do where an engine computes a schedule otherwise; every way out is tried before it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from ..configs.configuration import Configuration, in_both_dialects, unread_by_v4
from ..errors import RopescaleError, WayOut
from ..output.formatting import argument
from ..planning.plan import Plan, is_possible
from ..request import Request, frozen, others, that_work
from . import ENGINES
from .base import Difference, Layers, Serving, Source, as_it_lies, layers_of, sentence
from .exported import Export, exported, scaling_option, words


def ways_out(
    engine: str,
    serving: Serving,
    request: Request | None,
    config: Mapping[str, object],
    serve: Callable[[Plan], Serving],
) -> Iterator[WayOut]:
    """Yields what to do instead of serving a checkpoint in an engine that cannot compute its schedule.

    Args:
        engine: the command-line name of the engine.
        serving: the checkpoint as it cannot be served.
        request: the request of its schedule; None if it is the vendor's.
        config: the configuration that a schedule builds on.
        serve: returns how to serve the checkpoint under another plan.
    """
    works = partial(is_possible, config, suits=lambda plan: ENGINES[engine].computes(serve(plan)))
    if serving.is_written and unread_by_v4(serving.stored):
        completed = Configuration.read(in_both_dialects(serving.stored))
        if ENGINES[engine].computes(as_it_lies(serving.model, completed, serving.length, serving.source)):
            yield WayOut("patch it with the schedule as-is, which adds the keys of transformers 4", ("as-is",))
    if request is not None:
        rope = serving.layers[0].rope
        yield from that_work([frozen(serving.length, rope), others(serving.length)], request, works)
    if engine != "transformers5" and ENGINES["transformers5"].computes(serving):
        yield WayOut("serve it with transformers 5", engine="transformers5")


def patched(plan: Plan, name: str = "OUT", source: str = "MODEL") -> Serving:
    """Describes how to serve a folder that is patched by a plan.

    Args:
        name: the folder.
        source: the folder or Hub id of the original weights.
    """
    given = plan.request if plan.original.is_scaled else replace(plan.request, replace_scaling=False, on_top=False)
    told = Source(words(plan.specs, given), argument(source), scaled=scaling_option(given))
    return as_it_lies(name, plan.planned, plan.length, told)


def export_of(engine: str, serving: Serving, plan: Plan) -> Export:
    """Exports a folder that is patched by a plan, with the ways out if the engine cannot compute the schedule."""
    done = exported(ENGINES[engine], serving, plan.specs)
    if done.error is None:
        return done
    return replace(done, advice=tuple(ways_out(engine, serving, plan.request, plan.original.raw, patched)))


def advice_on(difference: Difference, layers: Layers, done: Export, engine: str, plan: Plan) -> tuple[WayOut, ...]:
    """Returns the ways out of a difference in a folder that is patched by a plan.

    Args:
        done: the export of the folder to the engine.
    """
    left = [row.field for row in done.rows if row.layers == layers.key]
    if difference.status != "honoured" and done.error is None and difference.field not in left:
        return (WayOut(f"`ropescale export --for {engine}` avoids it", engine=engine),)
    if difference.spoils:
        return done.advice or tuple(ways_out(engine, patched(plan), plan.request, plan.original.raw, patched))
    if difference.field == "switch" and difference.status == "honoured":
        ways = [frozen(plan.length, layers.rope)]
        return (*that_work(ways, plan.request, partial(is_possible, plan.original.raw)),)
    return ()


def engine_warnings(plan: Plan) -> list[str]:
    """Returns one sentence per difference, with its ways out, which names all engines with that difference."""
    subjects: dict[str, dict[str, None]] = {}
    for key, engine in ({} if plan.planned.is_head else ENGINES).items():
        done = export_of(key, patched(plan), plan)
        for layers in layers_of(plan):
            for each in engine.differences(layers):
                if each.warning:
                    text = str(RopescaleError(each.warning, advice=advice_on(each, layers, done, key, plan)))
                    subjects.setdefault(text, {})[engine.name] = None
    return [sentence(list(who), text) for text, who in subjects.items()]
