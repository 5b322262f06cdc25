"""The classes that describe an engine: layers, differences from the request, commands, and checkpoints to serve."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ..configs import class_defaults
from ..configs.class_defaults import ALL_LAYERS, PARTIAL_NAMES, THETA_NAMES
from ..configs.configuration import Configuration
from ..configs.finding import ORIGINAL, placed
from ..files import Data, Json, present
from ..output.formatting import fenced, shell_word, value_text, visible
from ..planning.plan import Plan
from ..rope import Rope
from ..schedules.as_is import stock_table

# ---------------------------------------------------------------------------------------------------------
# Layers


@dataclass(frozen=True)
class Layers:
    """One kind of layer under a schedule, as an engine reads it from the configuration.

    Attributes:
        key: the layer type, or ``"all"`` for a model with one table for all layers.
        parameters: the rope parameters, under the keys of transformers 5.
        configuration: the whole configuration.
        rope: the rotary geometry.
        length: the target context in tokens.
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
    def factor(self) -> float:
        """The scaling factor, or 1 if the parameters state none."""
        return self.parameters.get("factor", 1.0)

    @property
    def section(self) -> Json:
        """The language model's part of the configuration."""
        return self.configuration.section

    @property
    def model_type(self) -> str:
        """The language model's type."""
        return self.configuration.model_type

    @property
    def whole_type(self) -> str:
        """The type of the whole model, which differs from :attr:`model_type` for a multimodal model."""
        return self.configuration.whole_type

    @property
    def dialect(self) -> str:
        """Whose keys give the rope parameters: transformers 4's (``v4``), 5's (``v5``), ``both`` or none (``bare``)."""
        v4 = bool(V4_NAMES & self.section.keys())
        if self.section.get("rope_parameters"):
            return "both" if v4 else "v5"
        return "v4" if v4 else "bare"

    @property
    def is_mla(self) -> bool:
        """Whether the model has latent attention (MLA, as in DeepSeek), which rotates a separate slice of the heads."""
        return bool(self.configuration.default_of("qk_rope_head_dim"))

    @property
    def is_own_width(self) -> bool:
        """Whether heads are of another width than the model's divided by their number, and than the slice of MLA."""
        width, heads = map(self.configuration.default_of, ("hidden_size", "num_attention_heads"))
        if not (isinstance(width, int) and isinstance(heads, int) and heads and self.section.get("head_dim")):
            return False
        return self.rope.head_dim not in (width // heads, self.section.get("qk_rope_head_dim"))

    @property
    def lacks_original(self) -> bool:
        """Whether the parameters lack the original length, for which some engines have a default of their own."""
        return self.kind in ("yarn", "llama3") and ORIGINAL not in self.parameters

    @property
    def lacks_factor(self) -> bool:
        """Whether the factor of yarn is null in the configuration; transformers 5 derives it from the lengths."""
        return self.kind == "yarn" and self.configuration.ropes[self.key].scaling.get("factor") is None

    @property
    def is_truncated(self) -> bool:
        """Whether yarn's ramp is rounded to whole pairs."""
        return bool(self.parameters.get("truncate", True))

    @property
    def is_proportional_by_default(self) -> bool:
        """Whether the model's class has proportional RoPE by default."""
        default = self.configuration.text.default_parameters
        kinds = default.values() if class_defaults.is_nested(default) else [default]
        return any(isinstance(kind, Mapping) and kind.get("rope_type") == "proportional" for kind in kinds)

    @property
    def changes_with_length(self) -> bool:
        """Whether stock transformers computes different frequencies for texts beyond the trained length."""
        return replace(self.rope, scaling=self.parameters).varies

    @property
    def attention_factor(self) -> float:
        """The multiplier of cos and sin that stock transformers computes from these parameters."""
        rope = replace(self.configuration.ropes[self.key], scaling=self.parameters)
        return stock_table(rope, self.length).attention_scale


def layers_of(plan: Plan) -> list[Layers]:
    """Returns every kind of layer that a plan changes, with the parameters that the plan writes."""
    written = plan.planned
    found = []
    for key, layer in plan.layers.items():
        found.append(Layers(key, parameters_of(written, key), written, layer.rope, plan.length))
    return found


def layers_in(configuration: Configuration, length: int) -> tuple[Layers, ...]:
    """Returns every kind of layer that rotates under a configuration."""
    stated = {key: present(rope.scaling) for key, rope in configuration.ropes.items()}
    for key, rope in configuration.ropes.items():
        if rope.kind == "yarn":  # transformers derives a missing factor from the lengths
            stated[key].setdefault("factor", max(rope.max_length / rope.original_length, 1.0))
    return tuple(Layers(key, stated[key], configuration, rope, length) for key, rope in configuration.ropes.items())


def parameters_of(configuration: Configuration, key: str) -> Mapping[str, Any]:
    """Returns the rope parameters of one kind of layer in a configuration that ropescale wrote."""
    written: Any = configuration.section["rope_parameters"]
    return written if key == ALL_LAYERS else written[key]


# ---------------------------------------------------------------------------------------------------------
# Differences

Status = Literal["honoured", "recomputed", "dropped", "unsupported", "not known"]
"""How an engine treats a field: computed as requested, replaced by the engine's own value, ignored, not supported
(or not configurable), or not known."""

How = Literal["served", "run", "source", "not known"]
"""The evidence for an engine's behaviour. ``served``: a test serves such a model and compares log-probabilities.
``run``: a test runs the engine's code (the rotary layers of vLLM and SGLang, whole models of other engines).
``source``: the engine's code was only read. ``not known``: neither, or what was read does not decide it."""

EVERY = frozenset("default linear dynamic yarn llama3 longrope proportional".split())
"""All rope types."""

LOST = ("dropped", "unsupported")

BASE_ROPE = "base RoPE"
"""What an engine computes that does not scale the frequencies."""


@dataclass(frozen=True)
class Difference:
    """One difference between the requested schedule and what an engine computes.

    Attributes:
        field: the field of the schedule: ``frequencies``, or a number that determines frequencies or scales, such as
            ``factor``.
        status: how the engine treats the field; ``honoured`` if there is only a condition to meet.
        value: what the engine computes instead: a number or a truth value, or words where no single number says it.
        warning: the sentence for the user without its subject, where ``{s}`` stands for the ending of the verb's third
            person; empty for no warning.
        loads: whether the engine loads the model all the same.
    """

    field: str
    status: Status
    value: str | float
    warning: str = ""
    loads: bool = True

    @property
    def computes(self) -> str:
        """Describes what the engine computes instead."""
        return value_text(self.value)

    @property
    def prevents(self) -> bool:
        """Whether an engine with this difference cannot compute the schedule."""
        if self.field == "frequencies":
            return self.status in LOST
        return self.field in ("softmax scale", "attention factor") and self.status == "unsupported"

    @property
    def spoils(self) -> bool:
        """Whether another schedule is better: the table or the softmax differs, or is not known."""
        lasting = ("theta", "original length", "softmax scale")
        return self.prevents or self.status == "not known" or (self.status != "honoured" and self.field in lasting)

    @classmethod
    def base_rope(cls, warning: str) -> Difference:
        """Returns the difference of an engine that does not scale the frequencies."""
        return cls("frequencies", "dropped", BASE_ROPE, warning)

    @classmethod
    def stops(cls, warning: str = "", computes: str = "stops with an error") -> Difference:
        """Returns the difference of an engine that stops at the model with this schedule."""
        return cls("frequencies", "unsupported", computes, warning, loads=False)

    @classmethod
    def other_table(cls, warning: str, computes: str = "another table") -> Difference:
        """Returns the difference of an engine that runs the model, but never with this schedule."""
        return cls("frequencies", "unsupported", computes, warning)

    @classmethod
    def unknown(cls, warning: str) -> Difference:
        """Returns the difference of an engine whose code for the model was not read."""
        return cls("frequencies", "not known", "not known", warning)

    @classmethod
    def recomputed_scale(cls, asked: float, computed: float, where: str = "", of_lengths: bool = False) -> Difference:
        """Returns the difference of an engine that computes the attention factor itself.

        Args:
            asked: the requested attention factor.
            computed: the factor that the engine computes.
            where: an addition to the warning, such as " on MLA models".
            of_lengths: whether the engine computes the factor from the lengths.
        """
        verb, source = ("compute", " from the lengths") if of_lengths else ("recompute", "")
        text = f"{verb}{{s}} the attention factor{where}{source} ({computed:.4g} instead of {asked:.4g})"
        return cls("attention factor", "recomputed", computed, text)

    @classmethod
    def always_truncates(cls, where: str = "") -> Difference:
        """Returns the difference of an engine that always rounds yarn's ramp to whole pairs."""
        text = f"always round{{s}} the ramp to whole pairs{where} (truncate = true)"
        return cls("truncate", "dropped", True, text)

    @classmethod
    def one_list(cls) -> Difference:
        """Returns the difference of an engine that, at its start, chooses one of two lists of per-pair factors."""
        text = "choose{s} the short or the long list once, by the engine's maximum length"
        return cls("switch", "recomputed", "one list for all, by --max-model-len", text)

    @classmethod
    def one_table(cls, length: int) -> Difference:
        """Returns the difference of an engine that computes the table of dynamic NTK only once, for a given length."""
        text = f"compute{{s}} one static table, for {length:,} tokens, and use{{s}} it at every length"
        return cls("switch", "recomputed", f"one table, for {length:,} tokens", text)

    @classmethod
    def wrong_pairs(cls, layers: Layers, computes: str) -> Difference:
        """Returns the difference of an engine whose layer for per-pair factors forms other pairs than the model."""
        return cls.stops(f"cannot apply per-pair factors to the pairs of {layers.model_type}", computes)

    @classmethod
    def one_row(cls, layers: Layers) -> Difference:
        """Returns the difference of an engine whose layer takes one row of positions of a model that passes three."""
        return cls.stops(f"cannot use the three rows of positions of {layers.model_type} under {layers.kind}")

    @classmethod
    def ignores_factor(cls) -> Difference:
        """Returns the difference of an engine that ignores the factor of proportional RoPE."""
        return cls("factor", "dropped", 1, "ignore{s} the factor of proportional RoPE")


def sentence(engines: list[str], warning: str) -> str:
    """Formats a warning with the engines that it concerns, as in ``vLLM and SGLang: ignore ...``."""
    *others, last = engines
    if others:
        return f"{', '.join(others)} and {last}: {warning.replace('{s}', '')}"
    return f"{last}: {warning.replace('{s}', 's')}"


# ---------------------------------------------------------------------------------------------------------
# Commands


@dataclass(frozen=True)
class Command:
    """A command or snippet to paste.

    Attributes:
        language: ``sh``, ``python``, ``yaml`` or ``json``.
        text: the text to paste, without a final newline.
        note: the command's assumptions, or "".
        options: the options that set the schedule or its length, as a summary.
    """

    language: str
    text: str
    note: str = ""
    options: tuple[str, ...] = ()

    def fenced(self) -> str:
        """Formats the command as a block of Markdown."""
        note = f"# {visible(self.note)}\n" if self.note else ""
        return fenced(self.language, note + self.text)


_FIXED = ("-m", "-o", "--model", "--model-path", "--schedule")
"""The options that name a model or a file, and the schedule of ``gguf`` and ``patch``."""


def shell(*words: str, note: str = "") -> Command:
    """Makes a quoted command line, with options on separate lines if it is long."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(shell_word(word))
    parts = [" ".join(line) for line in lines]
    line = " ".join(parts)
    if len(line) > 110:
        line = " \\\n  ".join(parts)
    named = [word for word in words if word in ("gguf", "patch") or word.startswith("-") or word.isdigit()]
    return Command("sh", line, note, tuple(word for word in named if word not in _FIXED))


def option(name: str, told: object) -> list[str]:
    """Returns an option and its value as JSON, or an empty list for an empty value."""
    return [name, json.dumps(told)] if told else []


def needs_remote_code(config: Json) -> bool:
    """Whether a model runs with the checkpoint's own code, because transformers has none for its type."""
    return bool(config.get("auto_map")) and str(config.get("model_type")) not in class_defaults.load()


# ---------------------------------------------------------------------------------------------------------
# Serving

V4_NAMES = {"rope_scaling", *THETA_NAMES, *PARTIAL_NAMES}
"""The keys of transformers 4 that correspond to ``rope_parameters`` in transformers 5."""


@dataclass(frozen=True)
class Source:
    """The source of the weights to serve, and the options that request the schedule.

    Attributes:
        spec: the options of ropescale's commands that request this schedule; empty if unknown.
        folder: the folder or Hub id of the original weights, if it differs from the served checkpoint.
        revision: branch, tag or commit of a Hub id.
        scaled: the option of ropescale's commands that replaces the vendor's scaling or builds on that scaling; empty
            if there is no such option, or if the vendor's configuration is served.
    """

    spec: tuple[str, ...] = ()
    folder: str | None = None
    revision: str | None = None
    scaled: tuple[str, ...] = ()


@dataclass(frozen=True)
class Serving:
    """A checkpoint to serve.

    Attributes:
        model: the checkpoint's folder or Hub id, as written in the commands.
        stored: the configuration in the folder.
        wanted: the configuration to serve, in the keys of transformers 4 and 5.
        layers: every kind of rotating layer, under the wanted configuration.
        length: the context to serve, in tokens.
        source: the source of the weights.
    """

    model: str
    stored: Configuration
    wanted: Configuration
    layers: tuple[Layers, ...]
    length: int
    source: Source = Source()

    @property
    def is_vendors(self) -> bool:
        """Whether the vendor's own folder is served unchanged."""
        return self.is_written and self.source.folder is None

    @property
    def is_written(self) -> bool:
        """Whether the folder already contains the configuration to serve."""
        return self.wanted is self.stored

    @property
    def revision(self) -> list[str]:
        """The option for the revision, or an empty list."""
        return [] if self.source.revision is None else ["--revision", self.source.revision]

    @property
    def trusting(self) -> list[str]:
        """The option that lets vLLM and SGLang run the checkpoint's own code, or an empty list if it is not needed."""
        return ["--trust-remote-code"] if needs_remote_code(self.wanted.raw) else []

    def changes(self) -> Data:
        """Returns the keys and values to serve that differ from the stored ones, in the language model's part."""
        stored = self.stored.section
        return {key: value for key, value in self.wanted.section.items() if key not in stored or stored[key] != value}

    def spelled(self, own_keys: Callable[[Layers], Json]) -> Serving:
        """Returns a copy with an engine's own rope parameters for each kind of layer."""
        return replace(self, layers=tuple(replace(layers, parameters=own_keys(layers)) for layers in self.layers))

    def snippet(self, changed: Json) -> Command:
        """Returns Python code that loads the model in transformers, with changes to the language model's part."""
        revision = self.source.revision
        given = repr(self.model) if revision is None else f"{self.model!r}, revision={revision!r}"
        given += ", trust_remote_code=True" if self.trusting else ""
        load = "model = AutoModelForCausalLM.from_pretrained"
        if not changed:
            return Command("python", f"from transformers import AutoModelForCausalLM\n\n{load}({given})")
        lines = ["from transformers import AutoConfig, AutoModelForCausalLM", ""]
        lines += [f"config = AutoConfig.from_pretrained({given})", "text = config.get_text_config()"]
        lines += [f"text.{key} = {value!r}" for key, value in changed.items()]
        lines.append(f"{load}({given}, config=config)")
        return Command("python", "\n".join(lines), options=("config=config",))

    def needed_positions(self, multiplied: tuple[str, ...]) -> int:
        """Returns the ``max_position_embeddings`` with which an engine's tables of cos and sin cover every position.

        Args:
            multiplied: the rope types for which the table is ``factor`` times as long as ``max_position_embeddings``.
        """
        kinds = {layers.kind for layers in self.layers}
        return self.wanted.max_length if len(kinds) == 1 and kinds <= {*multiplied} else self.length

    def overrides(self, positions: int) -> Json:
        """Returns the changes to the stored configuration, as an object that an engine merges into the configuration.

        Args:
            positions: the ``max_position_embeddings`` that the engine needs.
        """
        changed = self.v5_changes(positions)
        return placed({}, self.stored.path, changed) if changed else changed

    def v5_changes(self, positions: int) -> Data:
        """Returns the changes to the language model's part of the stored configuration, for transformers 5.

        Changed rope parameters are complete, because they replace the stored ones. Layer types that do not rotate keep
        their parameters.

        Args:
            positions: the ``max_position_embeddings`` that the engine needs.
        """
        changed = {key: value for key, value in self.changes().items() if key not in V4_NAMES}
        own = {layers.key: dict(layers.parameters) for layers in self.layers}
        read = {each.key: each.parameters for each in layers_in(self.wanted, self.length)}
        if "rope_parameters" in changed or repr(own) != repr(read):  # 4 and 4.0 differ
            stated: Any = self.wanted.section.get("rope_parameters") or {}
            changed["rope_parameters"] = own[ALL_LAYERS] if [*own] == [ALL_LAYERS] else {**stated, **own}
        name = self.wanted.text.name_of("max_position_embeddings")
        changed.pop(name, None)
        return changed if positions == self.stored.max_length else {**changed, name: positions}


def of_plan(model: str, stored: Configuration, plan: Plan, source: Source = Source()) -> Serving:
    """Describes how to serve the original weights under a schedule that is not saved in a folder."""
    every = {layers.key: layers for layers in (*layers_in(plan.planned, plan.length), *layers_of(plan))}
    return Serving(model, stored, plan.planned, tuple(every.values()), plan.length, source)


def as_it_lies(model: str, stored: Configuration, length: int, source: Source = Source()) -> Serving:
    """Describes how to serve an unchanged folder."""
    return Serving(model, stored, stored, layers_in(stored, length), length, source)


# ---------------------------------------------------------------------------------------------------------
# The engine


class Engine(ABC):
    """A serving engine: its differences from the request, their evidence, and its commands.

    Attributes:
        name: the engine's usual name.
        version: the version whose behaviour was checked.
        served_version: the version with which tests serve whole models; empty if no test does.
        served: for each model type, the rope types with which tests serve a model.
        run: for each model type, the rope types with which tests run the engine's code.
        in_card: whether model cards show the engine's commands.
        derives_factor: whether the engine derives a null factor of yarn from the lengths.
        head: the options that serve a target with a draft HEAD, with a place for the method; "" if not read.
        mtp: the options that draft with a model's MTP layers, with a place for their number; "" if not read.
        beside: what happens to a draft under a schedule that is not in the folder.
    """

    name: str
    version: str
    served_version: str = ""
    served: ClassVar[Mapping[str, Set[str]]] = {}
    run: ClassVar[Mapping[str, Set[str]]] = {}
    in_card: bool = False
    derives_factor: bool = False
    head: str = ""
    mtp: str = ""
    beside: str = ""

    def evidence(self, layers: Layers) -> How:
        """Returns the evidence for the engine's behaviour on this model and rope type."""
        name = layers.whole_type
        kind = layers.kind
        if layers.configuration.raw.get("auto_map"):  # the checkpoint's own code may run instead
            return "source"
        if layers.lacks_factor and not self.derives_factor:
            return "source"
        if kind in self.served.get(name, ()):
            return "served"
        return "run" if kind in self.run.get(name, ()) else "source"

    @abstractmethod
    def differences(self, layers: Layers) -> Iterable[Difference]:
        """Yields the differences for one kind of layer in a patched folder."""

    @abstractmethod
    def serve(self, serving: Serving) -> list[Command]:
        """Returns the commands to paste, or an empty list if no command can express the schedule."""

    def computes(self, serving: Serving) -> bool:
        """Whether the engine is known to compute the schedule of every kind of layer, by a command."""
        spelled = self.spelled(serving)
        for layers in spelled.layers:
            if self.evidence(layers) == "not known" or any(each.spoils for each in self.left(spelled, layers)):
                return False
        return not serving.wanted.is_head and bool(self.serve(serving))

    def spelled(self, serving: Serving) -> Serving:
        """Returns the same checkpoint with the schedule in the engine's own keys."""
        return serving

    def left(self, serving: Serving, layers: Layers) -> list[Difference]:
        """Returns the differences that remain for one kind of layer, or the one that prevents all others."""
        if layers.lacks_factor and not self.derives_factor:
            text = f"needs a number as yarn's factor, which is null in config.json (write {layers.factor:g})"
            return [Difference.stops(text, "stops, or scales nothing")]
        return list(self.remaining(serving, layers))

    def remaining(self, serving: Serving, layers: Layers) -> Iterable[Difference]:
        """Yields the differences that remain for one kind of layer with the engine's own keys and commands."""
        return self.differences(layers)
