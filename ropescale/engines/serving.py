"""What has to be served, and the pieces that the engines' commands are made of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..configs.class_defaults import PARTIAL_NAMES, THETA_NAMES, load
from ..configs.reading import ALL_LAYERS, read_rope, text_section
from ..escaping import fenced, shell_word, visible
from ..planning.plan import Plan
from ..rope import Rope
from .facts import Difference, Engine, Layers, layers_of

V4_NAMES = frozenset({"rope_scaling", *THETA_NAMES, *PARTIAL_NAMES})
"""Keys in which transformers 4 keeps what ``rope_parameters`` holds in transformers 5."""


@dataclass(frozen=True)
class Command:
    """Something to paste.

    Attributes:
        language: ``sh``, ``python`` or ``json``.
        text: what to paste; it ends without a newline.
        note: what it takes for granted; empty where that is nothing.
    """

    language: str
    text: str
    note: str = ""

    def fenced(self) -> str:
        """As a block of Markdown."""
        note = f"# {visible(self.note)}\n" if self.note else ""
        return fenced(self.language, note + self.text)


@dataclass(frozen=True)
class Serving:
    """A checkpoint to be served.

    Attributes:
        model: its folder or Hub id, as the command will name it.
        stored: the configuration that lies there.
        config: the configuration that is wanted, in both of transformers' dialects.
        layers: every kind of layer that rotates, under ``config``.
        length: the context to serve, in tokens.
        spec: the options of ropescale's commands that ask for this schedule; empty where no schedule is known.
        source: where the weights come from, where that is another folder or Hub id.
        revision: branch, tag or commit of a Hub id.
        scaled: the option of ropescale's commands that says what becomes of the scaling that the weights' makers put
            in; empty where they put in none, or where it is they whose configuration is served.
    """

    model: str
    stored: Mapping[str, Any]
    config: Mapping[str, Any]
    layers: tuple[Layers, ...]
    length: int
    spec: tuple[str, ...] = ()
    source: str | None = None
    revision: str | None = None
    scaled: tuple[str, ...] = ()

    @property
    def is_makers(self) -> bool:
        """Whether the folder is served as it lies and ropescale has not been there."""
        return self.is_written and self.source is None

    @property
    def section(self) -> Mapping[str, Any]:
        """The language model's part of the configuration."""
        return text_section(self.config)

    @property
    def is_written(self) -> bool:
        """Whether the folder holds what is wanted."""
        return self.config is self.stored

    def changes(self) -> dict[str, Any]:
        """What ``config`` has otherwise than ``stored``, in the language model's part."""
        stored = text_section(self.stored)
        return {key: value for key, value in self.section.items() if key not in stored or stored[key] != value}

    def spelled(self, parameters: Mapping[str, Mapping[str, Any]]) -> Serving:
        """The same with other rope parameters per kind of layer: an engine's own way of saying the same."""
        layers = tuple(replace(each, parameters=parameters.get(each.key, each.parameters)) for each in self.layers)
        return replace(self, layers=layers)


class Server(Engine, Protocol):
    """An engine that ``ropescale export`` has commands for."""

    def spelled(self, serving: Serving, /) -> Serving:
        """The same schedule in the engine's own keys, where it has some."""
        ...

    def serve(self, serving: Serving, /) -> list[Command]:
        """What to paste; empty where the engine cannot be told."""
        ...

    def served(self, serving: Serving, layers: Layers, /) -> Iterator[Difference]:
        """What remains otherwise under those commands, for one kind of the layers that were spelled."""
        ...

    def way_out(self, layers: Layers, /) -> str:
        """What to do where it cannot be served."""
        ...


def of_plan(model: str, stored: Mapping[str, Any], plan: Plan, **others: Any) -> Serving:
    """The original weights under a schedule that is not written anywhere; ``others`` are fields of :class:`Serving`."""
    changed = {layers.key: layers for layers in layers_of(plan)}
    every = {layers.key: layers for layers in _layers_in(plan.config, plan.length)} | changed
    return Serving(model, stored, plan.config, tuple(every.values()), plan.length, **others)


def as_it_lies(model: str, stored: Mapping[str, Any], length: int, **others: Any) -> Serving:
    """A folder as somebody, ropescale or its makers, wrote it; ``others`` are fields of :class:`Serving`."""
    return Serving(model, stored, stored, _layers_in(stored, length), length, **others)


def _layers_in(config: Mapping[str, Any], length: int) -> tuple[Layers, ...]:
    section = text_section(config)
    ropes = read_rope(config).items()
    return tuple(Layers(key, _filled(rope), section, rope, length, config) for key, rope in ropes)


def _filled(rope: Rope) -> dict[str, Any]:
    """Rope parameters without those that say nothing, and with the factor that transformers gives yarn without one."""
    stated = {name: value for name, value in rope.scaling.items() if value is not None}
    if stated.get("rope_type") == "yarn":
        stated.setdefault("factor", max(rope.max_length / rope.original_length, 1.0))
    return stated


