"""The fields of a schedule that an engine does not honour, the commands that serve it, and what to do instead."""

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, get_args

from ..configs.configuration import Configuration, in_both_dialects, unread_by_v4
from ..errors import RopescaleError, RunError, ScheduleError, WayOut
from ..files import Json
from ..output.formatting import argument
from ..planning.layers import is_windowed
from ..planning.plan import Plan, is_possible
from ..record import softmax_factor
from ..request import Request, frozen, others, that_work
from ..schedules import names
from ..schedules.as_is import stock_table
from ..schedules.specs import parse, parts_of
from . import ENGINES
from .base import (
    BASE_ROPE,
    LOST,
    Command,
    Difference,
    Engine,
    How,
    Layers,
    Serving,
    Source,
    Status,
    as_it_lies,
    layers_of,
    sentence,
)


@dataclass(frozen=True)
class Distance:
    """The largest relative differences from the requested schedule; infinite where the engine's number is not known.

    Attributes:
        frequencies: of a pair's frequency, at the served length, and at the trained length if the requested table
            changes with the length.
        attention_factor: of the multiplier of cos and sin.
        softmax_scale: of the factor on the softmax scale.
    """

    frequencies: float = math.inf
    attention_factor: float = math.inf
    softmax_scale: float = math.inf


@dataclass(frozen=True)
class FieldRow:
    """One field of a schedule that an engine does not honour.

    Attributes:
        layers: the layer type, or ``"all"`` for a model with one table for all layers.
        field: the field's name, such as ``factor``.
        status: how the engine treats the field.
        computes: the value that the engine computes.
    """

    layers: str
    field: str
    status: Status
    computes: str


@dataclass(frozen=True)
class Export:
    """The commands that serve a checkpoint, and the values that the engine computes.

    Attributes:
        model: the folder or Hub id of the checkpoint.
        engine: the engine's usual name.
        version: the version that was checked.
        length: the context, in tokens.
        schedule: the spec for each layer type; empty if the checkpoint is served unchanged.
        commands: the commands to paste; empty if the engine cannot compute the schedule.
        rows: a row per field that the engine does not honour; empty if it computes the schedule as requested.
        warnings: the engine's differences, as sentences.
        notes: remarks on the origin of the schedule's numbers, and on drafts.
        how: the evidence; the weakest, if it differs between layer types.
        served_version: the version with which tests serve whole models, or "".
        loads: whether the engine loads the checkpoint under the schedule; None if that is not known.
        distance: how far its numbers are from the requested ones.
        reason: why there is no command; None if there are commands.
        advice: what to do instead, if there is an :attr:`error`; every way was tried.
    """

    model: str
    engine: str
    version: str
    length: int
    schedule: Mapping[str, str]
    commands: list[Command]
    rows: list[FieldRow]
    warnings: list[str]
    loads: bool | None
    distance: Distance
    reason: str | None
    how: How
    served_version: str
    notes: tuple[str, ...] = ()
    advice: tuple[WayOut, ...] = ()

    @property
    def error(self) -> RunError | None:
        """The error of an engine that cannot compute the schedule, or is not known to; None if it does."""
        problem = self.reason
        if problem is None and self.how == "not known":
            problem = (
                f"it is not known what {self.engine} computes for this model; compare its answers with transformers'"
            )
        return None if problem is None else RunError(problem, advice=self.advice)

    @property
    def is_same(self) -> bool:
        """Whether the engine is known to compute the schedule as requested."""
        return self.error is None and not self.rows

    @property
    def ground(self) -> str:
        """The ground of the claim: ``ran``, ``read`` or ``not known``."""
        return {"served": "ran", "run": "ran", "source": "read"}.get(self.how, self.how)

    @property
    def options(self) -> str:
        """The options of the first command that set the schedule or its length; "" if there are none."""
        return " ".join(self.commands[0].options) if self.commands else ""

    @property
    def refusal(self) -> str | None:
        """The reason and the advice as a sentence; None if there are commands."""
        return None if self.reason is None else str(self.error)

    def to_dict(self) -> Json:
        """Returns the export as a dict for JSON."""
        claim = {"same": self.is_same, "ground": self.ground, "options": self.options}
        return asdict(self) | {"served": self.reason is None, "refusal": self.refusal} | claim


