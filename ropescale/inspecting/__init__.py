"""A model's rotary geometry before and after schedules: numbers, warnings, plots."""

from .geometry import Geometry, Pair
from .inspection import Inspection, Inspections, compare, inspect, traps

__all__ = ["Geometry", "Inspection", "Inspections", "Pair", "compare", "inspect", "traps"]
