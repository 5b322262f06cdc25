"""Serving engines and how they compute a schedule, one module per engine.

A module states how its engine deviates from the request, and how that is known. The warnings of ``ropescale patch``,
the model card and the table of ``ropescale export`` are views of those facts.
"""

from __future__ import annotations

from .registry import ENGINES, engine_warnings

__all__ = ["ENGINES", "engine_warnings"]
