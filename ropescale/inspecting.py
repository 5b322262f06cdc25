"""The rotary geometry of a model in numbers, and the traps that its files hold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .checkpoints import adapters
from .checkpoints.adapters import find_loadable
from .checkpoints.locating import read_config
from .checkpoints.record import original_config
from .configs.checks import LARGEST
from .configs.class_defaults import ALL_LAYERS
from .configs.configuration import Configuration
from .configs.writing import ONLY_V5_KEYS, unread_by_v4
from .files.reading import read_json
from .formatting import brief
from .planning.choosing import window_of
from .planning.plan import Plan, is_as_is, make_plan
from .request import Request, RequestOptions
from .rope import Rope
from .schedules import Frequencies, describe
from .schedules.as_is import from_rope_parameters, stock_table
from .schedules.base import length_dependent

if TYPE_CHECKING:
    from typing import Unpack

Files = Mapping[str, Mapping[str, object]]
"""Parsed files of a checkpoint by name."""

SAME = 1e-9
"""Two frequencies that differ by less than this, relative, are the same number to a reader."""

NEARLY_MOST = 0.999
"""A pair divided by this share of the largest divisor counts as divided (resonance rounds each by its own bit)."""


@dataclass(frozen=True)
class Pair:
    """One rotary pair before a schedule, and after it where there is one.

    Attributes:
        pair: its index; 0 turns fastest.
        inv_freq: radians per token.
        wavelength: tokens per full turn, infinite for a pair that never turns.
        turns: full turns inside the trained length, or inside the window of layers that see no more.
        completes_a_turn: whether the model has seen this pair turn all the way round in training.
        new_inv_freq: radians per token under the schedule.
        new_wavelength: tokens per full turn under the schedule.
        new_turns: full turns inside the target length, or the window, under the schedule.
        divisor: ``inv_freq / new_inv_freq``, how much slower it turns.
        kind: ``kept``, ``blended`` (slowed by less than the most), ``divided`` (by the most), ``faster``,
            ``stopped``, or ``still`` for a pair that did not turn before either.
    """

    pair: int
    inv_freq: float
    wavelength: float
    turns: float
    completes_a_turn: bool
    new_inv_freq: float | None = None
    new_wavelength: float | None = None
    new_turns: float | None = None
    divisor: float | None = None
    kind: str | None = None


@dataclass(frozen=True)
class Geometry:
    """One layer type's rotary geometry, and what a schedule makes of it.

    Attributes:
        layer_type: ``all`` for a model with one table for every layer.
        rope: the geometry that a schedule builds on.
        schedule: the schedule of the frequencies below, as text; None without one.
        frequencies: the schedule's result.
        target_length: the context, in tokens, that ``frequencies`` and the new turns are for.
        scaling: the scaling that the configuration has, as rope parameters; None without any.
        window: how far back these layers see, in tokens; None where that is the whole text.
        varies: whether the schedule's frequencies change with the length.
    """

    layer_type: str
    rope: Rope
    schedule: str | None = None
    frequencies: Frequencies | None = None
    target_length: int | None = None
    scaling: Mapping[str, object] | None = None
    window: int | None = None
    varies: bool = False

    def seen(self, length: int) -> int:
        """Returns how many tokens of a text of this length a position of these layers sees."""
        return length if self.window is None else min(length, self.window)

    def turns(self) -> list[float]:
        """Returns the full turns of each pair inside what the layers saw in training."""
        return [self.seen(self.rope.original_length) / _wavelength(f) for f in self.rope.inv_freq()]

    @property
    def label(self) -> str | None:
        """The schedule, with the length of its frequencies where they change with it."""
        if not self.varies or self.target_length is None:
            return self.schedule
        return f"{self.schedule}, as at {self.target_length:,} tokens"

    def pairs(self) -> list[Pair]:
        """Returns every pair, in order."""
        before = [
            Pair(i, f, _wavelength(f), turns, turns >= 1)
            for i, (f, turns) in enumerate(zip(self.rope.inv_freq(), self.turns()))
        ]
        return list(self._changed(before)) if self.frequencies else before

    def _changed(self, before: list[Pair]) -> Iterator[Pair]:
        assert self.frequencies is not None
        new = list(self.frequencies.inv_freq)
        divisors = [_divisor(pair.inv_freq, f) for pair, f in zip(before, new)]
        most = max((d for d in divisors if math.isfinite(d)), default=1.0)
        length = self.seen(self.target_length or self.rope.original_length)
        for pair, f, divisor in zip(before, new, divisors):
            yield replace(
                pair,
                new_inv_freq=f,
                new_wavelength=_wavelength(f),
                new_turns=length / _wavelength(f),
                divisor=divisor,
                kind=_kind(divisor, most),
            )

    def unturned(self) -> list[int]:
        """Returns the pairs that never complete a turn inside what the layers saw in training."""
        return [pair.pair for pair in self.pairs() if not pair.completes_a_turn]

    def to_dict(self) -> dict[str, object]:
        """Returns everything as plain data, in full precision."""
        rope = self.rope
        return {
            "layer_type": self.layer_type,
            "head_dim": rope.head_dim,
            "rotary_dim": rope.rotary_dim,
            "pairs": rope.pairs,
            "rope_theta": rope.theta,
            "original_length": rope.original_length,
            "max_position_embeddings": rope.max_length,
            "window": self.window,
            "scaling": dict(self.scaling) if self.scaling else None,
            "unturned_pairs": self.unturned(),
            "schedule": self.schedule,
            "target_length": self.target_length,
            "attention_scale": self.frequencies.attention_scale if self.frequencies else None,
            "table": [
                {key: value for key, value in asdict(pair).items() if value is not None} for pair in self.pairs()
            ],
        }


def _wavelength(inv_freq: float) -> float:
    return 2 * math.pi / inv_freq if inv_freq else math.inf


def _divisor(before: float, after: float) -> float:
    """Returns ``before / after``: infinite for a pair that was stopped, NaN for one that never turned."""
    if not after:
        return math.inf if before else math.nan
    return before / after


def _kind(divisor: float, most: float) -> str:
    if math.isnan(divisor):
        return "still"
    if math.isinf(divisor):
        return "stopped"
    if abs(divisor - 1) <= SAME:
        return "kept"
    if divisor < 1:
        return "faster"
    return "divided" if divisor >= most * NEARLY_MOST else "blended"


@dataclass(frozen=True)
class Inspection:
    """The result of :func:`inspect`.

    Attributes:
        model: the folder or Hub id as it was given.
        model_type: the language model's, from its configuration.
        geometries: one per layer type that rotates.
        warnings: traps in the files and remarks on how the schedule was computed, one sentence each.
    """

    model: str
    model_type: str
    geometries: tuple[Geometry, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """Returns everything as plain data, in full precision."""
        return {
            "model": self.model,
            "model_type": self.model_type,
            "warnings": list(self.warnings),
            "layers": {each.layer_type: each.to_dict() for each in self.geometries},
        }


def inspect(
    model: str, schedule: object = None, *, revision: str | None = None, **options: Unpack[RequestOptions]
) -> Inspection:
    """Reads the geometry of a checkpoint and shows what a schedule would do to it; reads no weights.

    Args:
        model: a folder or a Hub id; of an adapter it is the base that is shown.
        schedule: in any of its forms; without one, the scaling that it has is shown.
        revision: branch, tag or commit of a Hub id.
        options: the fields of :class:`ropescale.request.Request`. Scaling that is already there is replaced unless
            ``on_top`` is given, because nothing is written.

    Raises:
        CheckpointError: no such model.
        DataError: a length cannot be read.
        ConfigError: it has no RoPE, or its configuration contradicts itself.
        ScheduleError: the schedule does not fit.
    """
    request = Request.of(schedule, **options)
    folder, adapter = find_loadable(model, revision, weights=False)
    now = Configuration.read(read_config(folder), request.original_length)
    stays = schedule is None or is_as_is(schedule)
    # A schedule is computed from what patching would start from: the configuration without our scaling.
    before = now if stays else Configuration.read(original_config(now.raw, folder), request.original_length)
    now_ropes = now.ropes
    plan = _plan(before, request)
    remarks = [*adapters.on_base_shown(adapter), *(plan.notes if plan else _length_remarks(now))]
    files = read_files(folder)
    length = request.target_length or (_meant_for(files) if stays else None)
    geometries = tuple(
        replace(_geometry(before.ropes[key], plan, length, there), window=window_of(now, key))
        for key, there in now_ropes.items()
    )
    return Inspection(str(model), now.model_type, geometries, (*traps(now, files), *remarks))


def geometries_of(config: Mapping[str, object], request: Request) -> tuple[Geometry, ...]:
    """Returns the geometry of each layer type of a configuration, with what the schedule makes of it."""
    now = Configuration.read(config, request.original_length)
    plan, length = _plan(now, request), request.target_length
    found = {key: _geometry(rope, plan, length, rope) for key, rope in now.ropes.items()}
    return tuple(replace(geometry, window=window_of(now, key)) for key, geometry in found.items())


def _plan(configuration: Configuration, request: Request) -> Plan | None:
    if request.spec is None:
        request.refuse_without_schedule("original_length", "target_length", "layers")
        return None
    replaced = request.replace_scaling or (configuration.is_scaled and not request.on_top)
    return make_plan(configuration.raw, replace(request, replace_scaling=replaced))


def _meant_for(files: Files) -> int | None:
    """Returns the context, in tokens, that ropescale patched a checkpoint for; its maximum can say something else."""
    length = files.get("ropescale.json", {}).get("length")
    return length if isinstance(length, int) and not isinstance(length, bool) and 0 < length <= LARGEST else None


def _geometry(rope: Rope, plan: Plan | None, target_length: int | None, there: Rope) -> Geometry:
    """Returns a layer type's geometry under the plan; without one, under the scaling it has, or as trained.

    ``rope`` is what the schedule builds on, ``there`` what the configuration has now.
    """
    layer_type, scaling = rope.layer_type or ALL_LAYERS, there.scaling if there.is_scaled else None
    if plan and (layer := plan.layers.get(layer_type)):
        table = layer.table(plan.length)
        varies = length_dependent(layer.schedule)
        return Geometry(layer_type, layer.rope, describe(layer.schedule), table, plan.length, scaling, varies=varies)
    if rope.is_scaled:
        length = target_length or rope.max_length
        varies = length_dependent(from_rope_parameters(rope)[0])
        return Geometry(layer_type, rope, "as it is", stock_table(rope, length), length, scaling, varies=varies)
    return Geometry(layer_type, rope, target_length=plan.length if plan else target_length, scaling=scaling)


def _length_remarks(configuration: Configuration) -> Iterator[str]:
    for rope in configuration.ropes.values():
        if rope.max_length > rope.original_length and not rope.is_scaled:
            yield (
                f"max_position_embeddings is {rope.max_length}, but the model was trained at {rope.original_length}; "
                f"factors count from {rope.original_length}"
            )


# ---------------------------------------------------------------------------------------------------------
# Traps: what transformers and other engines do with a configuration without saying so. Each was seen
# with transformers 5.23, and 4.51 and 4.57 where an older version is named.


def traps(configuration: Configuration, files: Files | None = None) -> list[str]:
    """Lists the traps to know before these files are changed or served, one sentence each.

    Args:
        configuration: the parsed ``config.json``.
        files: other parsed files of the checkpoint by name (``tokenizer_config.json``, ``generation_config.json``,
            ``ropescale.json``).
    """
    files = files or {}
    found = [
        *_scaling_traps(configuration, patched="ropescale.json" in files),
        *_type_traps(configuration),
        *_key_traps(configuration),
        *_limit_traps(configuration, files),
    ]
    return list(dict.fromkeys(found))


def _scaling_traps(configuration: Configuration, patched: bool) -> Iterator[str]:
    name = "original_max_position_embeddings"
    for rope in configuration.ropes.values():
        kind, where = rope.scaling.get("rope_type"), f" ({rope.layer_type})" if rope.layer_type else ""
        if not rope.is_scaled:
            continue
        if not patched:
            yield (
                f"this model is already scaled{where}: {kind}, {rope.original_length} to {rope.max_length} tokens; "
                "patching it needs replace_scaling=True or on_top=True"
            )
        if kind == "dynamic" or (
            kind == "longrope" and rope.scaling.get("short_factor") != rope.scaling.get("long_factor")
        ):
            yield (
                f"{kind} changes the frequencies with the length of each forward call{where}; decoding with a cache "
                "differs from a full forward pass once the length passes the switch (generate=True of verify measures "
                "it, freeze_at=N of patch ends it)"
            )
        recorded = rope.scaling.get(name) or configuration.section.get(name)
        if kind in ("yarn", "llama3", "longrope") and not recorded:
            yield (
                f"{kind} without original_max_position_embeddings{where}: transformers takes "
                f"max_position_embeddings ({rope.max_length}) for the trained length"
            )


def _key_traps(configuration: Configuration) -> Iterator[str]:
    if unread_by_v4(configuration):
        yield ONLY_V5_KEYS
    for rope in configuration.ropes.values():
        scaling = rope.scaling
        if "attn_factor" in scaling and "attention_factor" not in scaling:
            yield "attn_factor is ignored by transformers; it reads attention_factor"
        if rope.layer_type and scaling.get("truncate") is False:
            yield f"truncate: false is ignored by transformers 5 where it stands per layer type ({rope.layer_type})"
        if rope.rotary_dim % 2:
            yield f"the rotary dim {rope.rotary_dim} is odd; yarn fails on it in transformers"


def _type_traps(configuration: Configuration) -> Iterator[str]:
    text, kind, special = configuration.section, configuration.model_type, configuration.family
    if kind in ("mixtral", "minimax") and text.get("head_dim") is None:
        yield f"{kind} without head_dim: yarn, dynamic and longrope raise a TypeError in transformers 5; write head_dim"
    if special.derives_attention_scale:
        yield f"{kind} accepts no scaling but longrope; other schedules are saved through its per-pair lists"
    if not special.native_longrope:
        yield f"{kind} never uses long_factor in transformers 5; both lists must be the same"
    if special.takes_only_theta:
        yield f"{kind} accepts no scaling type at all; only its rope_theta can change"
    if kind.startswith("gemma4") and not text.get("allow_global_per_layer_attribute_access"):
        yield "gemma4 fails its own validation of longrope unless allow_global_per_layer_attribute_access is true"


def _limit_traps(configuration: Configuration, files: Files) -> Iterator[str]:
    text, longest, meant = configuration.section, configuration.max_length, _meant_for(files)
    what = "max_position_embeddings"
    if meant is not None and meant != longest:
        yield f"this checkpoint is meant for {meant} tokens (ropescale.json), and {what} says {longest}"
        longest, what = meant, "the length it is meant for,"
    limit = files.get("tokenizer_config.json", {}).get("model_max_length")
    if isinstance(limit, (int, float)) and not isinstance(limit, bool) and limit < longest:
        shown = f"{limit:.0f}" if isinstance(limit, float) else brief(limit)
        yield f"tokenizer_config.json says model_max_length {shown}, below {what} {longest}"
    maximum = files.get("generation_config.json", {}).get("max_length")
    if isinstance(maximum, int) and 20 < maximum <= longest:  # 20 is transformers' default, which means unset
        yield f"generation_config.json says max_length {maximum}; generation stops there whatever the schedule"
    window = text.get("sliding_window")
    if isinstance(window, int) and 0 < window < longest and text.get("use_sliding_window", True):
        yield f"sliding_window is {window}: layers with sliding attention never look further back"


def read_files(folder: Path) -> dict[str, Mapping[str, object]]:
    """Reads the files beside ``config.json`` that :func:`traps` looks at, as far as they exist.

    Raises:
        ConfigError: one of them is not JSON.
    """
    names = ("tokenizer_config.json", "generation_config.json", "ropescale.json")
    return {name: read_json(folder / name) for name in names if (folder / name).exists()}
