"""One minus sign on the page: that of its script and its plots."""

from __future__ import annotations

import re
from typing import Any

_MINUS = re.compile(r"(?<![^\s(])-(?=\d)")
_EXACT = ("schedule", "schedules", "spec", "command", "serve", "same", "open", "equal", "baseline", "start", "run")
"""Keys whose texts are pasted or compared, and stay as they are."""


def typographic(value: Any) -> Any:
    """Returns the data of a section with "−" before the numbers of its texts, as the page's script writes them."""
    if isinstance(value, str):
        return _MINUS.sub("−", value)
    if isinstance(value, dict):
        return {key: each if key in _EXACT else typographic(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [typographic(each) for each in value]
    return value
