"""The command that patches a checkpoint, and the memory of the KV cache at a length."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...engines.exported import applied_options
from ...errors import DataError
from ...lengths import LONGEST
from ...output.formatting import argument, brief, size
from ...request import Request, RequestOptions

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes per number, by dtype."""

_UNITS = {"": 1, "B": 1} | {
    prefix + end: base**power
    for power, prefix in enumerate("KMGT", 1)
    for end, base in (("", 1000), ("B", 1000), ("IB", 1024))
}

_RECURRENT = {"linear_attention", "mamba", "recurrent", "conv", "ssm"}
"""Layer types of transformers with a fixed-size state instead of keys and values."""


@dataclass(frozen=True)
class Cache:
    """The KV cache of one text.

    Attributes:
        full: bytes per token of the layers that keep every token.
        windowed, window: bytes per token of the layers with a sliding window, and the window's tokens.
        dtype: the dtype of keys and values.
        latent: whether it holds the compressed keys and values of latent attention (MLA), as in engines.
    """

    full: int
    windowed: int
    window: int
    dtype: str
    latent: bool = False

    def bytes_at(self, length: int) -> int:
        """Returns the cache's bytes at a length in tokens."""
        return self.full * length + self.windowed * min(length, self.window)

    def longest(self, memory: int) -> int | None:
        """Returns the largest length that fits into ``memory`` bytes; None if every length fits."""
        if self.bytes_at(LONGEST) <= memory:
            return None
        whole = memory // max(1, self.full + self.windowed)
        if whole <= self.window or not self.windowed:
            return whole
        return max(self.window, (memory - self.windowed * self.window) // self.full)


def cache_of(config: PreTrainedConfig, dtype: str) -> Cache:
    """Returns the KV cache of a model.

    A layer keeps ``2 x KV heads x head dim`` numbers per token. A layer with latent attention (DeepSeek's MLA) keeps
    the latent vector and the rotated key, ``kv_lora_rank + qk_rope_head_dim`` numbers. A layer with a sliding window
    keeps only the tokens of its window.

    Args:
        config: the language model's configuration.
        dtype: the cache's dtype, such as ``bfloat16``.
    """

    def stated(name: str) -> int:
        return int(getattr(config, name, None) or 0)

    heads, latent, window = stated("num_attention_heads") or 1, stated("kv_lora_rank"), stated("sliding_window")
    head = stated("head_dim") or stated("hidden_size") // heads
    keys_and_values = 2 * head * (stated("num_key_value_heads") or heads)
    numbers = latent + stated("qk_rope_head_dim") if latent else keys_and_values
    each = numbers * BYTES.get(dtype, 2)
    usual = "sliding_attention" if window and getattr(config, "use_sliding_window", True) else "full_attention"
    kinds = getattr(config, "layer_types", None) or [usual] * (stated("num_hidden_layers") or 1)
    short = sum("sliding" in kind or "chunked" in kind for kind in kinds) if window else 0
    full = sum(kind not in _RECURRENT for kind in kinds) - short
    return Cache(full * each, short * each, window, dtype, latent > 0)


def parse_memory(text: str | int) -> int:
    """Parses an amount of memory: a number of bytes, or ``8GB``, ``80GiB``, ``500M``.

    Raises:
        DataError: the text is invalid.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", str(text).strip())
    unit = _UNITS.get(match[2].upper()) if match else None
    found = 0 if match is None or unit is None else int(float(match[1]) * unit)
    if found < 1:
        raise DataError(f"memory {brief(text)} cannot be read; write it like 8GB, 80GiB or 500MB", "memory")
    return found


def serving_dtype(config: Mapping[str, object], live: str) -> str:
    """Returns the dtype in which engines serve a checkpoint: that of its configuration, else the live one."""
    stated = config.get("dtype") or config.get("torch_dtype")
    return stated if isinstance(stated, str) and stated in BYTES else live


@dataclass(frozen=True)
class Deployment:
    """The target of a patch command and of a memory estimate.

    Attributes:
        model, revision: the checkpoint's folder or name, and its revision.
        request: how schedules were applied, such as ``layers``.
        cache: the KV cache of one text.
        weights: bytes of the weights; 0 if a server holds them.
        memory: the available bytes; None if unknown.
        engine: the target engine; None without one.
    """

    model: str
    revision: str | None
    request: RequestOptions
    cache: Cache
    weights: int
    memory: int | None
    engine: str | None

    def command(self, schedule: str, target: int) -> str:
        """Returns the ``ropescale patch`` command of a schedule."""
        words = ["ropescale", "patch", argument(self.model), "-o", self._folder(target), "--schedule", schedule]
        words += [] if self.revision is None else ["--revision", self.revision]
        return shlex.join([*words, *applied_options(Request.of(schedule, **self.request))])

    def following(self, target: int) -> str:
        """Returns the ``ropescale export`` command for the patched folder; "" without an engine."""
        words = ["ropescale", "export", self._folder(target), "--for"]
        return "" if self.engine is None else shlex.join([*words, self.engine])

    def _folder(self, target: int) -> str:
        length = f"{target // 1024}k" if target >= 1024 and target % 1024 == 0 else target
        return argument(f"{Path(self.model).name or 'model'}-{length}")

    def said(self, target: int) -> str:
        """Describes the KV cache's memory at the target, and the largest length that fits into a given memory."""
        cache, kind = self.cache, "latent " if self.cache.latent else ""
        text = (
            f"At {target:,} tokens the {kind}KV cache of one text takes {size(cache.bytes_at(target))} in "
            f"{cache.dtype}{f', beside {size(self.weights)} of weights' if self.weights else ''}."
        )
        if self.memory is None:
            return text
        left = self.memory - self.weights
        if left < cache.bytes_at(1):
            return f"{text} The weights alone do not fit into {size(self.memory)}."
        longest = cache.longest(left)
        fits = "a text of any length" if longest is None else f"{longest:,} tokens"
        return f"{text} {size(self.memory)} hold the weights and {fits}; the activations of a forward pass need more."
