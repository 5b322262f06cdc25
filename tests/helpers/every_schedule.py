"""Every built-in schedule, and one of a user's own, for a model of any number of pairs."""

from __future__ import annotations

from typing import Any

from own_schedules import Half

from ropescale.schedules import LongRope, Table

STATIC: dict[str, Any] = {
    **{
        name: f"{name}:factor=4" for name in "linear ntk ntk-su ntk-mixed ntk-critical ntk-by-parts yarn llama3".split()
    },
    "abf": "abf:rope_theta=500000",
    "yarn, mscale": "yarn:factor=4,mscale=1.0,mscale_all_dim=0.5",
    "yarn, no truncation": "yarn:factor=4,truncate=false,beta_fast=4",
    "yarn, attention factor": "yarn:factor=4,attention_factor=1.5",
    "yarn, extrapolation factor": "yarn:factor=4,extrapolation_factor=0.5",
    "proportional": "proportional:partial_rotary_factor=0.5,factor=2",
    "giraffe": "giraffe:scale_power=0.5",
    "giraffe, truncated": "giraffe:truncate=16",
    "cope": "cope:clipped_pairs=3",
    "resonance": {"name": "resonance", "over": "yarn", "factor": 4},
    "longrope": lambda n: LongRope([1.0 + i for i in range(n)], [1.0 + i for i in range(n)], factor=4.0),
    "table": lambda n: Table(factors=[1.0 + i / 3 for i in range(n)], attention_factor=1.2),
    "custom": Half(),
}
"""Schedules of one table for every length, as a spec or a function from the number of pairs."""

VARYING: dict[str, Any] = {
    "dynamic": "dynamic:factor=4",
    "dynamic-yarn": "dynamic-yarn",
    "longrope, two lists": lambda n: LongRope([1.0] * n, [1.5 + i for i in range(n)], factor=4.0),
}
"""Schedules whose table follows the length."""
