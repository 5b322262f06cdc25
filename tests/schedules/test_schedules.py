"""Closed forms, degenerate inputs, and what holds for every schedule."""

import dataclasses
import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ropescale import schedules as sch
from ropescale.errors import ScheduleError
from ropescale.rope import Rope
from ropescale.schedules.fields import parameters

ROPE = Rope(64, 10_000.0, 4096)
PAIRS = ROPE.pairs
GROWING = tuple(1 + 0.25 * i for i in range(PAIRS))

# One of each. A new schedule needs its case here: the first test below says so.
EXAMPLES: dict[str, sch.BuiltIn] = {
    "as-is": sch.AsIs(), "base": sch.Base(), "linear": sch.Linear(8), "ntk": sch.Ntk(8), "ntk-su": sch.NtkSu(8),
    "ntk-mixed": sch.NtkMixed(8), "ntk-critical": sch.NtkCritical(8), "abf": sch.Abf(1e6), "dynamic": sch.Dynamic(8),
    "ntk-by-parts": sch.NtkByParts(8), "yarn": sch.Yarn(8), "dynamic-yarn": sch.DynamicYarn(),
    "longrope": sch.LongRope((1.0,) * PAIRS, GROWING, factor=8), "llama3": sch.Llama3(8),
    "proportional": sch.Proportional(0.5, 8), "giraffe": sch.Giraffe(0.5, 2048), "cope": sch.Cope(),
    "resonance": sch.Resonance(sch.Yarn(8)), "table": sch.Table(factors=GROWING, attention_factor=1.1),
}  # fmt: skip

LOOK_AT_TURNS = {"yarn", "dynamic-yarn", "ntk-by-parts", "llama3", "cope", "ntk-critical"}
LENGTH_DEPENDENT = {"dynamic", "dynamic-yarn", "longrope"}
ONES = (1.0,) * PAIRS
GEOMETRIES = [ROPE, Rope(128, 500_000.0, 8192), Rope(16, 1e4, 64, head_dim=64), Rope(2, 1e4, 128)]


def geometric(rope: Rope) -> list[float]:
    """theta^(-2i/d), written out again."""
    return [math.exp(-2 * i / rope.rotary_dim * math.log(rope.theta)) for i in range(rope.pairs)]


def ratios(schedule: Callable[..., Any], rope: Rope = ROPE, length: int | None = None) -> list[float]:
    """How many times slower each pair became."""
    return [b / f for b, f in zip(geometric(rope), sch.compute(schedule, rope, length).inv_freq)]


def test_every_registered_schedule_has_its_case_here():
    assert sch.names() == list(EXAMPLES)
    assert all(type(schedule) is sch.lookup(name) for name, schedule in EXAMPLES.items())


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_a_schedule_says_what_it_does_survives_json_and_looks_at_the_length_only_where_it_says_so(name):
    cls, schedule = sch.lookup(name), EXAMPLES[name].bound(ROPE)
    assert cls.paper and len((cls.__doc__ or "").splitlines()) > 2
    assert all(f"{field.name}:" in (cls.__doc__ or "") for field in dataclasses.fields(cls))  # type: ignore[arg-type]
    assert sch.parse(sch.to_dict(EXAMPLES[name])).build() == EXAMPLES[name]
    assert schedule.length_dependent == (name in LENGTH_DEPENDENT)
    assert (sch.compute(schedule, ROPE, 4096) != sch.compute(schedule, ROPE, 32_768)) == (name in LENGTH_DEPENDENT)


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - {"resonance", "giraffe"}))
@pytest.mark.parametrize("length", [1, 4096, 4097, 131_072])
def test_pairs_stay_in_order_and_never_turn_faster(name, length):
    inv_freq = list(sch.compute(EXAMPLES[name], ROPE, length).inv_freq)
    assert inv_freq == sorted(inv_freq, reverse=True)
    assert all(f <= b * (1 + 1e-15) for f, b in zip(inv_freq, ROPE.inv_freq()))


