"""One kind of layer, as engines are asked to compute it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...configs import class_defaults
from ...configs.class_defaults import ALL_LAYERS
from ...configs.configuration import Configuration
from ...planning.plan import Plan
from ...rope import Rope
from ...schedules.as_is import stock_table


@dataclass(frozen=True)
class Layers:
    """One kind of layer under a schedule, as an engine reads it from the configuration.

    Attributes:
        key: the layer type, ``"all"`` for a model that keeps one table.
        parameters: v5 rope parameters.
        configuration: the whole configuration.
        rope: the geometry.
        length: the context the model is meant for, in tokens.
    """

    key: str
    parameters: Mapping[str, Any]
    configuration: Configuration
    rope: Rope
    length: int

    @property
    def kind(self) -> str:
        """The rope type."""
        return str(self.parameters["rope_type"])

    @property
    def section(self) -> Mapping[str, object]:
        """The language model's part of the configuration."""
        return self.configuration.section

    @property
    def model_type(self) -> str:
        """The language model's type."""
        return self.configuration.model_type

    @property
    def whole_type(self) -> str:
        """The type of the whole model: a multimodal one's, or the language model's."""
        return str(self.configuration.raw.get("model_type"))

    @property
    def is_mla(self) -> bool:
        """Whether attention is latent (DeepSeek's), where a separate slice rotates."""
        return bool(self.configuration.default_of("qk_rope_head_dim"))

    @property
    def is_partial(self) -> bool:
        """Whether only part of a head rotates."""
        return self.rope.rotary_dim != self.rope.head_dim

    @property
    def is_truncated(self) -> bool:
        """Whether yarn's ramp is rounded to whole pairs."""
        return bool(self.parameters.get("truncate", True))

    @property
    def is_proportional_by_default(self) -> bool:
        """Whether the model's class has proportional RoPE by default."""
        default = (class_defaults.load().get(self.model_type) or {}).get("rope_parameters") or {}
        kinds = default.values() if class_defaults.is_nested(default) else [default]
        return any(isinstance(kind, Mapping) and kind.get("rope_type") == "proportional" for kind in kinds)

    @property
    def changes_with_length(self) -> bool:
        """Whether stock transformers computes other frequencies past the trained length."""
        lists = [list(self.parameters.get(key) or ()) for key in ("short_factor", "long_factor")]
        return self.kind == "dynamic" or (self.kind == "longrope" and lists[0] != lists[1])

    @property
    def attention_factor(self) -> float:
        """The multiplier of cos and sin that stock transformers computes from these parameters."""
        rope = replace(self.configuration.ropes[self.key], scaling=self.parameters)
        return stock_table(rope, self.length).attention_scale


def layers_of(plan: Plan) -> list[Layers]:
    """Returns each kind of layer that a plan changes, as it saves it."""
    written = plan.planned
    return [
        Layers(key, parameters_of(written, key), written, layer.rope, plan.length) for key, layer in plan.layers.items()
    ]


def layers_in(configuration: Configuration, length: int) -> tuple[Layers, ...]:
    """Returns every kind of layer that rotates under a configuration."""
    ropes = configuration.ropes.items()
    return tuple(Layers(key, _filled(rope), configuration, rope, length) for key, rope in ropes)


def parameters_of(configuration: Configuration, key: str) -> Mapping[str, Any]:
    """Returns the rope parameters of one kind of layer in a configuration that ropescale wrote."""
    written: Any = configuration.section["rope_parameters"]
    return written if key == ALL_LAYERS else written[key]


def _filled(rope: Rope) -> dict[str, object]:
    """Returns stated rope parameters, with the factor that transformers computes for yarn without one."""
    stated = {name: value for name, value in rope.scaling.items() if value is not None}
    if stated.get("rope_type") == "yarn":
        stated.setdefault("factor", max(rope.max_length / rope.original_length, 1.0))
    return stated
