"""Inspects a checkpoint: its geometry per layer type, the effect of schedules, and pitfalls in its files."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Unpack

from ..adapters import Adapter, find_loadable, remarks
from ..checkpoints.locating import ModelFolder
from ..configs.configuration import ONLY_V5_KEYS, Configuration
from ..configs.finding import Lengths, dotted, is_length, lengths_in
from ..engines.transformers4 import is_met
from ..errors import ScheduleError
from ..files import Data, Json, is_number, read_json
from ..output.formatting import brief, named, names_of
from ..planning.layers import window_of
from ..planning.plan import Plan, check_taken, is_as_is, make_plan, refuse_unused, share_of
from ..request import Request, RequestOptions
from ..rope import Rope
from ..schedules import Frequencies, describe, specs
from ..schedules.as_is import from_rope_parameters, stock_table
from ..schedules.base import length_dependent
from ..schedules.specs import distinct, file_of, of_several, repeated, spelled_out
from ..tables import configuration_of
from .geometry import Geometry


@dataclass(frozen=True)
class Inspection:
    """The result of :func:`inspect`.

    Attributes:
        model: the folder or Hub id, as given.
        model_type: the language model's type, from its configuration.
        geometries: the geometry of each rotating layer type.
        warnings: pitfalls in the files and remarks on the computation of the schedule, one sentence per warning.
        lengths: the trained and the served length, with the keys that state them.
        used: the options that affected the result.
    """

    model: str
    model_type: str
    geometries: tuple[Geometry, ...]
    warnings: tuple[str, ...]
    lengths: Lengths
    used: frozenset[str] = field(default=frozenset(), repr=False)

    notes = ()  # a comparison has some

    @property
    def layers(self) -> dict[str, list[Geometry]]:
        """The geometry of each layer type, in a list, as in :attr:`Inspections.layers`."""
        return {geometry.layer_type: [geometry] for geometry in self.geometries}

    def to_dict(self) -> Data:
        """Returns everything as plain data, in full precision."""
        return {
            "model": self.model,
            "model_type": self.model_type,
            "lengths": self.lengths.to_dict(),
            "warnings": list(self.warnings),
            "layers": {each.layer_type: each.to_dict() for each in self.geometries},
        }


@dataclass(frozen=True)
class Inspections:
    """The result of :func:`compare`.

    Attributes:
        inspections: the result of :func:`inspect` for each schedule, by its requested name.
        notes: one sentence for each schedule that was named twice.
        names: short names of schedules from files.
    """

    inspections: Mapping[str, Inspection]
    notes: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def lengths(self) -> Lengths:
        """The lengths of the model."""
        return next(iter(self.inspections.values())).lengths

    @property
    def warnings(self) -> tuple[str, ...]:
        """The distinct warnings of all inspections."""
        return tuple(dict.fromkeys(warning for each in self.inspections.values() for warning in each.warnings))

    @property
    def layers(self) -> dict[str, list[Geometry]]:
        """The geometries of each layer type in the order of the schedules, all relative to the same original
        geometry."""
        given = {
            name: {each.layer_type: _called(each, self.names.get(name)) for each in inspection.geometries}
            for name, inspection in self.inspections.items()
        }
        built_on = next((name for name in given if not is_as_is(name)), next(iter(given)))
        return {
            key: [_seen_from(layers[key], geometry.rope) for layers in given.values()]
            for key, geometry in given[built_on].items()
        }

    def to_dict(self) -> Data:
        """Returns the inspections as plain data, in full precision, with the schedules as an ordered list."""
        plain = [{"schedule": name, **each.to_dict()} for name, each in self.inspections.items()]
        common = {key: plain[0][key] for key in ("model", "model_type", "lengths")}
        schedules = [{key: each[key] for key in ("schedule", "warnings", "layers")} for each in plain]
        return {**common, "warnings": list(self.warnings), "schedules": schedules}


def _called(geometry: Geometry, name: str | None) -> Geometry:
    return replace(geometry, name=name) if geometry.schedule else geometry


def _seen_from(geometry: Geometry, rope: Rope) -> Geometry:
    """Returns a geometry relative to ``rope``; a scaled model's geometry may be relative to a different one."""
    if geometry.rope.inv_freq() == rope.inv_freq():
        return geometry
    return replace(
        geometry,
        rope=rope,
        schedule=geometry.schedule or "as-is",
        frequencies=geometry.frequencies or Frequencies(geometry.rope.inv_freq()),
        target_length=geometry.target_length or geometry.rope.max_length,
    )


