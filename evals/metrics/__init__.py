"""What is computed from a measurement's stored numbers: one module a metric, one line each here.

Tables, results.json, results.csv, pictures and the page show what is listed, in this order.
"""

from __future__ import annotations

from typing import Any

from ..results.stored import Stored
from .base import Metric
from .by_position import BY_POSITION
from .far_repeats import FAR_REPEATS
from .key_tokens import KEY_TOKENS
from .paired import PAIRED
from .perplexity import PERPLEXITY

METRICS: tuple[Metric[Stored, Any], ...] = (
    PERPLEXITY,
    BY_POSITION,
    PAIRED,
    FAR_REPEATS,
    KEY_TOKENS,
)
