"""Standard input, as one document: ``-``."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from ..texts import Text
from .read_options import ReadOptions
from .text_file import decoded


def takes(source: str) -> bool:
    """Whether standard input is asked for."""
    return source == "-"


def read(source: str, asked: ReadOptions) -> Iterator[Text]:
    """Reads all of it."""
    asked.only("standard input", "plain text", "encoding")
    yield decoded("standard input", sys.stdin.buffer.read(), asked.encoding)
