"""Measures the effect of a schedule: perplexity against length, by position, paired between schedules.

Importing this package is cheap; the first measurement imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_of

if TYPE_CHECKING:
    from .api import (
        keys as keys,
        perplexity as perplexity,
        recommend as recommend,
        retrieval as retrieval,
        search as search,
    )
    from .backends.opening import Checkpoint as Checkpoint
    from .backends.remapped import remapped as remapped
    from .backends.server import Server as Server
    from .data.documents import Document as Document, Text as Text, tokenize as tokenize
    from .data.sources import TextSource as TextSource, read_texts as read_texts
    from .recommending.results import Recommendation as Recommendation
    from .results.result import Result as Result
    from .retrieving.results import Retrieval as Retrieval
    from .searching.results import SearchResult as SearchResult

_HOMES = {
    "perplexity": "api",
    "Result": "results.result",
    "Document": "data.documents",
    "read_texts": "data.sources",
    "TextSource": "data.sources",
    "Text": "data.documents",
    "Checkpoint": "backends.opening",
    "remapped": "backends.remapped",
    "tokenize": "data.documents",
    "retrieval": "api",
    "Retrieval": "retrieving.results",
    "search": "api",
    "keys": "api",
    "SearchResult": "searching.results",
    "Server": "backends.server",
    "recommend": "api",
    "Recommendation": "recommending.results",
}

__getattr__, __dir__, __all__ = names_of(__name__, _HOMES)
