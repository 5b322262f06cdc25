"""Finds the language model's section of a ``config.json``, the lengths that it states, and what drafts its tokens."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from ..files import Data, Json, is_number
from . import class_defaults

Path = tuple[str, ...]
"""The keys that lead to a section; empty for the top level."""

ORIGINAL = "original_max_position_embeddings"
SPECULATORS = "speculators_model_type"
"""The key that files of the speculators library have instead of ``model_type``."""

LENGTH_KEYS = (
    "model_max_length max_sequence_length max_seq_length max_seq_len seq_length seq_len n_positions n_ctx "
    "max_target_positions context_length max_context_length".split()
)
"""Keys beside ``max_position_embeddings`` that state a context; vLLM and SGLang take most of them as the limit."""

LONGEST_STATED = 2**40
"""A larger value means that there is no limit."""

_USUAL: tuple[Path, ...] = (("thinker_config", "text_config"), ("text_config",))
_READ: tuple[Path, ...] = (*_USUAL, ("language_config",), ("llm_config",), ("decoder",), ("generator",), ())
"""The sections that the code of published models reads: DeepSeek-VL2's, InternVL's, and transformers' own names."""

_TEXT_KEYS = (
    {"hidden_size", "n_embd", "d_model"},
    {"num_attention_heads", "n_head", "n_heads"},
    {"vocab_size", "max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters", *LENGTH_KEYS},
)
_NOT_TEXT = "vision visual vit audio speech image video token2wav code2wav quantization".split()
_DEPTH = 3


@dataclass(frozen=True)
class StatedLength:
    """A length in tokens, and the key or the computation that states it."""

    tokens: int
    key: str

    def __str__(self) -> str:
        return f"{self.tokens:,} ({self.key})"


@dataclass(frozen=True)
class Lengths:
    """Collects what the files of a model say about its context.

    Attributes:
        trained: the context before any scaling.
        served: the context that the file is meant to be served with.
        others: further lengths that ``config.json`` states.
        other_trained: another reading of ``trained``, or None.
        other_served: another reading of ``served``, or None.
        tokenizer: the limit of the tokenizer.
    """

    trained: StatedLength
    served: StatedLength
    others: tuple[StatedLength, ...] = ()
    other_trained: StatedLength | None = None
    other_served: StatedLength | None = None
    tokenizer: StatedLength | None = None

    def start(self, on_top: bool) -> tuple[StatedLength, StatedLength | None]:
        """Returns the length that a schedule starts from, and its other reading (None if there is one reading)."""
        return (self.served, self.other_served) if on_top else (self.trained, self.other_trained)

    def doubt(self, on_top: bool) -> str:
        """Returns a sentence on the two readings of the length that a schedule starts from, or ""."""
        first, second = self.start(on_top)
        kind = "served" if on_top else "trained"
        return f"config.json has two readings: the {kind} length is {first}, or {second}" if second else ""

    def rows(self) -> list[tuple[str, StatedLength]]:
        """Returns every length with what it is."""
        named = [("trained", self.trained), ("served", self.served), *(("also stated", each) for each in self.others)]
        return [*named, ("tokenizer", self.tokenizer)] if self.tokenizer else named

    def to_dict(self) -> Data:
        """Returns the lengths as plain data."""
        named = {"trained": self.trained, "served": self.served}
        found: Data = {name: {"tokens": each.tokens, "from": each.key} for name, each in named.items()}
        others = {each.key: each.tokens for each in self.others}
        return found | {"others": others, "tokenizer": self.tokenizer.tokens if self.tokenizer else None}