ONE = [sch.NtkCritical(1), sch.Proportional(1, 1), sch.LongRope(ONES, ONES, factor=1), sch.Table(factors=ONES)]
FACTOR_ONE = ["linear", "ntk", "ntk-su", "ntk-mixed", "dynamic", "ntk-by-parts", "yarn", "llama3"]


def test_factor_one_is_base_bit_for_bit():
    for schedule in ONE:
        assert sch.compute(schedule, ROPE) == sch.Frequencies(ROPE.inv_freq(), 1.0)
    for name, factor, rope in itertools.product(FACTOR_ONE, (1, 1.0), GEOMETRIES):
        assert sch.compute(sch.create(name, factor=factor), rope) == sch.Frequencies(rope.inv_freq(), 1.0), (name, rope)


def test_base_linear_and_abf_are_the_geometric_series():
    assert list(sch.compute(sch.Base(), ROPE).inv_freq) == pytest.approx(geometric(ROPE), rel=1e-15)
    assert ratios(sch.Linear(8)) == pytest.approx([8.0] * PAIRS, rel=1e-14)
    assert list(sch.compute(sch.Abf(500_000), ROPE).inv_freq) == pytest.approx(geometric(Rope(64, 5e5, 1)), rel=1e-15)


@pytest.mark.parametrize("rope", GEOMETRIES[:3], ids=str)
@pytest.mark.parametrize("factor", [2, 8, 31.5])
def test_ntk_leaves_the_first_pair_and_divides_the_last_by_exactly_the_factor(rope, factor):
    slower = ratios(sch.Ntk(factor), rope)
    assert slower[0] == 1.0 and slower[-1] == pytest.approx(factor, rel=1e-13)
    assert slower == pytest.approx([factor ** (2 * i / (rope.rotary_dim - 2)) for i in range(rope.pairs)], rel=1e-13)


def test_ntk_su_divides_the_first_pair_too_and_ntk_mixed_lies_between_it_and_linear():
    assert ratios(sch.NtkSu(8))[0] == pytest.approx(8 ** (2 / 64), rel=1e-14)
    assert ratios(sch.NtkSu(8))[-1] == pytest.approx(8, rel=1e-13)
    assert ratios(sch.NtkMixed(8, b=0)) == pytest.approx(ratios(sch.Linear(8)), rel=1e-13)
    assert ratios(sch.NtkMixed(8, b=1)) == pytest.approx(ratios(sch.NtkSu(8)), rel=1e-13)
    assert ratios(sch.NtkMixed(8))[-1] == pytest.approx(8, rel=1e-13)


def test_ntk_critical_is_the_published_theta_for_llama_3_at_128k():
    form = sch.NtkCritical(16).rope_parameters(Rope(128, 5e5, 8192))
    assert form is not None
    assert form["rope_theta"] == pytest.approx(7.98e7, rel=1e-3)  # LongRoPE2, section 2


def test_ntk_critical_divides_the_critical_pair_by_exactly_the_factor():
    slower = ratios(sch.NtkCritical(8, critical_pair=20))
    assert slower == pytest.approx([8 ** (i / 20) for i in range(PAIRS)], rel=1e-13)
    assert ratios(sch.NtkCritical(8)) == pytest.approx([8 ** (i / ROPE.pair_at(1)) for i in range(PAIRS)], rel=1e-13)


def test_cope_multiplies_the_slow_pairs_by_half_a_cosine():
    slow = [pair for pair, turns in enumerate(ROPE.turns()) if turns < 1]
    before, after = geometric(ROPE), list(sch.compute(sch.Cope(), ROPE).inv_freq)
    assert len(slow) == 9
    assert after[:23] == pytest.approx(before[:23], rel=1e-15)
    hann = [math.cos(math.pi / 2 * k / 8) ** 2 for k in range(9)]
    assert after[23:] == pytest.approx([b * h for b, h in zip(before[23:], hann)], rel=1e-13, abs=1e-20)
    assert after[23] == ROPE.inv_freq()[23]
    assert after[-1] == 0


