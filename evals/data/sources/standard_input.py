"""Standard input, as one document: ``-``."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from ..texts import Text
from .rows import refuse
from .text_file import decoded


def takes(source: str) -> bool:
    """Whether standard input is asked for."""
    return source == "-"


def read(source: str, split: str | None, text_field: str | None) -> Iterator[Text]:
    """Reads all of it."""
    refuse("standard input", "plain text", split=split, text_field=text_field)
    yield decoded("standard input", sys.stdin.buffer.read())
