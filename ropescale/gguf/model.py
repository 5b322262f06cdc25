"""Reads the model in a GGUF file, and translates its keys into a configuration."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..configs.section import is_name
from ..errors import ConfigError
from ..files import Data, is_number
from ..output.formatting import brief, cut
from ..rope import Rope
from ..schedules.base import partial_factor
from ..schedules.by_parts import temperature
from ..schedules.table import NEVER_TURNS
from . import architectures as known
from .files import GgufFile, Value

SCHEDULE = "ropescale.schedule"
"""The key with the spec of the schedule that ropescale wrote."""

FREQS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
TABLES = (FREQS, LONG, SHORT)

BETAS = (32.0, 1.0)
_MODEL_TYPES = {"qwen3": "qwen3", "qwen3moe": "qwen3_moe"}
"""The model types of architectures whose stated length exceeds the trained length (see
:mod:`ropescale.configs.families`)."""

T = TypeVar("T")
Keys = Mapping[str, Value]
Tables = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class GgufModel:
    """The model in a GGUF file: its scalar keys and per-pair tensors.

    Attributes:
        path: the file's path; None if the object represents any file with these keys.
        architecture: ``general.architecture``, which is the prefix of the keys.
        keys: the scalar keys, without ropescale's own keys.
        tables: the numbers of the per-pair tensors, by name.
        is_ours: whether ropescale wrote the file.
    """

    path: Path | None
    architecture: str
    keys: Keys
    tables: Tables
    is_ours: bool = False

    def get(self, name: str) -> object:
        """Returns the value of a key, given without the architecture, or None if the key is missing."""
        found = self.keys.get(f"{self.architecture}.{name}")
        return None if found is None else found.value

    def number(self, name: str, default: T) -> float | T:
        """Returns the number under a key, given without the architecture, or the default if the key is missing.

        Raises:
            ConfigError: the value is not a finite number.
        """
        value = self.get(name)
        return default if value is None else _number(self.path, f"{self.architecture}.{name}", value)

    @property
    def windowed(self) -> bool:
        """Whether some layers have sliding-window attention, or chunked attention (Llama 4, unless the key is 0)."""
        return bool(self.number("attention.sliding_window", 1 if self.architecture == "llama4" else 0))

    @property
    def factor(self) -> float:
        """The scaling factor by which llama.cpp divides frequencies; 1 under the scaling type ``none``."""
        stated = self.number("rope.scaling.factor", self.number("rope.scale_linear", 0.0))
        return float(stated) if stated and self.get("rope.scaling.type") != "none" else 1.0


def _number(path: Path | None, name: str, value: object) -> float:
    if not is_number(value) or not abs(value) < math.inf:
        raise ConfigError(f"{name} is {brief(value)} in {path}; it must be a finite number")
    return value


def read_model(file: GgufFile, on_top: bool = False) -> GgufModel:
    """Reads the model in a GGUF file.

    Args:
        file: the file.
        on_top: whether to accept a file that already carries a schedule from ropescale.

    Raises:
        ConfigError: the file is an adapter, a projector or one part of several, has no RoPE or an unsupported form of
            RoPE, or was patched before.
    """
    if SCHEDULE in file.keys and not on_top:
        earlier = brief(file.keys[SCHEDULE].value)
        raise ConfigError(
            f"{file.path} already carries a schedule of ropescale, {earlier}; patch the original file, or compose with "
            "the schedule",
            "on_top",
        )
    kind = file.keys.get("general.type")
    parts = file.keys.get("split.count")
    if kind is not None and kind.value != "model":
        other = cut(str(kind.value), 60)
        raise ConfigError(f"{file.path} is of type {other}, not a model; give the language model's file")
    if parts is not None and _number(file.path, "split.count", parts.value) > 1:
        raise ConfigError(
            f"{file.path} is one of {parts.value} parts; join them first: llama-gguf-split --merge {file.path} WHOLE"
        )
    architecture = file.keys.get("general.architecture")
    name = architecture and architecture.value
    if not is_name(name):
        raise ConfigError(f"{file.path} has no general.architecture; is it a model's file?")
    keys = {key: value for key, value in file.keys.items() if not key.startswith("ropescale.")}
    tables = {tensor: numbers for tensor in TABLES if (numbers := file.floats(tensor)) is not None}
    model = GgufModel(file.path, name, keys, tables, SCHEDULE in file.keys)
    refuse_architecture(model)
    for key in ("rope.dimension_count", "rope.freq_base", "context_length"):
        if file.is_array(f"{name}.{key}"):
            raise ConfigError(f"{name}.{key} differs from layer to layer, which one schedule cannot describe")
    return model


def refuse_architecture(model: GgufModel) -> None:
    """Raises an error for an architecture whose context no schedule can extend.

    Raises:
        ConfigError: llama.cpp has no RoPE for the architecture, rotates in a way that no key determines, or rotates
            only sliding-window layers.
    """
    name = model.architecture
    if name in known.NO_ROPE:
        raise ConfigError(f"{name} has no rotary position embeddings in llama.cpp; nothing can be scaled")
    if name in known.OUT_OF_REACH:
        raise ConfigError(
            f"{name}, or some of its layers, rotates in llama.cpp in a way that the file's keys do not determine"
        )
    if name in known.ONLY_SLIDING_ROTATES and model.windowed:
        raise ConfigError(
            f"the full-attention layers of {name} do not rotate; only the sliding-window layers do, and scaling those "
            "does not extend the context"
        )


def config_of(model: GgufModel) -> Data:
    """Returns the file's keys as a configuration with transformers' keys.

    Raises:
        ConfigError: a key that the geometry needs is missing.
    """
    length = model.number("context_length", None)
    if length is None:
        raise ConfigError(f"{model.path} lacks {model.architecture}.context_length")
    width = _rotary_dim(model)
    theta = float(model.number("rope.freq_base", 10000.0))
    scaling = _scaling(model, Rope(width, theta, max(int(length), 1)))
    if model.is_ours and scaling.get("rope_type") == "linear":  # we write the new context as context_length
        scaling["original_max_position_embeddings"] = round(length / float(str(scaling["factor"])))
    return {
        "model_type": _MODEL_TYPES.get(model.architecture, "llama"),
        "head_dim": width,
        "max_position_embeddings": length,
        "rope_parameters": {"rope_theta": theta, **scaling},
    }


def _rotary_dim(model: GgufModel) -> int:
    """Returns the number of rotating coordinates: ``rope.dimension_count`` or, as in llama.cpp, the head dimension.

    Raises:
        ConfigError: neither is known, or the number is odd or not whole, while llama.cpp rotates pairs.
    """
    stated = model.number("rope.dimension_count", model.number("attention.key_length", None))
    if stated is None:
        width = model.number("embedding_length", None)
        heads = model.number("attention.head_count", None)
        if not (width and heads):
            raise ConfigError(
                f"{model.path} lacks {model.architecture}.rope.dimension_count (or embedding_length and "
                "attention.head_count)"
            )
        stated = width // heads
    if not isinstance(stated, int):
        raise ConfigError(f"{model.path}: rope.dimension_count is {brief(stated)}; it must be a whole number")
    if stated % 2:
        raise ConfigError(
            f"{model.path}: {model.architecture} would rotate {stated} coordinates of a head, but llama.cpp rotates "
            "pairs; rope.dimension_count must be even"
        )
    return stated


def _scaling(model: GgufModel, rope: Rope) -> Data:
    """Returns the vendor's scaling as rope parameters, with one factor per pair if no other rope type describes it."""
    factor = model.factor
    extra = model.number("rope.scaling.attn_factor", 1.0)
    kind = model.get("rope.scaling.type") or "linear"
    name = model.architecture
    tables = model.tables
    recorded = model.number("rope.scaling.original_context_length", None)
    original = {} if recorded is None else {"original_max_position_embeddings": recorded}
    if alpha := model.number("rope.scaling.alpha", None):
        return {"rope_type": "dynamic", "factor": 1.0, "alpha": alpha, **original}
    # llama.cpp's divisors beyond (long) and up to (short) the original length; a single table serves as both
    long = short = tables.get(FREQS) if name in known.TAKES_FREQS | known.LEFT_OUT else None
    if name in known.TAKES_LISTS and (kind == "longrope" or name in known.LISTS_OF_ANY_TYPE):
        long = tables.get(LONG)
        short = tables.get(SHORT)
    turning = _turning(long) if long is short and factor == 1 else None
    if turning is not None and extra == 1:
        return {"rope_type": "proportional", "partial_rotary_factor": partial_factor(rope, turning)}
    if long is short is None and kind == "yarn":
        fast, slow = BETAS
        if name in known.READS_BETAS:
            fast = model.number("rope.scaling.yarn_beta_fast", fast)
            slow = model.number("rope.scaling.yarn_beta_slow", slow)
        multiplier = model.number("rope.scaling.yarn_log_multiplier", 0.0) if name == "mistral3" else 0.0
        scale = temperature(factor) / temperature(factor, multiplier) * extra
        stated = {"beta_fast": fast, "beta_slow": slow}
        stated |= {} if scale == temperature(factor) else {"attention_factor": scale}
        return {"rope_type": "yarn", "factor": factor, **stated, **original}
    if kind == "yarn":
        raise ConfigError(f"{model.path} has both yarn and {FREQS}, which ropescale cannot read together")
    if long is short is None and extra == 1:
        return {"rope_type": "default"} if factor == 1 else {"rope_type": "linear", "factor": factor, **original}
    lists = {"long_factor": long, "short_factor": short}
    lists = {name: [x * factor for x in numbers or [1.0] * rope.pairs] for name, numbers in lists.items()}
    scale = {"factor": 1.0} if extra == 1 else {"attention_factor": extra}  # a factor of 1 gives a scale of 1
    return {"rope_type": "longrope", **lists, **scale, **original}


def _turning(factors: Sequence[float] | None) -> int | None:
    """Returns the number of rotating pairs if the factors only stop the pairs after them (proportional RoPE)."""
    if factors is None:
        return None
    turning = next((i for i, x in enumerate(factors) if x != 1), len(factors))
    return turning if all(x >= NEVER_TURNS / 10 for x in factors[turning:]) else None