def find_section(config: Json) -> tuple[Path, str]:
    """Returns the path of the language model's section, and why it cannot be determined ("" if it can).

    A class of transformers reads the top level or ``text_config``. For other types, the one section that looks like a
    language model's is taken; two that do, or one of another name, are named in a refusal, because their code is not
    known.
    """
    if config.get(SPECULATORS) and config.get("transformer_layer_config"):  # as vLLM reads a head of this library
        return ("transformer_layer_config",), ""
    known = class_defaults.load()
    model_type = str(config.get("model_type"))
    if model_type in known:
        if "text" not in (known[model_type] or {}):
            return (), ""
        flat = (
            f"transformers' class of {model_type} reads text_config, and config.json describes a language model in the "
            "top level; nothing is read or changed"
        )
        return ("text_config",), flat if "text_config" not in config and "hidden_size" in config else ""
    usual = next((path for path in _USUAL if isinstance(at(config, path), Mapping)), None)
    paths = [*sections_in(config)] if usual is None else [usual]
    if len(paths) < 2 and {*paths} <= {*_READ}:
        return (*paths, ())[0], ""
    names = " and ".join(map(dotted, sorted(paths)))
    return paths[0], (
        f"config.json describes a language model in {names}, and whether the code of model type {model_type[:60]!r} "
        "reads that is not known; nothing is read or changed"
    )


def sections_in(config: Json, path: Path = ()) -> Iterator[Path]:
    """Yields the paths of the sections that look like a language model's configuration."""
    entry = class_defaults.load().get(str(config.get("model_type"))) or {"text": ""}
    if "text" not in entry or not any(names.isdisjoint(config) for names in _TEXT_KEYS):
        yield path
    for name, value in config.items():
        if isinstance(value, Mapping) and len(path) < _DEPTH and not any(word in name for word in _NOT_TEXT):
            yield from sections_in(value, (*path, name))


def dotted(path: Path) -> str:
    """Returns a path as text."""
    return ".".join(path) or "the top level"


def at(config: Json, path: Path) -> object:
    """Returns what stands at a path, or None."""
    found: object = config
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def placed(config: object, path: Path, section: Json) -> Data:
    """Returns a copy of a configuration with another section at a path."""
    if not path:
        return dict(section)
    outer = config if isinstance(config, Mapping) else {}
    return {**outer, path[0]: placed(outer.get(path[0]), path[1:], section)}


def lengths_in(section: Json, keys: Sequence[str] = LENGTH_KEYS) -> list[StatedLength]:
    """Returns the lengths that a section states, by default beside ``max_position_embeddings``."""
    return [StatedLength(int(value), name) for name in keys if is_length(value := section.get(name))]


def originals_in(section: Json) -> list[StatedLength]:
    """Returns the original lengths that other keys state, as in ``dual_chunk_attention_config`` or by gpt-oss."""
    parts = [(name, part) for name, part in section.items() if "rope" not in name and isinstance(part, Mapping)]
    inner = [replace(each, key=f"{name}.{each.key}") for name, part in parts for each in lengths_in(part, [ORIGINAL])]
    return inner + lengths_in(section, ["initial_context_length"])


def is_length(value: object) -> TypeGuard[float]:
    """Whether a value states a length in tokens; an absurdly large one states that there is no limit."""
    return is_number(value) and 1 < value <= LONGEST_STATED and value % 1 == 0


_HEAD = re.compile(r"eagle3|eagle(?!_?2)|dflash|dspark|medusa|mlp(?=_?speculator|')|nextn|mtp")
"""What the names of a head's class and type contain, in quotes; Eagle 2 and 2.5 are models that also see."""

_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers")
"""The keys that count MTP layers."""


@dataclass(frozen=True)
class Draft:
    """A part that drafts tokens: a head of this method, or this number of MTP layers."""

    method: str = "mtp"
    layers: int = 0

    def __str__(self) -> str:
        return f"{self.layers} MTP layer{'s' * (self.layers > 1)}" if self.layers else f"{self.method} head"

    @property
    def rotates(self) -> bool:
        """Whether it has attention, and so a rotation."""
        return self.method not in ("medusa", "mlp")


def draft_in(config: Json, section: Json) -> Draft | None:
    """Returns what drafts, such as ``eagle3 head`` or ``1 MTP layer``; None for a model without a draft.

    Args:
        config: the whole configuration.
        section: the language model's part.
    """
    names = [config.get(key) for key in ("architectures", "model_type", SPECULATORS)]
    if found := _HEAD.search(str(names).lower()):
        return Draft(found[0].replace("nextn", "mtp"))
    if "draft_vocab_size" in config:
        return Draft("eagle3")
    counts = (section.get(key) for key in _LAYERS)
    layers = next((count for count in counts if isinstance(count, int) and count), 0)
    return Draft(layers=layers) if layers else None
