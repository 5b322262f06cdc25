"""The command that puts a schedule into a checkpoint, and the memory that its context takes."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from ...output.escaping import argument
from ...request import Request, RequestOptions
from . import kv_cache
from .kv_cache import Cache


@dataclass(frozen=True)
class Deployment:
    """The deployment that a command and a memory are said for.

    Attributes:
        model: the checkpoint's folder or name, and its ``revision``.
        request: how schedules were applied, such as ``layers``.
        cache: the KV cache of one text.
        weights: bytes of the weights.
        memory: bytes that are there, if that was said.
        engine: the engine that it is for, if that was said.
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
        words = ["ropescale", "patch", argument(self.model), "-o", self._folder(target)]
        words += ["--schedule", schedule]
        if self.revision is not None:
            words += ["--revision", self.revision]
        return shlex.join([*words, *_options(Request.of(schedule, **self.request))])

    def following(self, target: int) -> str:
        """Returns the ``ropescale export`` command of the patched folder; "" where no engine was said."""
        words = ["ropescale", "export", self._folder(target), "--for"]
        return "" if self.engine is None else shlex.join([*words, self.engine])

    def _folder(self, target: int) -> str:
        return argument(f"{Path(self.model).name or 'model'}-{short_length(target)}")

    def said(self, target: int) -> str:
        """Says the memory of the KV cache at the target, and the largest length that fits where a memory is given."""
        cache, kind = self.cache, "latent " if self.cache.latent else ""
        text = (
            f"At {target:,} tokens the {kind}KV cache of one text takes {kv_cache.said(cache.bytes_at(target))} in "
            f"{cache.dtype}, beside {kv_cache.said(self.weights)} of weights."
        )
        if self.memory is None:
            return text
        left = self.memory - self.weights
        if left < cache.bytes_at(1):
            return f"{text} The weights alone do not fit into {kv_cache.said(self.memory)}."
        longest = cache.longest(left)
        fits = "a text of any length" if longest is None else f"{longest:,} tokens"
        return (
            f"{text} {kv_cache.said(self.memory)} hold the weights and {fits}; what a forward pass takes comes on top."
        )


def _options(request: Request) -> list[str]:
    """Returns the options of ``patch`` that the schedules were measured with."""
    words: list[str] = []
    if request.original_length is not None:
        words += ["--original-length", str(request.original_length)]
    if request.layers != "full":
        words += ["--layers", request.layers]
    if request.freeze_at is not None:
        words += ["--freeze-at", str(request.freeze_at)]
    return words + [f"--{name.replace('_', '-')}" for name in ("replace_scaling", "on_top") if getattr(request, name)]


def short_length(length: int) -> str:
    """Writes a length for a folder's name: ``32k`` for 32,768."""
    return f"{length // 1024}k" if length >= 1024 and length % 1024 == 0 else str(length)
