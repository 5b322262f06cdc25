"""Measures the effect of a schedule: perplexity against length, by position, paired between schedules.

Importing this package is cheap; the first measurement imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_of

if TYPE_CHECKING:
    from .data.documents import Document, tokenize
    from .data.sources import read_texts
    from .measuring import perplexity, recommend, retrieval
    from .recommending.results import Recommendation
    from .results.result import Result
    from .retrieving.results import Retrieval
    from .searching.results import SearchResult
    from .searching.running import search
    from .servers.server import Server

_HOMES = {
    "perplexity": "measuring",
    "Result": "results.result",
    "Document": "data.documents",
    "read_texts": "data.sources",
    "tokenize": "data.documents",
    "retrieval": "measuring",
    "Retrieval": "retrieving.results",
    "search": "searching.running",
    "SearchResult": "searching.results",
    "Server": "servers.server",
    "recommend": "measuring",
    "Recommendation": "recommending.results",
}

__all__ = [
    "Document",
    "Recommendation",
    "Result",
    "Retrieval",
    "SearchResult",
    "Server",
    "perplexity",
    "read_texts",
    "recommend",
    "retrieval",
    "search",
    "tokenize",
]

__getattr__, __dir__ = names_of(__name__, _HOMES)
