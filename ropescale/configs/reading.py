"""Single questions about a configuration; whoever has more than one makes a :class:`.configuration.Configuration`.

With :mod:`.parameters` and :mod:`.writing` this room alone knows transformers 5's ``rope_parameters`` from transformers
4's ``rope_theta`` and ``rope_scaling``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..rope import Rope
from .checks import LARGEST
from .configuration import Configuration
from .section import ALL_LAYERS

__all__ = ["ALL_LAYERS", "LARGEST", "default_of", "is_scaled", "read_rope", "text_section"]


def read_rope(config: Mapping[str, object], original_length: int | None = None) -> dict[str, Rope]:
    """Reads the geometry per layer type: :attr:`.Configuration.ropes`."""
    return Configuration.read(config, original_length).ropes


def text_section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the part that holds the language model: :attr:`.Configuration.section`."""
    return Configuration.read(config).section


def default_of(config: Mapping[str, object], field: str) -> Any:
    """Returns a field of the language model: :meth:`.Configuration.default_of`."""
    return Configuration.read(config).default_of(field)


def is_scaled(rope: Rope) -> bool:
    """Whether the configuration already scales this geometry: :attr:`.Rope.is_scaled`."""
    return rope.is_scaled
