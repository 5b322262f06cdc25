"""Measuring what a schedule does: perplexity against length, by position, paired between schedules.

Importing this package is cheap; torch comes with the first measurement.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .data import Document, read_texts, tokenize
    from .measuring import perplexity
    from .results import Result
    from .retrieving.results import Retrieval
    from .retrieving.running import retrieval

_HOMES = {
    "perplexity": "measuring",
    "Result": "results",
    "Document": "data",
    "read_texts": "data",
    "tokenize": "data",
    "retrieval": "retrieving.running",
    "Retrieval": "retrieving.results",
}

__all__ = ["Document", "Result", "Retrieval", "perplexity", "read_texts", "retrieval", "tokenize"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
