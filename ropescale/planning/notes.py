"""Notes on a plan: the origin of its numbers, and surprises for the user."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from ..configs.class_defaults import ALL_LAYERS
from ..configs.configuration import Configuration
from ..errors import ScheduleError
from ..output.formatting import brief, listed, size
from ..request import Request
from ..schedules import describe
from ..schedules.base import label_of
from ..schedules.fields import plain
from .layers import PlannedLayer, is_windowed

Planned = Mapping[str, PlannedLayer]


def on_configuration(configuration: Configuration, layers: Planned, request: Request) -> Iterator[str]:
    """Yields notes on the configuration's lengths and on unchanged layers."""
    ropes, kinds = configuration.ropes, configuration.layer_types
    if ALL_LAYERS in ropes and len(kinds) > 1 and any(map(is_windowed, kinds)):
        yield "this model keeps one table for all its layers, so the sliding layers change as well"
    rope = next(iter(ropes.values()))
    counted = request.on_top or request.original_length is not None
    if rope.original_length != rope.max_length and not rope.is_scaled and not counted:
        yield (
            f"the configuration says {rope.max_length} positions, of which {rope.original_length} were trained; "
            f"computing from {rope.original_length}; an original length of {rope.max_length} computes from all"
        )
    for name, value in configuration.ignored.items():
        yield (
            f"{name} {brief(value)} is left out of the new configuration: {configuration.model_type} turns whole heads "
            "and does not look at it, but transformers' scaled tables would"
        )
    if untouched := [key for key in ropes if key not in layers]:
        yield f"layers left as they are: {listed(untouched)}"


def on_freezing(layers: Planned, length: int) -> Iterator[str]:
    """Yields the effect of freezing on each layer type's schedule.

    Raises:
        ScheduleError: at this length no schedule changes anything.
    """
    idle = [layer for layer in layers.values() if layer.is_frozen and layer.leaves_all(length)]
    if idle and len(idle) == len(layers):
        raise ScheduleError(
            f"{describe(idle[0].asked)} frozen at {length} tokens leaves every frequency as it is: the trained length "
            f"is {idle[0].rope.original_length}, and it only affects longer contexts; freeze it at a longer length"
        )
    for layer in layers.values():
        label = describe(layer.asked)
        if layer in idle:
            yield f"{label} leaves every frequency as it is at {length} tokens"
        elif layer.is_frozen:
            yield f"{label} is frozen as it is at {length} tokens; that table serves every length"
        else:
            yield f"{label} is the same at every length, so there is nothing to freeze at {length} tokens"


def on_replaced_scaling(layers: Planned, request: Request) -> Iterator[str]:
    """Yields what is lost with the vendor's scaling: its softmax scale, fields and length."""
    yield from _lost_softmax_scale(layers)
    yield from _other_fields(layers)
    had = max(layer.there.max_length for layer in layers.values())
    length = request.target_length or max(layer.reach for layer in layers.values())
    if length < had:
        yield f"the context becomes {length} tokens, shorter than the vendor's {had}; a target length of {had} keeps it"


def _lost_softmax_scale(layers: Planned) -> Iterator[str]:
    """Yields a note on DeepSeek's models, trained with a softmax scale that follows ``mscale_all_dim``."""
    lost = [
        layer.there.scaling
        for layer in layers.values()
        if layer.there.scaling.get("mscale_all_dim") and not getattr(layer.asked, "mscale_all_dim", None)
    ]
    if lost:
        weights = ",".join(f"{key}={lost[0][key]:g}" for key in ("mscale", "mscale_all_dim") if lost[0].get(key))
        yield (
            "replacing the scaling also drops the softmax scale that the model was trained with (mscale_all_dim); "
            f"keep it with yarn:...,{weights}, or compose with the scaling"
        )


def _other_fields(layers: Planned) -> Iterator[str]:
    """Yields fields of the vendor's scaling of the same kind that differ from the schedule's."""
    found = {}
    for layer in layers.values():
        theirs, label = layer.there.scaling, label_of(layer.asked)
        if theirs.get("rope_type") == label:
            for name in ("beta_fast", "beta_slow", "truncate", "low_freq_factor", "high_freq_factor"):
                ours = plain(getattr(layer.asked, name, None))
                if ours is not None and theirs.get(name, ours) != ours:
                    found[name] = (label, json.dumps(theirs[name]), json.dumps(ours))
    for name, (label, theirs, ours) in found.items():
        yield f"the vendor's {label} has {name}={theirs}, and this one {name}={ours}; keep theirs with {name}={theirs}"


def without_effect(layers: Planned, length: int) -> Iterator[str]:
    """Yields the layer types that a schedule with a factor leaves as they are.

    Raises:
        ScheduleError: it leaves all of them as they are, and scaling must not silently do nothing.
    """
    idle = {key: layer for key, layer in layers.items() if layer.stretch > 1 and layer.leaves_all(length)}
    texts = {key: _why_idle(layer) for key, layer in idle.items()}
    if idle and len(idle) == len(layers):
        raise ScheduleError(f"{next(iter(texts.values()))}; choose another schedule, such as linear or ntk")
    for key, text in texts.items():
        yield f"{key}: {text}"


def on_far_length(layers: Planned, length: int) -> Iterator[str]:
    """Yields a doubt about a context beyond any that was published: 512 times the trained one (arXiv:2402.13753)."""
    trained = min(layer.rope.original_length for layer in layers.values())
    if length > 512 * trained:
        yield f"{length:,} tokens are {length // trained:,} times the trained {trained:,}; make sure that this is meant"


def on_factor_one(layers: Planned, length: int) -> Iterator[str]:
    """Yields a note where nothing is stretched: then the patched model computes what the model computed before."""
    labels = [layer.label for layer in layers.values() if layer.stretches_by_one(length)]
    if labels and len(labels) == len(layers):
        yield (
            f"{listed(dict.fromkeys(labels))} changes nothing: every frequency, and the attention, stays as it is; "
            "give the factor that you want, such as 4"
        )


def _why_idle(layer: PlannedLayer) -> str:
    slowest = min((turns for turns in layer.rope.turns() if turns > 0), default=0.0)
    trained = f"the trained length of {layer.rope.original_length} tokens"
    why = (
        f"even the slowest pair makes {slowest:.3g} turns within {trained}"
        if slowest > 1
        else f"{trained} is too short for its ramp to reach any pair"
    )
    return f"{label_of(layer.schedule)} with factor {layer.stretch:g} leaves every frequency as it is: {why}"


def on_derived_length(configuration: Configuration, layers: Planned, max_length: int, length: int) -> Iterator[str]:
    """Yields a note where ``max_position_embeddings`` encodes an attention scale instead of a length."""
    if configuration.family.derives_attention_scale and max_length != length:
        rotary_dim = max(layer.rope.rotary_dim for layer in layers.values())
        yield (
            f"{configuration.model_type} derives its attention scale from max_position_embeddings, which therefore "
            f"becomes {max_length}; the intended context is {length}, which no engine enforces "
            f"(vLLM: --max-model-len {length}; its cos and sin for {max_length} positions take "
            f"{size(max_length * rotary_dim * 2)} at 16 bits)"
        )
