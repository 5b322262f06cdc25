"""The metrics of a measurement. Each has a module and an entry in the list of names below.

Tables, results.json, results.csv, pictures and the page show metrics in this order.
"""

from importlib import import_module
from typing import Any

from .base import Metric, Option
from .stored import Stored

_NAMES = (
    "perplexity",
    "by_position",
    "paired",
    "verdicts",
    "against_truncation",
    "far_repeats",
    "key_tokens",
)

METRICS: tuple[Metric[Stored, Any], ...] = tuple(import_module(f".{name}", __name__).METRIC for name in _NAMES)

OPTIONS: dict[str, Option[Any]] = {option.name: option for metric in METRICS for option in metric.options}
"""The options of all metrics, by name."""
