"""Plans made of keywords, as the public functions take them, and the tables of a configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Unpack

from ropescale.configs.configuration import read_rope
from ropescale.engines.exported import Export
from ropescale.exporting import exports
from ropescale.planning import plan
from ropescale.request import Request, RequestOptions
from ropescale.schedules import AsIs, Frequencies, compute


def make_plan(config: Mapping[str, Any], schedule: object, **options: Unpack[RequestOptions]) -> plan.Plan:
    """Returns the plan of a schedule for a configuration."""
    return plan.make_plan(config, Request.of(schedule, **options))


def export(model: object, engine: str, schedule: object = None, **options: Unpack[RequestOptions]) -> Export:
    """Returns what one engine is given and computes."""
    [done] = exports(str(model), [engine], schedule, **options)
    return done


def read_back(
    config: Mapping[str, Any], length: int | None = None, original_length: int | None = None
) -> dict[str, Frequencies]:
    """Returns the tables of a configuration as its file says them; at its trained length where none is given."""
    ropes = read_rope(json.loads(json.dumps(config)), original_length)
    return {key: compute(AsIs(), rope, length) for key, rope in ropes.items()}
