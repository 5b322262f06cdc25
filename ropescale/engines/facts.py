"""What is known of an engine, and how: the vocabulary that the modules beside this one share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ..configs.class_defaults import is_nested, load
from ..configs.reading import ALL_LAYERS, default_of, text_section
from ..planning.plan import Plan
from ..rope import Rope

Status = Literal["honoured", "recomputed", "dropped", "unsupported"]
"""Computed as asked; replaced by a number of the engine's own; ignored; the engine stops or cannot be told."""

How = Literal["run", "source", "docs"]
"""A test runs that engine's code; its code was read; its documentation says so."""


@dataclass(frozen=True)
class Layers:
    """What is asked for one kind of layer, as an engine reads it from the configuration.

    Attributes:
        key: the layer type, ``"all"`` for a model that keeps one table.
        parameters: v5 rope parameters.
        section: the language model's configuration.
        rope: the geometry.
        length: the context the model is meant for, in tokens.
        config: the whole configuration, of which ``section`` is a part or all.
    """

    key: str
    parameters: Mapping[str, Any]
    section: Mapping[str, Any]
    rope: Rope
    length: int
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return str(self.parameters["rope_type"])

    @property
    def model_type(self) -> str:
        return str(self.section.get("model_type"))

    @property
    def is_mla(self) -> bool:
        """Whether attention is latent (DeepSeek's), where a slice of its own rotates."""
        return bool(default_of(self.section, "qk_rope_head_dim"))

    @property
    def is_partial(self) -> bool:
        return self.rope.rotary_dim != self.rope.head_dim

    @property
    def was_made_proportional(self) -> bool:
        """Whether models of this type have proportional RoPE from their makers."""
        default = (load().get(self.model_type) or {}).get("rope_parameters") or {}
        kinds = default.values() if is_nested(default) else [default]
        return any(isinstance(kind, Mapping) and kind.get("rope_type") == "proportional" for kind in kinds)

    @property
    def changes_with_length(self) -> bool:
        """Whether stock transformers computes other frequencies past the trained length."""
        lists = [list(self.parameters.get(key) or ()) for key in ("short_factor", "long_factor")]
        return self.kind == "dynamic" or (self.kind == "longrope" and lists[0] != lists[1])


@dataclass(frozen=True)
class Difference:
    """One thing that an engine does otherwise than asked, or cannot do.

    Attributes:
        field: of the schedule, as in :func:`ropescale.engines.parity.fields`.
        status: what becomes of it; ``honoured`` where only a condition has to be told.
        computes: what the engine computes instead.
        warning: the sentence for whoever patches, without its subject and with ``{s}`` or ``{ies}`` where the verb's
            third person ends; empty where there is nothing to warn about.
        who: the subject of that sentence, where it is not the engine as such.
        how: how it is known, where that is not how the engine's other behaviour is.
        version: what it was checked against, where that is not the engine's other version.
    """

    field: str
    status: Status
    computes: str
    warning: str = ""
    who: str = ""
    how: How | None = None
    version: str = ""


class Engine(Protocol):
    """What the module of an engine has;"""

    @property
    def NAME(self) -> str:
        """As people call it."""
        ...

    @property
    def VERSION(self) -> str:
        """What its behaviour was checked against."""
        ...

    def differences(self, layers: Layers, /) -> Iterator[Difference]:
        """What the engine does otherwise for this kind of layer."""
        ...

    def how(self, layers: Layers, field: str, /) -> How:
        """How it is known that the engine honours a field for which it has no difference."""
        ...


def layers_of(plan: Plan) -> list[Layers]:
    """What a plan saves, for each kind of layer that it changes."""
    section = text_section(plan.config)
    return [
        Layers(key, parameters_of(section, key), section, plan.ropes[key], plan.length, plan.config)
        for key in plan.schedules
    ]


def parameters_of(section: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The rope parameters of one kind of layer in a configuration that ropescale wrote."""
    return section["rope_parameters"] if key == ALL_LAYERS else section["rope_parameters"][key]


_FORMS = {False: {"s": "s", "ies": "ies", "self": " itself"}, True: {"s": "", "ies": "y", "self": " themselves"}}
"""How a verb ends, and what refers back, for one engine and for several."""

_FORM = re.compile(r"\{(s|ies|self)\}")
"""No other braces are read: those of a configuration's own words stay."""


def sentence(engines: list[str], warning: str) -> str:
    """``vLLM and SGLang: ignore ...``: a difference's warning with the engines that it holds for."""
    joined = " and ".join([", ".join(engines[:-1]), engines[-1]] if engines[1:] else engines)
    forms = _FORMS[len(engines) > 1]
    return f"{joined}: {_FORM.sub(lambda found: forms[found[1]], warning)}"