def exported(engine: Engine, serving: Serving, schedules: Mapping[str, str]) -> Export:
    """Builds the :class:`Export` of a checkpoint for an engine.

    Args:
        engine: the engine.
        serving: the checkpoint to serve.
        schedules: the spec for each layer type.
    """
    spelled = engine.spelled(serving)
    draft = serving.wanted.draft
    is_head = serving.wanted.is_head
    differences = [engine.left(spelled, layers) for layers in spelled.layers]
    if is_head:
        text = "was not checked with draft heads, which run only beside their target"
        differences = [[Difference.unknown(text)] for _ in spelled.layers]
    lost = next((i for i, each in enumerate(differences) if any(found.prevents for found in each)), None)
    commands = engine.serve(serving) if lost is None and not is_head else []
    notes = ()
    flags = engine.head if is_head else engine.mtp
    if draft and flags:
        beside = "" if serving.is_written else engine.beside
        notes = (f"{engine.name}, {draft}: {flags.format(draft.layers or draft.method)}{beside}",)
    # The commands already meet the conditions of honoured fields, except conditions on the frequencies.
    told = [each for each in chain(*differences) if each.status != "honoured" or each.field == "frequencies"]
    warnings = [each.warning for each in told if each.warning]
    reason = None
    if not commands and not is_head:
        layers = spelled.layers[lost or 0]
        reasons = differences[lost or 0]
        why = next((each.warning for each in reasons if each.status in LOST and each.warning), "")
        warnings = [text for text in warnings if text != why]
        because = f": {why}".replace("{s}", "s") if why else ""
        reason = f"{engine.name} cannot compute this schedule ({layers.kind} for {layers.model_type}){because}"
    stops = not all(each.loads for each in chain(*differences))
    how: How = max(map(engine.evidence, spelled.layers), key=get_args(How).index)  # the weakest of all layers
    if any(each.status == "not known" for each in chain(*differences)):
        how = "not known"
    elif stops:
        how = "source"
    return Export(
        model=serving.model,
        engine=engine.name,
        version=engine.version,
        length=serving.length,
        schedule=schedules,
        commands=commands,
        rows=[
            FieldRow(layers.key, each.field, each.status, each.computes)
            for layers, found in zip(spelled.layers, differences)
            for each in found
            if each.status != "honoured"
        ],
        warnings=[sentence([engine.name], text) for text in dict.fromkeys(warnings)],
        reason=reason,
        how=how,
        loads=False if stops else how != "not known" or None,
        distance=largest(map(distance, serving.layers, differences)),
        served_version=engine.served_version,
        notes=notes,
    )


# ---------------------------------------------------------------------------------------------------------
# How far the numbers that an engine computes are from the requested ones

_KEYS = {"frequencies": "rope_type", "theta": "rope_theta", "original length": "original_max_position_embeddings"}
"""The rope parameters that differ, by the field of the difference; others have the field's name."""


def largest(kinds: Iterable[Distance]) -> Distance:
    """Returns the largest distances of several kinds of layer."""
    return Distance(*map(max, zip(*map(astuple, kinds))))