def test_cope_leaves_out_pairs_that_never_turn():
    rope = Rope(64, 10_000.0, 4096, rotated_pairs=16)
    after = sch.compute(sch.Cope(clipped_pairs=4), rope).inv_freq
    assert list(after[:13]) == rope.inv_freq()[:13] and after[15] == 0
    assert after[14] == pytest.approx(rope.inv_freq()[14] / 4, rel=1e-13)


def test_dynamic_grows_from_base_at_the_trained_length():
    assert sch.compute(sch.Dynamic(2), ROPE, 4096) == sch.compute(sch.Base(), ROPE)
    assert ratios(sch.Dynamic(2), length=3 * 4096)[-1] == pytest.approx(2 * 3 - 1, rel=1e-13)


def test_ntk_by_parts_is_linear_in_turns():
    theta = 4.0
    rope = Rope(8, theta, 16)  # pairs turn 16/(2 pi), /sqrt 2 each: 2.546, 1.801, 1.273, 0.900
    slower = ratios(sch.NtkByParts(4, beta_fast=2, beta_slow=1), rope)
    kept = [16 * theta ** (-2 * i / 8) / (2 * math.pi) - 1 for i in (1, 2)]
    assert slower == pytest.approx([1, *(1 / (k + (1 - k) / 4) for k in kept), 4], rel=1e-13)


def test_yarn_of_factor_one_is_written_as_plain_rope_unless_it_scales_attention():
    assert sch.Yarn(1).rope_parameters(ROPE) == {"rope_type": "default"}
    for scaled in (sch.Yarn(2, attention_factor=1), sch.Yarn(1, attention_factor=2)):
        assert (scaled.rope_parameters(ROPE) or {})["rope_type"] == "yarn"
    assert sch.compute(sch.Yarn(8, mscale=2), ROPE) == sch.compute(sch.Yarn(8), ROPE)  # DeepSeek's ratio takes both


def test_dynamic_yarn_is_base_up_to_the_trained_length_and_then_yarn_at_the_stretch_of_the_moment():
    for length in (1, 4096):
        assert sch.compute(sch.DynamicYarn(attention_factor=1.5), ROPE, length) == sch.compute(sch.Base(), ROPE)
    assert sch.compute(sch.DynamicYarn(beta_fast=16), ROPE, 4096 * 5) == sch.compute(sch.Yarn(5, beta_fast=16), ROPE)


def test_longrope_switches_one_token_past_the_trained_length():
    schedule = EXAMPLES["longrope"]
    assert ratios(schedule, length=4096) == pytest.approx([1.0] * PAIRS, rel=1e-14)
    assert ratios(schedule, length=4097) == pytest.approx(GROWING, rel=1e-14)
    for factor in (1, 1.5, 8):
        scale, lists = math.sqrt(1 + math.log(factor) / math.log(4096)), replace(schedule, factor=factor)
        assert {sch.compute(lists, ROPE, length).attention_scale for length in (1, 4096, 9999)} == {scale}


def test_longrope_with_one_list_does_not_depend_on_the_length():
    assert sch.LongRope.length_dependent is True
    assert sch.LongRope(GROWING, GROWING).length_dependent is False
    assert sch.LongRope(list(GROWING), GROWING).length_dependent is False  # type: ignore[arg-type]


def test_proportional_stops_the_slow_pairs_and_spreads_over_the_head():
    inv_freq = sch.compute(sch.Proportional(0.5, 2), ROPE).inv_freq
    assert list(inv_freq) == pytest.approx([*(b / 2 for b in geometric(ROPE)[:16]), *[0.0] * 16], rel=1e-15)


def test_giraffe_truncates_at_the_wavelengths_its_paper_gives():
    cutoff = 2 * math.pi / 2048
    for before, after in zip(geometric(ROPE), sch.compute(sch.Giraffe(truncate=2048), ROPE).inv_freq):
        expected = before if before >= cutoff else cutoff / 16 if before >= cutoff / 8 else 0
        assert after == pytest.approx(expected, rel=1e-14)
    slower = ratios(sch.Giraffe(scale_power=2))  # which reaches zero only past the last pair
    assert (slower[0], slower[-1]) == (1, pytest.approx(32**2, rel=1e-12))


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_resonance_rounds_every_wavelength_of_any_schedule(name):
    below, above = (sch.compute(s, ROPE, 9000) for s in (EXAMPLES[name], sch.Resonance(EXAMPLES[name])))
    assert above.attention_scale == below.attention_scale
    for slow, rounded in zip(below.inv_freq, above.inv_freq):
        if slow == 0:
            assert rounded == 0
        else:
            tokens = 2 * math.pi / rounded
            assert tokens == pytest.approx(round(tokens), rel=1e-12)
            assert abs(tokens - 2 * math.pi / slow) <= 0.5 + 1e-9


