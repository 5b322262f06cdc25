"""Parses lengths with units: ``4096``, ``4k``, ``128k``, ``1m``, where k is 1024 and m is 1024 * 1024."""

import re
from collections.abc import Iterable
from fractions import Fraction

from .errors import DataError
from .output.formatting import brief

LONGEST = 2**40
"""The largest length that is accepted; no context is as long."""

_UNITS = {"": 1, "k": 1024, "m": 1024**2}
_LENGTH = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)([km]?)", re.IGNORECASE | re.ASCII)


def parse_length(text: str | int) -> int:
    """Parses a number of tokens, 1 or more: ``"4k"`` and ``4096`` are 4096, ``"1.5k"`` is 1536.

    Raises:
        DataError: the text is not a length, is below 1, or is not a whole number of tokens.
    """
    text = getattr(text, "tolist", lambda: text)()  # numpy's integers
    if isinstance(text, bool) or not isinstance(text, (int, str)):
        raise DataError(f"a length is a number of tokens like 4096, 4k or 1m, not {brief(text)}")
    if isinstance(text, int):
        tokens = Fraction(text)
    elif match := _LENGTH.fullmatch(text.strip()):
        tokens = Fraction(match[1]) * _UNITS[match[2].lower()]
    else:
        raise DataError(f"{brief(text)} is not a length; write a number of tokens like 4096, 4k, 128k or 1m")
    if tokens > LONGEST:
        raise DataError(f"the length {brief(text)} is beyond any context; the longest is {LONGEST}")
    if tokens.denominator != 1:
        raise DataError(f"{brief(text)} is {float(tokens):g} tokens; a length is a whole number of tokens")
    if tokens < 1:
        raise DataError(f"the length {brief(text)} is below 1; write a number of tokens like 4096 or 4k")
    return int(tokens)


def parse_lengths(text: str | Iterable[str | int]) -> list[int]:
    """Parses lengths from a list or from text such as ``"2k,4k"``, which gives ``[2048, 4096]``; removes duplicates.

    Raises:
        DataError: a length is invalid, or none is given.
    """
    parts = [part for part in text.split(",") if part.strip()] if isinstance(text, str) else list(text)
    if not parts:
        raise DataError("no length is given; write lengths like 2k,4k,8k")
    return list(dict.fromkeys(parse_length(part) for part in parts))
