"""Plans made of keywords, as the public functions take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from ropescale.planning import plan
from ropescale.request import Request, RequestOptions


def make_plan(config: Mapping[str, Any], schedule: object, **options: Unpack[RequestOptions]) -> plan.Plan:
    """Returns the plan of a schedule for a configuration."""
    return plan.make_plan(config, Request.of(schedule, **options))
