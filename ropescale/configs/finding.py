"""Finds the language model's section of a ``config.json``, and the lengths that a section states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from . import class_defaults

Path = tuple[str, ...]
"""The keys that lead to a section; empty for the top level."""

LENGTH_KEYS = (
    "model_max_length max_sequence_length max_seq_length max_seq_len seq_length seq_len n_positions n_ctx".split()
)
"""Keys beside ``max_position_embeddings`` that state a context; vLLM and SGLang take most of them as the limit."""

LONGEST_STATED = 2**40
"""A larger value means that there is no limit."""

_THINKER = ("thinker_config", "text_config")
_SIZES = (("hidden_size", "n_embd", "d_model"), ("num_attention_heads", "n_head", "n_heads"))
_OF_TEXT = {"vocab_size", "max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters", *LENGTH_KEYS}
_NOT_TEXT = ("vision", "visual", "vit", "audio", "speech", "image", "video", "token2wav", "code2wav", "quantization")
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
    """What a configuration says about its context.

    Attributes:
        trained: the context before any scaling.
        served: the context that the file is meant to be served with.
        others: further lengths that the file states.
        doubt: why ``trained`` may be another, or "".
        served_doubt: why ``served`` may be another, or "".
    """

    trained: StatedLength
    served: StatedLength
    others: tuple[StatedLength, ...] = ()
    doubt: str = ""
    served_doubt: str = ""

    def to_dict(self) -> dict[str, object]:
        """Returns the lengths as plain data."""
        named = {"trained": self.trained, "served": self.served}
        found: dict[str, object] = {name: {"tokens": each.tokens, "from": each.key} for name, each in named.items()}
        return found | {"others": {each.key: each.tokens for each in self.others}}


def find_section(config: Mapping[str, object]) -> tuple[Path, str]:
    """Returns the path of the language model's section, and why it cannot be determined ("" if it can).

    A class of transformers reads the top level or ``text_config``. For other types, the one section that looks like a
    language model's is taken; two that do are named in a refusal, because their code is not known.
    """
    known = class_defaults.load()
    model_type = str(config.get("model_type"))
    if model_type in known:
        return (("text_config",) if (known[model_type] or {}).get("text") else ()), ""
    thinker = config.get(_THINKER[0])
    if isinstance(thinker, Mapping) and isinstance(thinker.get(_THINKER[1]), Mapping):
        return _THINKER, ""
    if isinstance(config.get("text_config"), Mapping):
        return ("text_config",), ""
    paths = [*sections_in(config)]
    if len(paths) > 1:
        names = " and ".join(".".join(path) or "the top level" for path in paths)
        return paths[0], (
            f"config.json describes a language model in {names}, and which of them the code of model type "
            f"{model_type[:60]!r} reads is not known; nothing is read or changed"
        )
    return (paths[0] if paths else ()), ""


def sections_in(config: Mapping[str, object], path: Path = ()) -> Iterator[Path]:
    """Yields the paths of the sections that look like a language model's configuration."""
    if _is_text(config):
        yield path
    for name, value in config.items():
        inner = isinstance(value, Mapping) and len(path) < _DEPTH and not any(word in name for word in _NOT_TEXT)
        if isinstance(value, Mapping) and inner:
            yield from sections_in(value, (*path, name))


def _is_text(section: Mapping[str, object]) -> bool:
    entry = class_defaults.load().get(str(section.get("model_type"))) or {}
    has_sizes = all(any(name in section for name in names) for names in _SIZES)
    return bool(entry and "text" not in entry) or (has_sizes and not _OF_TEXT.isdisjoint(section))


def at(config: Mapping[str, object], path: Path) -> object:
    """Returns what stands at a path, or None."""
    found: object = config
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def placed(config: object, path: Path, section: Mapping[str, object]) -> dict[str, object]:
    """Returns a copy of a configuration with another section at a path."""
    if not path:
        return dict(section)
    outer = config if isinstance(config, Mapping) else {}
    return {**outer, path[0]: placed(outer.get(path[0]), path[1:], section)}


def lengths_in(section: Mapping[str, object]) -> Iterator[StatedLength]:
    """Yields the lengths that a section states beside ``max_position_embeddings``, by key."""
    for name in LENGTH_KEYS:
        if is_length(section.get(name)):
            yield StatedLength(int(str(section[name])), name)


def originals_in(section: Mapping[str, object]) -> Iterator[StatedLength]:
    """Yields the original lengths that other parts of a section state, such as ``dual_chunk_attention_config``."""
    key = "original_max_position_embeddings"
    for name, part in section.items():
        if "rope" not in name and isinstance(part, Mapping) and is_length(part.get(key)):
            yield StatedLength(int(str(part[key])), f"{name}.{key}")


def is_length(value: object) -> bool:
    """Whether a value states a length in tokens; an absurdly large one states that there is no limit."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 < value <= LONGEST_STATED