def distance(layers: Layers, differences: Iterable[Difference]) -> Distance:
    """Computes how far an engine with these differences is, for one kind of layer."""
    found = {each.field: _parameter(each.value) for each in differences if each.status != "honoured"}
    others = ("switch", "attention factor", "softmax scale")
    changed = {_KEYS.get(field, field): value for field, value in found.items() if field not in others}
    # An engine that reads no rope_parameters reads no theta in them either.
    unread = "frequencies" in found and (layers.dialect == "v5" or layers.kind == "proportional")
    if unread or math.inf in changed.values():
        return Distance()
    rope = replace(layers.configuration.ropes[layers.key], scaling=layers.parameters)
    own = replace(rope, scaling={**layers.parameters, **changed})
    wanted = stock_table(rope, layers.length)
    computed = stock_table(own, layers.length)
    pairs = [*zip(computed.inv_freq, wanted.inv_freq)]
    if "switch" in found:
        pairs += zip(wanted.inv_freq, stock_table(rope, rope.original_length).inv_freq)
    scale = found.get("attention factor", computed.attention_scale)
    softmax = found.get("softmax scale", softmax_factor(own))
    return Distance(
        max((abs(one / other - 1) for one, other in pairs if other), default=0.0),
        abs(scale / wanted.attention_scale - 1),
        abs(softmax / softmax_factor(rope) - 1),
    )


def _parameter(value: str | float) -> Any:
    """Returns what an engine computes as a rope parameter, infinite if words alone describe it."""
    if value == BASE_ROPE:
        return "default"
    return math.inf if isinstance(value, str) else value


# ---------------------------------------------------------------------------------------------------------
# Options of commands


def scaling_option(request: Request) -> tuple[str, ...]:
    """Returns the option ``--replace-scaling`` or ``--on-top`` that a request corresponds to, if any."""
    return tuple(f"--{key.replace('_', '-')}" for key in ("replace_scaling", "on_top") if getattr(request, key))


def applied_options(request: Request) -> tuple[str, ...]:
    """Returns the options of ``ropescale patch``, except the schedule, that make the same request."""
    given = {"--original-length": request.original_length, "--layers": request.layers, "--freeze-at": request.freeze_at}
    stated = ((option, str(value)) for option, value in given.items() if value is not None)
    return (*chain.from_iterable(stated), *scaling_option(request))


def patch_command(model: str, schedule: str, request: Request, out: str = "OUT", revision: str | None = None) -> str:
    """Returns the command that patches a checkpoint with a schedule, in the form that ``--schedule`` accepts."""
    at = [] if revision is None else ["--revision", revision]
    words = ["ropescale", "patch", model, "-o", out, "--schedule", schedule, *at]
    return shlex.join([*words, *applied_options(request)])


def gguf_options(schedules: Mapping[str, object], request: Request, length: int) -> tuple[str, ...]:
    """Returns the options of ``ropescale gguf`` that make the same request, or () if there are none.

    There are none if layer types have different schedules, sliding-window layers change as well, or the schedule is
    not built in.

    Args:
        schedules: the schedule of each layer type, or its JSON form in a record.
        length: the context to serve, in tokens.
    """
    if not schedules or any(map(is_windowed, schedules)):
        return ()
    try:
        spec, *others = parts_of(parse(schedules))
    except ScheduleError:  # in a record, a user's own
        return ()
    if spec.label not in names() or any(other.identity != spec.identity for other in others):
        return ()
    options = applied_options(replace(request, layers=None, freeze_at=None))
    if spec.given.get("factor") is None:
        options += ("--target-length", str(length))
    return ("--schedule", spec.exact, *options)


# ---------------------------------------------------------------------------------------------------------
# What to do where an engine computes a schedule otherwise; every way out is tried before it is given


def ways_out(
    engine: str, serving: Serving, request: Request | None, config: Json, serve: Callable[[Plan], Serving]
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


def source_of(plan: Plan, folder: str | None, revision: str | None = None) -> Source:
    """Describes the original weights of a plan; a GGUF file of scaled weights may not state the original length."""
    given = replace(plan.request, replace_scaling=False, on_top=False)
    for rope in plan.ropes.values():
        if plan.original.is_scaled:
            given = replace(plan.request, original_length=rope.original_length)
    return Source(gguf_options(plan.schedules, given, plan.length), folder, revision, scaling_option(given))


def patched(plan: Plan, name: str = "OUT", source: str = "MODEL") -> Serving:
    """Describes how to serve a folder that is patched by a plan.

    Args:
        name: the folder.
        source: the folder or Hub id of the original weights.
    """
    return as_it_lies(name, plan.planned, plan.length, source_of(plan, argument(source)))


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