def inspect(
    model: object, schedule: object = None, *, revision: str | None = None, **options: Unpack[RequestOptions]
) -> Inspection:
    """Reads the geometry of a model and computes the effect of a schedule; reads no weights.

    Args:
        model: a folder or a Hub id (for an adapter, its base is inspected), a configuration, or a loaded model.
        schedule: a schedule in any form. Default: the current scaling.
        revision: branch, tag or commit of a Hub id.
        options: the fields of :class:`ropescale.request.Request`. Existing scaling is replaced unless ``on_top`` is
            given, because nothing is written.

    Raises:
        CheckpointError: the model does not exist.
        DataError: a length is invalid.
        ConfigError: the model has no RoPE, or its configuration contradicts itself.
        ScheduleError: the schedule does not fit.
    """
    request = Request.of(schedule, **options)
    found = _inspected(model, _opened(model, revision), request)
    refuse_unused(request, found.used)
    name = Path(file_of(specs.parse(schedule))).name if schedule is not None else ""
    return replace(found, geometries=tuple(_called(each, name or None) for each in found.geometries))


def compare(
    model: object, schedules: Iterable[object], *, revision: str | None = None, **options: Unpack[RequestOptions]
) -> Inspections:
    """Reads the geometry of a model and computes the effect of each of several schedules.

    Args:
        model: as for :func:`inspect`.
        schedules: schedules in any form; duplicates are inspected once.
        revision: branch, tag or commit of a Hub id.
        options: as for :func:`inspect`; every schedule takes the fields that it has.

    Raises:
        CheckpointError, DataError, ConfigError: as for :func:`inspect`.
        ScheduleError: no schedule is given, a schedule does not fit, or no schedule has a given field.
    """
    request = Request.of(None, **options)
    parsed = [specs.parse(schedule) for schedule in schedules]
    if not parsed:
        raise ScheduleError("no schedule is given; name one, such as yarn:factor=4")
    # A target length is also useful without a factor, as the length to inspect at.
    check_taken(parsed, replace(request, target_length=None))
    opened = _opened(model, revision)
    unique = distinct(parsed)
    made = dict[str, Inspection]()
    files = {}
    for spec in unique:
        name = spelled_out(spec)
        with of_several(spec, len(unique)):
            if name in made:  # objects, whose fields are unknown
                raise ScheduleError("another schedule has the same name; give them different names")
            made[name] = _inspected(model, opened, share_of(spec, request))
        if file := file_of(spec):
            files[name] = file
    refuse_unused(request, frozenset().union(*(each.used for each in made.values())))
    notes = tuple(f"{repetition}; it is shown once" for repetition in repeated(parsed))
    return Inspections(made, notes, names_of(files))


Opened = tuple[ModelFolder, Adapter | None]
"""A checkpoint, and the adapter that names it as its base."""


def _opened(model: object, revision: str | None) -> Opened | None:
    """Locates a checkpoint; returns None for a configuration or a loaded model."""
    return find_loadable(model, revision, weights=False) if isinstance(model, (str, Path)) else None


def _inspected(model: object, opened: Opened | None, request: Request) -> Inspection:
    """Returns the geometry of a model under a schedule or unchanged."""
    stays = request.spec is None or is_as_is(request.spec)
    files: Files = {}
    if opened is None:
        now = before = _read(configuration_of(model, "as-is" if stays else request.spec, request.on_top), request)
    else:
        stored = opened[0]
        folder = stored.folder
        beside = ("tokenizer_config.json", "generation_config.json", "ropescale.json")
        files = {name: read_json(folder / name) for name in beside if (folder / name).exists()}
        now = _read(stored.config, request)
        # A schedule builds on the configuration without ropescale's scaling, as patching does.
        before = now if stays else _read(stored.original(request.on_top), request)
    plan = _plan(before, request)
    geometries = _geometries(now, before, plan, request.target_length or (_meant_for(files) if stays else None))
    name = type(model).__name__
    warnings = list[str]()
    lengths = now.lengths
    if opened is not None:
        name = str(model)
        adapter = opened[1]
        # Patching with the schedule removes the pitfall of transformers 5's keys.
        warnings += [each for each in traps(now, files) if stays or each != ONLY_V5_KEYS]
        if adapter is not None:
            warnings.append(f"{named(adapter.folder)} is an adapter; the output shows its base, {named(adapter.name)}")
            warnings += remarks(adapter)
        warnings += plan.notes if plan else ()
    for limit in lengths_in(files.get("tokenizer_config.json", {}), ["model_max_length"]):
        lengths = replace(lengths, tokenizer=replace(limit, key=f"tokenizer_config.json: {limit.key}"))
    used = {"original_length"} | (plan.used if plan else set())
    if any(each.frequencies for each in geometries):  # the turns of a scaled layer are counted at the target length
        used.add("target_length")
    return Inspection(name, now.model_type, geometries, tuple(warnings), lengths, frozenset(used))


def _read(config: Json, request: Request) -> Configuration:
    return Configuration.read(config, request.original_length)


def _plan(configuration: Configuration, request: Request) -> Plan | None:
    if request.spec is None:
        return None
    replaced = request.replace_scaling or (configuration.is_scaled and not request.on_top)
    start, other = configuration.lengths.start(request.on_top)
    given = start.tokens if other else request.original_length  # inspecting never asks
    return make_plan(configuration.raw, replace(request, replace_scaling=replaced, original_length=given))


