"""The fields of a vendor's scaling, which a schedule that replaces the scaling keeps if it has them."""

import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..errors import ScheduleError
from ..files import Data, present
from ..rope import Rope
from ..schedules import compute
from ..schedules.as_is import from_rope_parameters
from ..schedules.specs import Spec
from .layers import PlannedLayers, innermost

_FACTOR, _WEIGHTS = "attention_factor", ("mscale", "mscale_all_dim")
_FIELDS = (_FACTOR, "beta_fast", "beta_slow", "truncate", *_WEIGHTS, "low_freq_factor", "high_freq_factor")


def kept_fields(spec: Spec, rope: Rope, named: Collection[str]) -> Data:
    """Returns the vendor's fields that a schedule keeps: those that it has and that the user did not name.

    An attention factor that follows from the vendor's factor is not kept, because it follows from the new factor.

    Args:
        spec: the schedule that replaces the vendor's scaling.
        rope: the geometry, with the vendor's scaling.
        named: the fields that the user named beside the spec.
    """
    fields = spec.known
    open_fields = {name for name in fields if isinstance(spec.make, type) or fields[name].default is None}
    given = {*named, *spec.given}
    fixed = {name for name in _FIELDS if name in given or name not in open_fields}
    if _derives_attention(rope) or given & {*_WEIGHTS}:
        fixed.add(_FACTOR)
    kept = {}
    for name, value in _fields_of(rope).items():
        if name in fixed:
            continue
        if isinstance(fields[name].default, bool) or not isinstance(value, bool):  # giraffe's truncate is a length
            kept[name] = value
    return kept


def remarks(layers: PlannedLayers, chosen: Mapping[str, Spec], named: Collection[str], length: int) -> Iterator[str]:
    """Yields a sentence on the vendor's fields that the schedules keep, and on those that they change.

    Args:
        layers: the planned layers.
        chosen: the spec of each layer type, as the user gave it.
        named: the fields that the user named beside the spec.
        length: the new context in tokens.
    """
    kept = {}
    lost = {}
    kinds = {}
    for key, layer in layers.items():
        ours = innermost(layer.requested)
        kinds[layer.current.kind] = None
        for name, value in _fields_of(layer.current).items():
            scale = layer.table(length).attention_scale
            now = scale if name == _FACTOR else getattr(ours, name, None)
            text = f"{name}={json.dumps(value)}"
            if name in kept_fields(chosen[key], layer.current, named):
                kept[text] = None
            elif now != value and name not in named and name not in chosen[key].given:
                lost[text + (f" (now {scale:.6g})" if name == _FACTOR else "")] = None
    vendors = f"from the vendor's {' and '.join(kinds)}"
    parts = [f"kept {vendors}: {', '.join(kept)}; give a field to change it"] if kept else []
    parts += [f"not kept {vendors}: {', '.join(lost)}"] if lost else []
    if _WEIGHTS[1] in " ".join(lost):
        parts.append(f"the softmax scale of {_WEIGHTS[1]} in MLA goes with it; yarn keeps both, and so does composing")
    if parts:
        yield "; ".join(parts)


def _fields_of(rope: Rope) -> Data:
    """Returns the fields that differ from the defaults of the vendor's rope type, or all fields of an unknown type."""
    try:
        stated = Spec.of(from_rope_parameters(rope)[0]).fields
    except ScheduleError:
        stated = present(rope.scaling)
    return {name: stated[name] for name in _FIELDS if name in stated}


def _derives_attention(rope: Rope) -> bool:
    """Whether the vendor's attention factor is the one that its rope type computes from its factor."""
    try:
        schedule, own = from_rope_parameters(rope)
    except ScheduleError:
        return False
    if getattr(schedule, _FACTOR, None) is None:
        return False
    derived: Any = replace(schedule, attention_factor=None)  # type: ignore[type-var, call-arg]
    return math.isclose(*(compute(each, own).attention_scale for each in (schedule, derived)), rel_tol=1e-6)
