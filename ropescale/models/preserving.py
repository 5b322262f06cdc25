"""Context managers that leave a model as it was: its rotary state and its generation settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..errors import RopescaleError, RunError
from ..output.formatting import first_line
from .rotary_modules import rotary_modules

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Buffers = dict[str, tuple[torch.Tensor | None, torch.Tensor | None]]
"""Each buffer, and a copy of its numbers."""


@contextmanager
def preserved(model: nn.Module) -> Iterator[None]:
    """Restores the rotary tables and the attributes beside them afterwards, into the same tensors."""
    kept = [(module, dict(module.__dict__), _copied(module)) for _, module in rotary_modules(model)]
    try:
        yield
    finally:
        for module, attributes, buffers in kept:
            _put_back(module, attributes, buffers)


@contextmanager
def unset(model: PreTrainedModel) -> Iterator[None]:
    """Clears the generation settings inside the block: no end of text, no penalty."""
    from transformers import GenerationConfig

    settings = model.generation_config
    model.generation_config = GenerationConfig(cache_implementation=getattr(settings, "cache_implementation", None))
    try:
        yield
    finally:
        model.generation_config = settings


def _copied(module: nn.Module) -> Buffers:
    return {name: (buffer, None if buffer is None else buffer.clone()) for name, buffer in module._buffers.items()}


def _put_back(module: nn.Module, attributes: dict[str, object], buffers: Buffers) -> None:
    for name in module.__dict__.keys() - attributes.keys():  # never without its own parts: an interruption may come
        del module.__dict__[name]
    module.__dict__.update(attributes)
    module._buffers.clear()
    for name, (buffer, numbers) in buffers.items():
        module._buffers[name] = buffer
        if buffer is not None and numbers is not None:
            buffer.copy_(numbers)


@contextmanager
def one_line() -> Iterator[None]:
    """Turns an error of the model's code into a RunError in one line."""
    try:
        yield
    except RopescaleError:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise RunError(f"memory is full ({first_line(error)}); give a smaller length", "length") from error
    except Exception as error:
        raise RunError(f"the model fails while it generates: {type(error).__name__}: {first_line(error)}") from error
