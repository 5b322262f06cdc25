"""Standard input, as one document: ``-``."""

from __future__ import annotations

import sys

from ..documents import Text
from .rows import refuse
from .text_file import decoded


def takes(source: str) -> bool:
    """Whether standard input is asked for."""
    return source == "-"


def read(source: str, split: str | None, text_field: str | None) -> list[Text]:
    """Reads all of it."""
    refuse("standard input", "plain text", split=split, text_field=text_field)
    return [decoded("standard input", sys.stdin.buffer.read())]
