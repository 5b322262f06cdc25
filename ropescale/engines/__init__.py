"""Serving engines and how they compute a schedule, one module per engine.

A module lists its engine's deviations from the request with their evidence. The warnings of ``ropescale patch``, the
model card and the table of ``ropescale export`` are derived from these lists.
"""

from __future__ import annotations

from .registry import ENGINES, engine_warnings

__all__ = ["ENGINES", "engine_warnings"]