def test_resonance_rounds_half_to_even_and_refuses_a_pair_that_turns_more_than_twice_per_token():
    halves = sch.Table(inv_freq=tuple(2 * math.pi / w for w in (6.5, 7.5)))
    result = sch.compute(sch.Resonance(halves), Rope(4, 1e4, 64)).inv_freq
    assert [round(2 * math.pi / f, 9) for f in result] == [6, 8]
    with pytest.raises(ScheduleError, match="pair 1 turns by 13 radians per token"):
        sch.compute(sch.Resonance(sch.Table(inv_freq=(1.0, 13.0))), Rope(4, 1e4, 64))


def test_resonance_and_as_is_follow_the_length_where_what_they_hold_or_what_is_there_does():
    assert sch.Resonance(sch.Dynamic(2)).length_dependent is True
    assert sch.Resonance(sch.Yarn(2)).length_dependent is False
    for kind in ("dynamic", "linear"):
        there = replace(ROPE, scaling={"rope_type": kind, "factor": 2.0})
        for schedule in (sch.AsIs(), sch.Resonance(sch.AsIs())):
            assert schedule.bound(there).length_dependent is (kind == "dynamic")
            assert schedule.bound(ROPE).length_dependent is False
    assert sch.AsIs().length_dependent is True  # unbound: taking it for static could be wrong
    assert sch.AsIs().rope_parameters(ROPE) == {"rope_type": "default"}


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - {"resonance", "giraffe", "proportional"}))
def test_a_schedule_composes_on_a_table_that_is_there(name):
    # The table is theta's own series, halved: what goes by pair is halved, what goes by turns shifts.
    halved = replace(ROPE, table=tuple(b / 2 for b in ROPE.inv_freq()), table_scale=1.5)
    plain, on_top = (sch.compute(EXAMPLES[name], rope, 9000) for rope in (ROPE, halved))
    assert on_top.attention_scale == pytest.approx(1.5 * plain.attention_scale)
    if name not in LOOK_AT_TURNS:  # which are halved too
        assert list(on_top.inv_freq) == pytest.approx([f / 2 for f in plain.inv_freq], rel=1e-13)
    else:
        same_turns = replace(ROPE, original_length=ROPE.original_length // 2)
        there = sch.compute(EXAMPLES[name], same_turns, 4500)
        assert list(on_top.inv_freq) == pytest.approx([f / 2 for f in there.inv_freq], rel=1e-9)


@pytest.mark.parametrize("schedule", [sch.Ntk(2), sch.Dynamic(2)], ids=lambda s: s.name)
def test_a_rotary_dim_of_two_has_no_ntk_base(schedule):
    with pytest.raises(ScheduleError, match=r"rotary dim above 2.* 2"):
        sch.compute(schedule, Rope(2, 1e4, 128), 256)


@pytest.mark.parametrize("name", ["linear", "ntk-su", "ntk-mixed", "yarn", "ntk-by-parts", "llama3"])
def test_a_rotary_dim_of_two_has_one_pair_which_others_scale(name):
    # One turn per 6.28 tokens: 0.8 turns in 5 tokens, below every schedule's slow end. YaRN clamps its ramp to pair 0.
    found = sch.compute(sch.create(name, factor=4), Rope(2, 1e4, 5)).inv_freq
    assert list(found) == pytest.approx([1.0 if name == "yarn" else 0.25], rel=1e-14)


FACTORED = [name for name, example in EXAMPLES.items() if "factor" in parameters(example)]


NO_FACTORS = [
    (0.5, "factor must be 1 or more, not 0.5"),
    (math.nan, r"factor must be a number whose absolute value is below 1e\+100, not nan"),
    ("8", "factor must be a number, not '8'"),
    (True, "factor must be a number, not True"),
]


@pytest.mark.parametrize("name", FACTORED)
@pytest.mark.parametrize(("value", "problem"), NO_FACTORS)
def test_a_factor_that_cannot_be_is_one_clear_sentence(name, value, problem):
    fields = {each: getattr(EXAMPLES[name], each) for each in parameters(EXAMPLES[name])} | {"factor": value}
    for make in (lambda: sch.create(name, **fields), lambda: sch.lookup(name)(**fields)):
        with pytest.raises(ScheduleError, match=f"^{name}: {problem}$"):
            make()


UNBUILT = [
    (lambda: sch.create("abf"), "abf needs rope_theta"),
    (lambda: sch.Abf(1.0), "abf: rope_theta must be greater than 1, not 1.0"),
    (lambda: sch.Yarn(8, beta_fast=1, beta_slow=32), "beta_fast is 1 and beta_slow is 32"),
    (lambda: sch.Yarn(8, beta_slow=0), "yarn: beta_slow must be greater than 0"),
    (lambda: sch.Proportional(1.5), "a share from 0 to 1, not 1.5"),
    (lambda: sch.compute(sch.Cope(), Rope(8, 100.0, 4096)), "this model has 0; give clipped_pairs"),
    (lambda: sch.compute(sch.NtkCritical(8), Rope(8, 1e4, 6)), "ntk-critical needs a pair that makes a full turn"),
    (lambda: sch.compute(sch.Proportional(0.5), Rope(16, 1e4, 128, head_dim=64)), "rotates 16 of 64 coordinates"),
    (lambda: sch.compute(sch.NtkCritical(9, critical_pair=0.01), ROPE), "infinite theta"),
    (lambda: sch.Giraffe(), "giraffe needs scale_power, truncate, or both"),
    (lambda: sch.Table(), "either inv_freq or factors, one number per pair, and not both"),
    (lambda: sch.Table(factors=(1.0, 0.0)), "table: factors must be greater than 0, not 0.0"),
    (lambda: sch.Table(inv_freq=(1.0, -1.0)), "table: inv_freq must be 0 or more, not -1.0"),
    (lambda: sch.create("longrope", short_factor=[1.0]), "longrope needs long_factor"),
]


@pytest.mark.parametrize(("make", "message"), UNBUILT)
def test_what_cannot_be_built_says_what_to_do(make, message):
    with pytest.raises(ScheduleError) as caught:
        make()
    assert message in str(caught.value)


WRONG_LISTS = [
    (sch.Table(factors=(1.0,) * 3), "table: factors has 3 numbers, and this model rotates 32 pairs"),
    (sch.LongRope((1.0,) * 16, (1.0,) * 32), "longrope: short_factor has 16 numbers"),
]


@pytest.mark.parametrize(("schedule", "message"), WRONG_LISTS)
def test_a_list_of_the_wrong_length_is_named_at_every_length(schedule, message):
    for length in (1, 100_000):
        with pytest.raises(ScheduleError, match=message):
            sch.compute(schedule, ROPE, length)


def test_a_table_takes_the_frequencies_of_any_schedule_and_keeps_them_in_a_file(tmp_path):
    wanted = sch.compute(EXAMPLES["giraffe"], ROPE)
    assert 0.0 in wanted.inv_freq
    assert len({sch.create("table", factors=[1.0, 2.0]), sch.Table(factors=(1.0, 2.0))}) == 1
    saved, table = tmp_path / "factors.json", sch.Table.of(replace(wanted, attention_scale=1.25), ROPE)
    saved.write_text(json.dumps(sch.to_dict(table)))
    read = sch.compute(sch.resolve(str(saved), ROPE), ROPE)
    assert list(read.inv_freq) == pytest.approx(list(wanted.inv_freq), rel=1e-15, abs=1e-30)
    assert read.attention_scale == 1.25


RETURNED = [
    (None, "returned NoneType; it must return Frequencies"),
    (sch.Frequencies([1.0]), "returned 1 frequencies; this model rotates 32 pairs"),
    (sch.Frequencies([-1.0] * 32), "returned -1.0 for pair 0"),
    (sch.Frequencies([math.nan] * 32), "returned nan for pair 0"),
    (sch.Frequencies(["a"] * 32), "returned inv_freq that is not a list of numbers"),  # type: ignore[list-item]
    (sch.Frequencies([1.0] * 32, 0.0), "attention_scale 0.0; it must be a positive number"),
    (sch.Frequencies([1.0] * 32, "1"), "attention_scale '1'"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("returned", "message"), RETURNED)
def test_what_a_users_schedule_returns_is_checked(returned, message):
    def mine(rope: Rope, length: int) -> Any:
        return returned

    with pytest.raises(ScheduleError, match="schedule mine") as caught:
        sch.compute(mine, ROPE)
    assert message in str(caught.value)


def test_a_users_schedule_that_raises_is_named():
    def mine(*given: Any) -> sch.Frequencies:
        raise ZeroDivisionError("no")

    with pytest.raises(ScheduleError, match="schedule mine raised ZeroDivisionError: no"):
        sch.compute(mine, ROPE)


# ---------------------------------------------------------------------------------------------------------
# The edges of the formulas: defaults from the papers, limits of ramps, and where a native form would not be exact


def test_defaults_are_those_of_the_papers():
    assert (sch.Llama3(2).low_freq_factor, sch.Llama3(2).high_freq_factor) == (1, 4)
    for ramped in (sch.NtkByParts(2), sch.Yarn(2)):
        assert (ramped.beta_fast, ramped.beta_slow) == (32, 1)
    assert (sch.Yarn(2).truncate, sch.Yarn(2).extrapolation_factor, sch.Proportional(0.5).factor) == (True, 1, 1)


def test_a_ramp_without_width_is_a_step_that_keeps_only_more_turns():
    """Pair 16 makes exactly the turns of both ends, so it is not kept."""
    ends = ROPE.turns()[16]
    for step in (sch.NtkByParts(4, beta_fast=ends, beta_slow=ends), sch.Llama3(4, ends, ends)):
        assert list(step(ROPE, 4096).inv_freq) == [f if pair < 16 else f / 4 for pair, f in enumerate(ROPE.inv_freq())]


def test_a_formula_is_not_written_where_transformers_would_start_from_another_series():
    lists = sch.LongRope(ONES, GROWING)
    follow_turns = [sch.Dynamic(2), sch.NtkByParts(2), sch.Yarn(2), sch.Llama3(2), lists]
    schedules = [sch.Base(), sch.Linear(2), sch.Ntk(2), sch.Abf(1e6), sch.Proportional(0.5), *follow_turns]
    assert all(schedule.rope_parameters(ROPE) for schedule in schedules)
    on_top, part = replace(ROPE, table=tuple(f / 2 for f in ROPE.inv_freq())), replace(ROPE, rotated_pairs=16)
    assert not any(schedule.rope_parameters(on_top) for schedule in schedules)
    assert not any(schedule.rope_parameters(part) for schedule in follow_turns)


def test_yarns_ramp_ends_at_the_last_coordinate_however_long_the_training_was():
    """As in transformers, ``high = min(ceil(pair), d - 1)``: here beta_slow's pair, 8.2, lies beyond it."""
    rope = Rope(8, 10_000.0, 10**9)
    assert rope.pair_at(1.0) > rope.rotary_dim - 1
    low, high = math.floor(rope.pair_at(1e6)), rope.rotary_dim - 1
    kept = [1 - min(max((pair - low) / (high - low), 0.0), 1.0) for pair in range(rope.pairs)]
    wanted = [k * f + (1 - k) * f / 4 for k, f in zip(kept, rope.inv_freq())]
    assert list(sch.create("yarn", factor=4.0, beta_fast=1e6)(rope, 10**9).inv_freq) == pytest.approx(wanted, rel=1e-12)
    assert low == 2 and 0 < kept[-1] < 1