def is_untouched(serving: Serving, layers: Layers) -> bool:
    """Whether these layers rotate as their makers made them, with no scaling, in the makers' own configuration."""
    if layers.kind != "default":
        return False
    if serving.is_written:
        return "rope_parameters" not in text_section(serving.stored)
    there = {each.key: each.parameters for each in _layers_in(serving.stored, serving.length)}
    return there.get(layers.key) == layers.parameters


# ---------------------------------------------------------------------------------------------------------
# Overriding a configuration


def needed_positions(serving: Serving, multiplied: tuple[str, ...] = ("linear",)) -> int:
    """The ``max_position_embeddings`` under which an engine that tabulates cos and sin has a row for every token.

    ``multiplied`` are the rope types whose table the engine makes ``factor`` times as long by itself.
    """
    kinds = {layers.kind for layers in serving.layers}
    return stated_positions(serving) if len(kinds) == 1 and kinds <= {*multiplied} else serving.length


def stated_positions(serving: Serving) -> int:
    """The ``max_position_embeddings`` of the configuration that is wanted."""
    return max(layers.rope.max_length for layers in _layers_in(serving.config, serving.length))


def overrides(serving: Serving, positions: int) -> dict[str, Any]:
    """What to change in the configuration that lies there, as an object that an engine merges into it.

    ``positions`` is the ``max_position_embeddings`` that the engine needs.
    """
    changed = v5_changes(serving, positions)
    return {"text_config": changed} if changed and text_section(serving.stored) is not serving.stored else changed


def v5_changes(serving: Serving, positions: int) -> dict[str, Any]:
    """The same for the language model's part alone.

    The rope parameters are given whole, theta and all, because whoever sets them replaces what was there.
    """
    changed = {key: value for key, value in serving.changes().items() if key not in V4_NAMES}
    if "rope_parameters" in changed or any(_respelled(serving)):
        changed["rope_parameters"] = parameters_of_all(serving.layers, serving.section.get("rope_parameters"))
    name = name_of(serving.section, "max_position_embeddings")
    changed.pop(name, None)
    there = stated_positions(replace(serving, config=serving.stored))
    return changed | ({} if positions == there else {name: positions})


def _respelled(serving: Serving) -> Iterator[bool]:
    for mine, there in zip(serving.layers, _layers_in(serving.config, serving.length)):
        yield dict(mine.parameters) != dict(there.parameters)


def parameters_of_all(layers: tuple[Layers, ...], written: Mapping[str, Any] | None) -> dict[str, Any]:
    """``rope_parameters`` as a whole: flat, or per layer type with those that do not rotate kept."""
    if [each.key for each in layers] == [ALL_LAYERS]:
        return dict(layers[0].parameters)
    return {**(written or {}), **{each.key: dict(each.parameters) for each in layers}}


def name_of(section: Mapping[str, Any], field: str) -> str:
    """What a model's class calls a field of its configuration."""
    entry = load().get(str(section.get("model_type"))) or {}
    return entry.get("names", {}).get(field, field)


def revision(serving: Serving) -> list[str]:
    """The option for a revision, where one was asked for."""
    return [] if serving.revision is None else ["--revision", serving.revision]


def shell(*words: str) -> str:
    """A command line; a word that needs quotes gets them, and in a long one each option begins a line."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(shell_word(word))
    parts = [" ".join(line) for line in lines]
    return " ".join(parts) if len(" ".join(parts)) <= 110 else " \\\n  ".join(parts)


def compact(value: Any) -> str:
    """JSON on one line."""
    return json.dumps(value)


def needs_remote_code(config: Mapping[str, Any]) -> bool:
    """Whether transformers has to run the checkpoint's own code, having none for this type of model."""
    return bool(config.get("auto_map")) and str(config.get("model_type")) not in load()


def trusting(serving: Serving) -> list[str]:
    """The option of vLLM and SGLang that lets them run it."""
    return ["--trust-remote-code"] if needs_remote_code(serving.config) else []


def snippet(serving: Serving, changed: Mapping[str, Any]) -> str:
    """Python that loads the model with transformers, after these changes to the language model's configuration."""
    given = "" if serving.revision is None else f", revision={serving.revision!r}"
    given += ", trust_remote_code=True" if needs_remote_code(serving.config) else ""
    model = f"{serving.model!r}{given}"
    if not changed:
        load_it = [f"model = AutoModelForCausalLM.from_pretrained({model})"]
        return "\n".join(["from transformers import AutoModelForCausalLM", "", *load_it])
    return "\n".join(
        [
            "from transformers import AutoConfig, AutoModelForCausalLM",
            "",
            f"config = AutoConfig.from_pretrained({model})",
            "text = config.get_text_config()",
            *(f"text.{key} = {value!r}" for key, value in changed.items()),
            f"model = AutoModelForCausalLM.from_pretrained({model}, config=config)",
        ]
    )
