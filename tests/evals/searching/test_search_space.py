"""The schedules that a search chooses among: their tables, bounds, and how they are written."""

import json
import math

import pytest
import torch

import ropescale
from ropescale.evals.searching.search_space import Ramp
from ropescale.rope import Rope
from ropescale.schedules import Yarn, specs

ROPE = Rope(rotary_dim=64, theta=10000.0, original_length=256)
FOUND = (3.41, 14.73, math.log(7.6), math.log(1.202))


def by_hand(start, end, factor, rope=ROPE):
    """The family's formula with plain floats, pair by pair."""
    base = [rope.theta ** (-2 * i / rope.rotary_dim) for i in range(rope.rotary_dim // 2)]
    ramp = [min(max((i - start) / (end - start), 0.0), 1.0) for i in range(len(base))]
    return [b * ((1 - r) + r / factor) for b, r in zip(base, ramp, strict=True)]


def relative(found, wanted):
    return max(abs(f / w - 1) for f, w in zip(found, wanted, strict=True))


def table(member, point):
    inv_freq, scale = member.table(torch.tensor(point, dtype=torch.float64))
    return inv_freq.tolist(), float(scale)


def test_it_starts_at_yarns_default():
    ramp = Ramp(ROPE, 8.0)
    assert ramp.start == pytest.approx((0, 13, math.log(8), math.log(0.1 * math.log(8) + 1)))
    inv_freq, scale = table(ramp, ramp.start)
    default = Yarn(factor=8)(ROPE, 2048)
    assert relative(inv_freq, default.inv_freq) < 1e-14
    assert scale == pytest.approx(default.attention_scale, rel=1e-15)


@pytest.mark.parametrize("rope", [ROPE, Rope(32, 500000.0, 512), Rope(128, 500000.0, 8192), Rope(64, 150000.0, 4096)])
@pytest.mark.parametrize("ends", [(0.0, 0.01), (3.41, 14.73), (0.0, 31.0), (7.5, 9.25), (11.99, 31.0)])
def test_the_table_is_the_formula_and_yarn_written_from_its_ends_is_that_table(rope, ends, tmp_path):
    ramp, point = Ramp(rope, 8.0), (*ends, math.log(7.6), math.log(1.3))
    schedule = ramp.schedule(point)
    assert isinstance(schedule, Yarn) and not schedule.truncate
    file = tmp_path / "factors.json"
    file.write_text(json.dumps(specs.to_dict(schedule)))
    learned = table(ramp, point)
    assert relative(learned[0], by_hand(*ends, 7.6, rope)) < 1e-14 and learned[1] == pytest.approx(1.3, rel=1e-15)
    for written in (schedule, specs.parse(str(file)).build()):
        assert relative(written(rope, 1).inv_freq, learned[0]) < 1e-12
        assert written(rope, 1).attention_scale == pytest.approx(learned[1], rel=1e-12)


def test_numbers_are_kept_within_the_bounds():
    ramp = Ramp(ROPE, 8.0)
    assert ramp.nearest((-3.0, 70.0, -1.0, 0.2)) == (0.0, 63.0, math.log(8), 0.2)
    start, end, *_ = ramp.nearest((20.0, 10.0, 2.0, 0.2))
    assert 0 < end - start < 0.02


def test_on_a_table_that_is_not_thetas_own_the_result_is_a_table():
    rope = Rope(8, 10000.0, 64, table=(1.0, 0.3, 0.05, 0.001), table_scale=1.1)
    ramp = Ramp(rope, 4.0)
    point = (0.5, 2.5, math.log(4), 0.1)
    written = ramp.schedule(point)(rope, 1)
    assert relative(written.inv_freq, table(ramp, point)[0]) < 1e-12
    assert written.attention_scale == pytest.approx(1.1 * math.exp(0.1), rel=1e-12)


def test_where_the_numbers_come_from_is_no_field_of_the_schedule(tmp_path):
    file = tmp_path / "factors.json"
    file.write_text(json.dumps({"name": "yarn", "factor": 8, "provenance": {"tokens_spent": 1, "factor": 3}}))
    assert specs.parse(str(file)).build() == Yarn(factor=8)
    parsed = specs.parse({"full_attention": {"name": "yarn", "factor": 2}, "provenance": {}})
    assert list(parsed) == ["full_attention"]
    assert ropescale.schedules.create("yarn", factor=8) == Yarn(factor=8)
