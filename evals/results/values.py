"""The ranges of stored values, checked where a file is read."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Interval

Length = Annotated[int, Interval(ge=1, le=2**40)]
"""Tokens of a context."""

Count = Annotated[int, Interval(ge=0, le=2**53)]
"""Up to 2^53 a float, and so JavaScript, counts without gaps."""

Share = Annotated[float, Interval(ge=0, le=1)]
Positive = Annotated[float, Ge(0)]
