"""Measures the effect of a schedule: perplexity against length, by position, paired between schedules.

Importing this package is cheap; the first measurement imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_of

if TYPE_CHECKING:
    from .data.documents import Document as Document
    from .data.documents import tokenize as tokenize
    from .data.sources import read_texts as read_texts
    from .measuring import perplexity as perplexity
    from .measuring import recommend as recommend
    from .measuring import retrieval as retrieval
    from .recommending.results import Recommendation as Recommendation
    from .results.result import Result as Result
    from .retrieving.results import Retrieval as Retrieval
    from .searching.results import SearchResult as SearchResult
    from .searching.search_run import search as search
    from .servers.server import Server as Server

_HOMES = {
    "perplexity": "measuring",
    "Result": "results.result",
    "Document": "data.documents",
    "read_texts": "data.sources",
    "tokenize": "data.documents",
    "retrieval": "measuring",
    "Retrieval": "retrieving.results",
    "search": "searching.search_run",
    "SearchResult": "searching.results",
    "Server": "servers.server",
    "recommend": "measuring",
    "Recommendation": "recommending.results",
}

__getattr__, __dir__, __all__ = names_of(__name__, _HOMES)
