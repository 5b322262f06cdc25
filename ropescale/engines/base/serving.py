"""A checkpoint to be served, and the changes that its configuration needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ...configs.class_defaults import ALL_LAYERS, PARTIAL_NAMES, THETA_NAMES
from ...configs.configuration import Configuration
from ...planning.plan import Plan
from .commands import needs_remote_code
from .layers import Layers, layers_in, layers_of

V4_NAMES = frozenset({"rope_scaling", *THETA_NAMES, *PARTIAL_NAMES})
"""The keys of transformers 4 for the content of ``rope_parameters`` in transformers 5."""


@dataclass(frozen=True)
class Source:
    """The source of the weights to be served, and the options that ask for the schedule.

    Attributes:
        spec: the options of ropescale's commands that ask for this schedule; empty if unknown.
        folder: another folder or Hub id that the weights come from.
        revision: branch, tag or commit of a Hub id.
        scaled: the option of ropescale's commands that replaces the vendor's scaling or builds on it; empty if there
            is none, or if the vendor's configuration is served.
    """

    spec: tuple[str, ...] = ()
    folder: str | None = None
    revision: str | None = None
    scaled: tuple[str, ...] = ()


@dataclass(frozen=True)
class Serving:
    """A checkpoint to be served.

    Attributes:
        model: its folder or Hub id, as the command names it.
        stored: the configuration in the folder.
        wanted: the configuration to serve, in the keys of transformers 4 and 5.
        layers: every kind of layer that rotates, as wanted.
        length: the context to serve, in tokens.
        source: where the weights come from.
    """

    model: str
    stored: Configuration
    wanted: Configuration
    layers: tuple[Layers, ...]
    length: int
    source: Source = Source()

    @property
    def is_vendors(self) -> bool:
        """Whether the vendor's folder is served unchanged."""
        return self.is_written and self.source.folder is None

    @property
    def is_written(self) -> bool:
        """Whether the folder already holds the configuration to serve."""
        return self.wanted is self.stored

    @property
    def revision(self) -> list[str]:
        """The option for a revision, if one was given."""
        return [] if self.source.revision is None else ["--revision", self.source.revision]

    @property
    def trusting(self) -> list[str]:
        """The option of vLLM and SGLang that lets them run the checkpoint's own code."""
        return ["--trust-remote-code"] if needs_remote_code(self.wanted.raw) else []

    def changes(self) -> dict[str, object]:
        """Returns the keys of the language model's part that differ from the stored ones."""
        stored = self.stored.section
        return {key: value for key, value in self.wanted.section.items() if key not in stored or stored[key] != value}

    def spelled(self, own_keys: Callable[[Layers], Mapping[str, object]]) -> Serving:
        """Returns the same with an engine's own rope parameters for each kind of layer."""
        return replace(self, layers=tuple(replace(each, parameters=own_keys(each)) for each in self.layers))

    def snippet(self, changed: Mapping[str, object]) -> str:
        """Returns Python that loads the model with transformers, with changes to the language model's configuration."""
        revision = self.source.revision
        given = repr(self.model) if revision is None else f"{self.model!r}, revision={revision!r}"
        given += ", trust_remote_code=True" if self.trusting else ""
        names, passed = ("AutoConfig, ", ", config=config") if changed else ("", "")
        lines = [f"from transformers import {names}AutoModelForCausalLM", ""]
        if changed:
            lines += [f"config = AutoConfig.from_pretrained({given})", "text = config.get_text_config()"]
            lines += [f"text.{key} = {value!r}" for key, value in changed.items()]
        return "\n".join([*lines, f"model = AutoModelForCausalLM.from_pretrained({given}{passed})"])


def of_plan(model: str, stored: Configuration, plan: Plan, source: Source = Source()) -> Serving:
    """Returns the original weights under a schedule that no folder holds."""
    every = {layers.key: layers for layers in (*layers_in(plan.planned, plan.length), *layers_of(plan))}
    return Serving(model, stored, plan.planned, tuple(every.values()), plan.length, source)


def as_it_lies(model: str, stored: Configuration, length: int, source: Source = Source()) -> Serving:
    """Returns a folder as ropescale, or its vendor, wrote it."""
    return Serving(model, stored, stored, layers_in(stored, length), length, source)


def is_untouched(serving: Serving, layers: Layers) -> bool:
    """Whether these layers rotate without scaling, by the vendor's own configuration."""
    if layers.kind != "default":
        return False
    if serving.is_written:
        return "rope_parameters" not in serving.stored.section
    stored = {each.key: each.parameters for each in layers_in(serving.stored, serving.length)}
    return stored.get(layers.key) == layers.parameters


def needed_positions(serving: Serving, multiplied: tuple[str, ...] = ("linear",)) -> int:
    """Returns the ``max_position_embeddings`` with which an engine's tables of cos and sin cover every token.

    ``multiplied`` are the rope types whose table the engine makes ``factor`` times as long.
    """
    kinds = {layers.kind for layers in serving.layers}
    return serving.wanted.max_length if len(kinds) == 1 and kinds <= {*multiplied} else serving.length


def overrides(serving: Serving, positions: int) -> Mapping[str, object]:
    """Returns changes to the stored configuration, as an object that an engine merges into it.

    ``positions`` is the ``max_position_embeddings`` that the engine needs.
    """
    changed = v5_changes(serving, positions)
    return {"text_config": changed} if changed and serving.stored.is_multimodal else changed


def v5_changes(serving: Serving, positions: int) -> dict[str, object]:
    """Returns changes to the language model's part of the stored configuration.

    The rope parameters are complete, because setting them replaces the old ones.
    """
    changed = {key: value for key, value in serving.changes().items() if key not in V4_NAMES}
    written = layers_in(serving.wanted, serving.length)
    respelled = any(dict(mine.parameters) != dict(each.parameters) for mine, each in zip(serving.layers, written))
    if "rope_parameters" in changed or respelled:
        changed["rope_parameters"] = _parameters_of_all(serving)
    name = serving.wanted.text.name_of("max_position_embeddings")
    changed.pop(name, None)
    return changed if positions == serving.stored.max_length else {**changed, name: positions}


def _parameters_of_all(serving: Serving) -> dict[str, object]:
    """Returns ``rope_parameters`` as a whole: flat, or per layer type with those that do not rotate kept."""
    layers, written = serving.layers, serving.wanted.section.get("rope_parameters")
    if [each.key for each in layers] == [ALL_LAYERS]:
        return dict(layers[0].parameters)
    stated = written if isinstance(written, Mapping) else {}
    return {**stated, **{each.key: dict(each.parameters) for each in layers}}
