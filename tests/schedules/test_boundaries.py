"""The edges of the formulas: defaults from the papers, limits of ramps, and where a native form would not be exact."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ropescale import Rope
from ropescale.schedules import create

ROPE = Rope(64, 10_000.0, 4096)


@pytest.mark.parametrize(
    ("name", "needed", "defaults"),
    [
        ("yarn", {"factor": 2}, {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True, "extrapolation_factor": 1.0}),
        ("ntk-by-parts", {"factor": 2}, {"beta_fast": 32.0, "beta_slow": 1.0}),
        ("llama3", {"factor": 2}, {"low_freq_factor": 1.0, "high_freq_factor": 4.0}),
        ("proportional", {"partial_rotary_factor": 0.5}, {"factor": 1.0}),
    ],
)
def test_defaults_are_those_of_the_papers(name, needed, defaults):
    schedule = create(name, **needed)
    assert {field: getattr(schedule, field) for field in defaults} == defaults


@pytest.mark.parametrize(("factor", "scale"), [(1.0, 1.0), (1.5, math.sqrt(1 + math.log(1.5) / math.log(4096)))])
def test_longrope_scales_attention_for_every_stretch(factor, scale):
    ones = (1.0,) * ROPE.pairs
    schedule = create("longrope", short_factor=ones, long_factor=ones, factor=factor)
    assert schedule(ROPE, 4096).attention_scale == scale


def test_a_ramp_without_width_is_a_step_that_keeps_only_more_turns():
    """Pair 16 makes exactly the turns of both ends, so it is not kept."""
    ends = ROPE.turns()[16]
    found = create("ntk-by-parts", factor=4.0, beta_fast=ends, beta_slow=ends)(ROPE, 4096).inv_freq
    assert list(found) == [f if pair < 16 else f / 4 for pair, f in enumerate(ROPE.inv_freq())]


@pytest.mark.parametrize("name", ["ntk-by-parts", "longrope"])
@pytest.mark.parametrize("change", [{"table": tuple(f / 2 for f in ROPE.inv_freq())}, {"rotated_pairs": 16}])
def test_a_formula_is_not_written_where_transformers_would_start_from_another_series(name, change):
    pairs = (1.0,) * ROPE.pairs
    fields = {"short_factor": pairs, "long_factor": pairs} if name == "longrope" else {}
    schedule = create(name, factor=2.0, **fields)
    assert schedule.rope_parameters(ROPE) is not None
    assert schedule.rope_parameters(replace(ROPE, **change)) is None


def test_yarns_ramp_ends_at_the_last_coordinate_however_long_the_training_was():
    """As in transformers, ``high = min(ceil(pair), d - 1)``: here beta_slow's pair, 8.2, lies beyond it."""
    rope = Rope(8, 10_000.0, 10**9)
    assert rope.pair_at(1.0) > rope.rotary_dim - 1
    low, high = math.floor(rope.pair_at(1e6)), rope.rotary_dim - 1
    kept = [1 - min(max((pair - low) / (high - low), 0.0), 1.0) for pair in range(rope.pairs)]
    wanted = [k * f + (1 - k) * f / 4 for k, f in zip(kept, rope.inv_freq())]
    assert list(create("yarn", factor=4.0, beta_fast=1e6)(rope, 10**9).inv_freq) == pytest.approx(wanted, rel=1e-12)
    assert low == 2 and 0 < kept[-1] < 1