def _geometries(
    now: Configuration, before: Configuration, plan: Plan | None, target_length: int | None
) -> tuple[Geometry, ...]:
    """Returns the geometry of each layer type under the plan, or under its current scaling if not in the plan.

    Args:
        now: the current configuration.
        before: the configuration that the schedule builds on.
    """
    geometries = []
    for key, there in now.ropes.items():
        rope = before.ropes[key]
        layer = plan.layers.get(key) if plan else None
        geometry = Geometry(
            key,
            rope,
            target_length=plan.length if plan else target_length,
            scaling=there.scaling if there.is_scaled else None,
            window=window_of(now, key),
        )
        if plan and layer:
            table = layer.table(plan.length)
            varies = length_dependent(layer.schedule)
            geometry = replace(
                geometry, rope=layer.rope, schedule=describe(layer.schedule), frequencies=table, varies=varies
            )
        elif rope.is_scaled:
            length = target_length or now.meant_length
            varies = length_dependent(from_rope_parameters(rope)[0])
            table = stock_table(rope, length)
            geometry = replace(geometry, schedule="as-is", frequencies=table, target_length=length, varies=varies)
        geometries.append(geometry)
    return tuple(geometries)


Files = Mapping[str, Json]
"""Parsed files of a checkpoint by name."""


def traps(configuration: Configuration, files: Files) -> list[str]:
    """Lists pitfalls of changing or serving these files, one sentence per pitfall.

    Args:
        configuration: the parsed ``config.json``.
        files: other parsed files of the checkpoint by name (``tokenizer_config.json``, ``generation_config.json``,
            ``ropescale.json``).
    """
    found = [*_scaling_traps(configuration, patched="ropescale.json" in files)]
    found += [ONLY_V5_KEYS] if is_met(configuration) else []
    if any("attn_factor" in r.scaling and "attention_factor" not in r.scaling for r in configuration.ropes.values()):
        found.append("transformers ignores attn_factor; it reads attention_factor")
    if draft := configuration.draft:
        found.append(
            f"{draft}: drafts must rotate like their target; MTP layers follow a patched folder, heads need --like"
        )
    return list(dict.fromkeys([*found, *_limit_traps(configuration, files)]))


def _scaling_traps(configuration: Configuration, patched: bool) -> Iterator[str]:
    for key in ("rope_scaling", "rope_parameters"):
        outer = configuration.raw.get(key)
        if outer and outer != configuration.section.get(key):
            yield f"{key} at the top level differs from {dotted(configuration.path)}, which transformers reads"
    name = "original_max_position_embeddings"
    for rope in configuration.ropes.values():
        kind = rope.kind
        where = f" ({rope.layer_type})" if rope.layer_type else ""
        if not rope.is_scaled:
            continue
        if not patched:
            yield (
                f"this model is already scaled{where}: {kind}, {rope.original_length:,} to "
                f"{configuration.meant_length:,} tokens; a patch must replace that scaling, or compose with it"
            )
        if rope.varies:
            yield (
                f"{kind} changes the frequencies with the length of each forward call{where}; decoding with a cache "
                "differs from a full forward pass once the text is so long that the frequencies change (verify "
                "measures this with generate; a patch that freezes the table at one length avoids it)"
            )
        recorded = rope.scaling.get(name) or configuration.text.get(name)
        if kind in ("yarn", "llama3", "longrope") and not recorded:
            yield (
                f"{kind} without original_max_position_embeddings{where}: transformers uses "
                f"max_position_embeddings ({rope.max_length}) as the trained length"
            )


def _limit_traps(configuration: Configuration, files: Files) -> Iterator[str]:
    lengths = configuration.lengths
    if doubt := lengths.doubt(on_top=False) or lengths.doubt(on_top=True):
        yield f"{doubt}; a patch that depends on it asks for the original length"
    text = configuration.section
    longest = configuration.max_length
    meant = _meant_for(files)
    what = "max_position_embeddings"
    if meant is not None and meant != longest:
        yield f"this checkpoint was extended to {meant:,} tokens (ropescale.json), but {what} is {longest:,}"
        longest = meant
        what = "the target length"
    limit = files.get("tokenizer_config.json", {}).get("model_max_length")
    if is_number(limit) and limit < longest:
        shown = f"{limit:.0f}" if isinstance(limit, float) else brief(limit)
        yield f"tokenizer_config.json: model_max_length is {shown}, below {what} {longest}"
    maximum = files.get("generation_config.json", {}).get("max_length")
    if isinstance(maximum, int) and 20 < maximum <= longest:  # 20 is transformers' default and means unset
        yield f"generation_config.json: max_length is {maximum}, which stops generation under every schedule"
    window = text.get("sliding_window")
    if isinstance(window, int) and 0 < window < longest and text.get("use_sliding_window", True):
        yield f"sliding_window is {window}: layers with sliding attention never attend further back"


def _meant_for(files: Files) -> int | None:
    """Returns the target context, in tokens, of a patched checkpoint, which can differ from its stated maximum."""
    length = files.get("ropescale.json", {}).get("length")
    return int(length) if is_length(length) else None
