"""Says how often intervals over little text cover the truth (``tests/benchmarks/intervals.py``, docs/intervals.md)."""

from __future__ import annotations

from .intervals import LEAST_DOCUMENTS, LEAST_WINDOWS

FEW = {5: 0.857, 6: 0.883, 7: 0.907, 8: 0.927}
"""The lowest coverage of the 95% interval over so many documents; from 9 on it is 93% or more."""

NEIGHBOURS = 0.93
"""The lowest coverage over blocks of windows whose neighbours correlate by 0.5 at most."""


def over_documents(documents: int) -> str:
    """Says how often the interval over few documents holds, or that there is none; nothing for enough of them."""
    if documents < LEAST_DOCUMENTS:
        return f"takes {LEAST_DOCUMENTS} documents"
    if documents not in FEW:
        return ""
    share = int(100 * FEW[documents])
    return f"covers {share}% or more in our simulations of {documents} documents (docs/intervals.md)"


def least(sliding: bool) -> str:
    """Says how long a single document must be for an interval."""
    return f"{LEAST_WINDOWS} pieces of 1,024 tokens" if sliding else f"{LEAST_WINDOWS} windows"


def over_blocks() -> str:
    """Says how often the interval over blocks of windows holds."""
    return f"{NEIGHBOURS:.0%} or more in our simulations of neighbours that correlate by up to 0.5 (docs/intervals.md)"
