"""Expresses a schedule in transformers' own keys: rope parameters and ``max_position_embeddings``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..configs.configuration import Configuration, Scaling
from ..configs.families import Family
from ..errors import ScheduleError
from ..lengths import LONGEST
from ..rope import Rope
from ..schedules import Frequencies
from ..schedules.base import label_of, length_dependent
from ..schedules.table import divisors
from .layers import PlannedLayer

if TYPE_CHECKING:
    from ..configs.section import Parameters


def scaling_of(layers: Mapping[str, PlannedLayer], configuration: Configuration, length: int) -> Scaling:
    """Returns the form of schedules in a configuration; layer types that it cannot express become plain.

    Raises:
        ScheduleError: the model's class supports only theta, or derives its attention scale from a length that
            does not exist.
    """
    family, parameters = configuration.family, {}
    for key, layer in layers.items():
        form = parameters_of(layer, length, family)
        if form is None and family.takes_only_theta:  # in memory as well as from a file
            raise ScheduleError(
                f"{configuration.model_type} takes no scaling but another rope_theta, and {label_of(layer.schedule)} "
                "is more than that; use ntk or abf"
            )
        parameters[key] = form or {"rope_type": "default"}
    original = max(layer.rope.original_length for layer in layers.values())
    return Scaling(parameters, _max_length(layers, parameters, length, original, family), original)


def parameters_of(layer: PlannedLayer, length: int, family: Family) -> Parameters | None:
    """Returns v5 rope parameters: the native form, or one factor per pair; None if neither can express it."""
    native, rope = getattr(layer.schedule, "rope_parameters", None), layer.rope
    form = native(rope) if callable(native) else None
    if isinstance(form, Mapping) and _is_usable(str(form["rope_type"]), rope, family):
        return _with_geometry(dict(form), rope)
    if length_dependent(layer.schedule) or family.takes_only_theta:
        return None
    return per_pair(layer.table(length), rope, max(1.0, length / rope.original_length))


def _is_usable(kind: str, rope: Rope, family: Family) -> bool:
    return family.takes(kind) and not (kind == "yarn" and rope.rotary_dim % 2)  # transformers cannot build half a pair


def _with_geometry(form: Parameters, rope: Rope) -> Parameters:
    """Keeps a proportional model proportional under a ``default`` that a user's own schedule asks for."""
    if form["rope_type"] == "default" and rope.rotated_pairs is not None:
        return {**form, "rope_type": "proportional"}
    return form


def per_pair(table: Frequencies, rope: Rope, factor: float) -> Parameters:
    """Returns any fixed table in the most portable form: longrope with equal lists.

    Factor i is ``theta^(-2i/d) / inv_freq_i``. ``short_mscale`` and ``long_mscale`` repeat the attention factor
    for code that reads it there: vLLM, SGLang, and all code for phimoe; mlx-lm's other models do not.
    """
    factors = divisors(table.inv_freq, rope)
    scale = float(table.attention_scale)
    whole_head = {"partial_rotary_factor": 1.0} if rope.rotated_pairs is not None else {}
    # DeepSeek's classes scale the softmax by these for any rope type; a composed schedule keeps that.
    softmax = rope.scaling if rope.table is not None and rope.scaling.get("mscale_all_dim") else {}
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": list(factors),
        "factor": factor,
        "original_max_position_embeddings": rope.original_length,
        "attention_factor": scale,
        "short_mscale": scale,
        "long_mscale": scale,
        **whole_head,
        **{key: softmax[key] for key in ("factor", "mscale", "mscale_all_dim") if key in softmax},
    }


def why_unsavable(layers: Mapping[str, PlannedLayer], length: int, configuration: Configuration) -> str | None:
    """Returns why no configuration file can express these schedules, or None."""
    family = configuration.family
    for layer in layers.values():
        label, scale = label_of(layer.schedule), layer.table(length).attention_scale
        if length_dependent(layer.schedule) and parameters_of(layer, length, family) is None:
            return (
                f"{label} changes its frequencies with the length, which no configuration file can say; "
                "freeze it at a length"
            )
        if family.derives_attention_scale and scale < 1:
            return (
                f"{configuration.model_type} has no key for an attention scale below 1, and {label} has {scale:g}; "
                "give attention_factor=1 or more"
            )
    return None


def _max_length(
    layers: Mapping[str, PlannedLayer], parameters: Mapping[str, Parameters], length: int, original: int, family: Family
) -> int:
    """Returns the new ``max_position_embeddings``."""
    kinds = [form["rope_type"] for form in parameters.values()]
    if family.derives_attention_scale and kinds == ["longrope"]:
        return _derived_length(next(iter(layers.values())).table(length).attention_scale, original)
    stays = "dynamic" in kinds or all(map(_keeps_max_length, parameters.values()))
    return original if stays else max(length, original)


def _keeps_max_length(form: Parameters) -> bool:
    """Whether engines multiply the maximum by the factor, or take it for the trained length."""
    kind = form["rope_type"]
    return kind in ("linear", "dynamic") or (kind == "proportional" and form.get("factor", 1) != 1)


_PRECISION = 1e-5
"""The tolerance of a derived attention scale; at a trained length of 4,096 the error is below 1e-6."""


def _derived_length(attention_scale: float, original: int) -> int:
    """Returns the maximum from which Phi-3's own code derives this attention scale: ``L^(scale^2)``.

    Its v4 class accepts no attention factor and computes ``sqrt(1 + ln(max / L) / ln L)``.

    Raises:
        ScheduleError: the maximum would be longer than any context, or no whole number gives this scale.
    """
    scale = max(attention_scale, 1.0)
    log_length = scale**2 * math.log(original)
    if log_length > math.log(LONGEST):
        raise ScheduleError(
            f"an attention scale of {attention_scale:g} needs a max_position_embeddings of e^{log_length:.0f} in this "
            "model, which derives the one from the other; give a smaller attention_factor"
        )
    maximum = round(original**scale**2)
    derived = math.sqrt(math.log(maximum) / math.log(original))
    if not math.isclose(derived, scale, rel_tol=_PRECISION):
        raise ScheduleError(
            f"this model derives its attention scale from the whole number max_position_embeddings, and at a trained "
            f"length of {original} none gives {attention_scale:.6g} (the nearest, {maximum}, gives {derived:.6g}); "
            f"give attention_factor={derived!r}"
        )
    return maximum
