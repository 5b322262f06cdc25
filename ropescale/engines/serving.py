"""A checkpoint to be served, and what has to be changed in its configuration for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..configs.class_defaults import ALL_LAYERS, PARTIAL_NAMES, THETA_NAMES
from ..configs.configuration import Configuration
from ..planning.plan import Plan
from .commands import needs_remote_code, snippet
from .layers import Layers, layers_in, layers_of

V4_NAMES = frozenset({"rope_scaling", *THETA_NAMES, *PARTIAL_NAMES})
"""Keys in which transformers 4 keeps what ``rope_parameters`` holds in transformers 5."""


@dataclass(frozen=True)
class Source:
    """Where the weights to be served come from, and how the schedule was asked for.

    Attributes:
        spec: the options of ropescale's commands that ask for this schedule; empty where no schedule is known.
        folder: another folder or Hub id that the weights come from.
        revision: branch, tag or commit of a Hub id.
        scaled: the option of ropescale's commands that says what becomes of the vendor's scaling of the weights; empty
            where there is none, or where the vendor's configuration is what is served.
    """

    spec: tuple[str, ...] = ()
    folder: str | None = None
    revision: str | None = None
    scaled: tuple[str, ...] = ()


@dataclass(frozen=True)
class Serving:
    """A checkpoint to be served.

    Attributes:
        model: its folder or Hub id, as the command will name it.
        stored: the configuration that lies there.
        wanted: the configuration that is wanted, in both of transformers' dialects.
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
        """Whether the folder is served as its vendor left it."""
        return self.is_written and self.source.folder is None

    @property
    def is_written(self) -> bool:
        """Whether the folder holds what is wanted."""
        return self.wanted is self.stored

    @property
    def revision(self) -> list[str]:
        """The option for a revision, where one was asked for."""
        return [] if self.source.revision is None else ["--revision", self.source.revision]

    @property
    def trusting(self) -> list[str]:
        """The option of vLLM and SGLang that lets them run the checkpoint's own code."""
        return ["--trust-remote-code"] if needs_remote_code(self.wanted.raw) else []

    def changes(self) -> dict[str, object]:
        """Returns what is wanted otherwise than stored, in the language model's part."""
        stored = self.stored.section
        return {key: value for key, value in self.wanted.section.items() if key not in stored or stored[key] != value}

    def spelled(self, parameters: Mapping[str, Mapping[str, object]]) -> Serving:
        """Returns the same with other rope parameters per kind of layer: an engine's own way of saying the same."""
        layers = tuple(replace(each, parameters=parameters.get(each.key, each.parameters)) for each in self.layers)
        return replace(self, layers=layers)

    def snippet(self, changed: Mapping[str, object]) -> str:
        """Returns Python that loads it with transformers."""
        return snippet(self.model, self.source.revision, self.wanted.raw, changed)


def of_plan(model: str, stored: Configuration, plan: Plan, source: Source = Source()) -> Serving:
    """Returns the original weights under a schedule that is not written anywhere."""
    every = {layers.key: layers for layers in (*layers_in(plan.planned, plan.length), *layers_of(plan))}
    return Serving(model, stored, plan.planned, tuple(every.values()), plan.length, source)


def as_it_lies(model: str, stored: Configuration, length: int, source: Source = Source()) -> Serving:
    """Returns a folder as ropescale, or its vendor, wrote it."""
    return Serving(model, stored, stored, layers_in(stored, length), length, source)


def is_untouched(serving: Serving, layers: Layers) -> bool:
    """Whether these layers rotate as their vendor made them, without scaling, in the vendor's own configuration."""
    if layers.kind != "default":
        return False
    if serving.is_written:
        return "rope_parameters" not in serving.stored.section
    stored = {each.key: each.parameters for each in layers_in(serving.stored, serving.length)}
    return stored.get(layers.key) == layers.parameters


def needed_positions(serving: Serving, multiplied: tuple[str, ...] = ("linear",)) -> int:
    """Returns the ``max_position_embeddings`` under which an engine tabulates cos and sin for every token.

    ``multiplied`` are the rope types whose table the engine makes ``factor`` times as long by itself.
    """
    kinds = {layers.kind for layers in serving.layers}
    return serving.wanted.max_length if len(kinds) == 1 and kinds <= {*multiplied} else serving.length


def overrides(serving: Serving, positions: int) -> Mapping[str, object]:
    """Returns what to change in the stored configuration, as an object that an engine merges into it.

    ``positions`` is the ``max_position_embeddings`` that the engine needs.
    """
    changed = v5_changes(serving, positions)
    return {"text_config": changed} if changed and serving.stored.is_multimodal else changed


def v5_changes(serving: Serving, positions: int) -> dict[str, object]:
    """Returns the same for the language model's part alone.

    The rope parameters are given whole, theta and all, because whoever sets them replaces what was there.
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
