"""The schedules that a search chooses among: their tables, bounds, and how they are written."""

import json
import math

import pytest
import torch
from configurations import CONFIG

import ropescale
from ropescale.engines import ENGINES
from ropescale.engines.base import layers_of
from ropescale.evals.searching.options import plan_of_start
from ropescale.evals.searching.results import commands
from ropescale.evals.searching.search_space import Ramp, space_of
from ropescale.planning.plan import make_plan
from ropescale.request import Request
from ropescale.rope import Rope
from ropescale.schedules import Yarn, specs

ROPE = Rope(rotary_dim=64, theta=10000.0, original_length=256)


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


def test_it_starts_at_yarns_default_or_at_a_ramp_that_is_known_to_be_good():
    ramp = Ramp(ROPE, 8.0)
    assert ramp.start == pytest.approx((0, 13, math.log(8), math.log(0.1 * math.log(8) + 1)))
    for start, yarn in zip(ramp.starts, [Yarn(factor=8), Yarn(8, beta_fast=16, beta_slow=0.5, truncate=False)]):
        inv_freq, scale = table(ramp, start)
        wanted = yarn(ROPE, 2048)
        assert relative(inv_freq, wanted.inv_freq) < 1e-14 and scale == pytest.approx(wanted.attention_scale, rel=1e-15)


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


def test_whole_ends_are_those_that_yarn_rounds_to():
    ramp = Ramp(ROPE, 8.0, whole=True, scale="rule")
    point = (3.41, 14.73, math.log(7.6))
    schedule = ramp.schedule(point)
    assert schedule.truncate and schedule.attention_factor == pytest.approx(0.1 * math.log(7.6) + 1, rel=1e-15)
    inv_freq, scale = table(ramp, point)
    assert relative(schedule(ROPE, 1).inv_freq, inv_freq) < 1e-12
    assert relative(inv_freq, by_hand(3, 15, 7.6)) < 1e-14
    assert scale == pytest.approx(0.1 * math.log(7.6) + 1, rel=1e-15) == schedule(ROPE, 1).attention_scale


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
    assert list(parsed) == ["full_attention"] and ropescale.schedules.create("yarn", factor=8) == Yarn(factor=8)


# --- for an engine, and with the model's own table kept for short text ---


def shape(engine, config=CONFIG):
    space = space_of(plan_of_start(config, 2048, {}), 2048, engine)
    return next(iter(space.families.values())), space


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "llama.cpp"])
def test_an_engine_computes_what_is_searched_for_it(engine):
    found, space = shape(engine)
    point = space.nearest([value + away for value, away in zip(space.start, (1.3, 1.9, 0.04, 0.03), strict=False)])
    plan = make_plan(CONFIG, Request(space.schedule(point)))
    differences = [each for layers in layers_of(plan) for each in ENGINES[engine].differences(layers)]
    assert not any(each.deviates for each in differences), (found, differences)


def test_most_freedom_is_kept_and_llama_cpp_is_told_by_its_flags():
    engines = ("transformers5", "mlx-lm", "sglang", "llama.cpp")
    found = {engine: (shape(engine)[0].scale, shape(engine)[0].whole) for engine in engines}
    assert found == dict(zip(engines, [("free", False), ("rule", True), ("rule", False), ("free", True)], strict=True))


@pytest.mark.parametrize(("engine", "by_folder"), [("vllm", True), ("mlx-lm", True), ("llama.cpp", False)])
def test_what_comes_next_is_the_engines_own_command(engine, by_folder):
    _, space = shape(engine)
    point = space.nearest([value + away for value, away in zip(space.start, (1.3, 1.9, 0.04, 0.03), strict=False)])
    plan = make_plan(CONFIG, Request(space.schedule(point), layers="all"))
    patched = "ropescale patch MODEL -o OUT --schedule f.json --layers all"
    assert commands("MODEL", "f.json", plan, None) == [patched]
    exported = f"ropescale export OUT --for {engine}"
    alone = f"ropescale export MODEL --for {engine} --schedule f.json --layers all"
    assert commands("MODEL", "f.json", plan, engine) == ([alone] if engine == "llama.cpp" else [patched, exported])
