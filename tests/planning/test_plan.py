"""Plans for a configuration: the numbers, the keys, the maximum, and the engines that compute otherwise."""

import json
import math
from fractions import Fraction
from typing import Any

import configurations
import numpy as np
import pytest
import torch
from configurations import GPT_OSS, LISTS, LLAMA, LLAMA31, PHI3_128K, QWEN3, YARN_32, in_v5, plain, write_checkpoint
from model_kinds import GEMMA3, OLMO3, PHI3, PLANNED as MODELS
from own_schedules import Half, LargerTheta, Stretching
from planning import make_plan, read_back
from rotary_modules import assert_same_tables, quiet, rotary_classes, stock_config, stock_tables
from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

import ropescale
from ropescale import Frequencies, Rope
from ropescale.configs.configuration import read_rope
from ropescale.errors import ConfigError, ScheduleError
from ropescale.schedules import AsIs, Resonance, Table, Yarn, compute, create
from ropescale.schedules.as_is import stock_table

# A schedule without a form of its own in transformers, except where its betas are llama3's.
PARTS = "ntk-by-parts:factor=4"

# A schedule that only one factor per pair can carry.
PER_PAIR = "yarn:factor=4,extrapolation_factor=0.5"


def series(theta: float, dim: int) -> list[float]:
    """The closed form of plain RoPE."""
    return [theta ** (-2 * i / dim) for i in range(dim // 2)]


# ---------------------------------------------------------------------------------------------------------
# max_position_embeddings


MAXIMA = [
    ("yarn:factor=8", 32768, 32768), ("llama3:factor=8", 32768, 32768), ("ntk:factor=8", 32768, 32768),
    (PER_PAIR, 16384, 16384), ("ntk-su:factor=4", 16384, 16384), (Half(8, 1.25), 32768, 32768),
    ("resonance:over=yarn,factor=8", 32768, 32768), ("linear:factor=8", 4096, 32768),
    (f"linear:factor={2**28}", 4096, 2**40),
    ("dynamic:factor=8", 4096, 32768), ("abf:rope_theta=1e6", 4096, 4096), ("yarn:factor=2.5", 10240, 10240),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "maximum", "length"), MAXIMA)
def test_the_maximum_is_the_factor_times_the_original_except_where_engines_multiply(spec, maximum, length):
    plan = make_plan(LLAMA, spec)
    assert (plan.config["max_position_embeddings"], plan.length) == (maximum, length)
    assert plan.config["original_max_position_embeddings"] == 4096


@pytest.mark.parametrize("spec", ["abf:rope_theta=1e6", "base", "yarn", "ntk", Half(8, 1.25)])
def test_a_target_length_is_the_new_maximum(spec):
    plan = make_plan(LLAMA, spec, target_length=32768)
    assert plan.config["max_position_embeddings"] == plan.length == 32768


def test_the_maximum_of_a_scaled_proportional_model_stays_and_that_of_another_theta_grows():
    lfm3 = {"model_type": "lfm3", "max_position_embeddings": 8192}
    scaled = make_plan(lfm3, "linear:factor=4", layers="full_attention").config
    assert scaled["rope_parameters"]["full_attention"]["rope_type"] == "proportional"
    assert scaled["rope_parameters"]["full_attention"]["factor"] == 4.0
    assert scaled["max_position_embeddings"] == 8192
    widened = make_plan(lfm3, "abf:rope_theta=5e6", target_length=16384).config
    assert widened["rope_parameters"]["full_attention"]["rope_type"] == "proportional"
    assert widened["max_position_embeddings"] == 16384


def test_the_maximum_grows_when_one_layer_type_needs_it_and_another_would_keep_it():
    spec = {"full_attention": "yarn:factor=4", "sliding_attention": "linear:factor=2"}
    assert make_plan(GEMMA3, spec).config["max_position_embeddings"] == 32768
    spec = {"full_attention": "linear:factor=4", "sliding_attention": "dynamic:factor=2"}
    assert make_plan(GEMMA3, spec).config["max_position_embeddings"] == 8192


def test_the_maximum_of_phi3_is_the_one_from_which_its_code_derives_the_attention_scale():
    plan = make_plan(PHI3, "yarn:factor=8")
    scale = 0.1 * math.log(8) + 1
    assert plan.config["max_position_embeddings"] == round(4096 ** (scale * scale)) == 186595
    assert plan.length == 32768
    assert any("max_position_embeddings" in note and "186595" in note for note in plan.notes)


# ---------------------------------------------------------------------------------------------------------
# Both key sets, and what stock transformers makes of them

SPECS = ["linear:factor=4", "yarn:factor=4", "llama3:factor=4", "ntk:factor=4", "abf:rope_theta=3e6", PARTS, PER_PAIR]


# Where every pair that turns is too fast for the ramp to reach: an error, tested below.
FAST = [("gemma4", spec) for spec in ("yarn:factor=4", "llama3:factor=4", PARTS)]


@pytest.mark.parametrize(("name", "spec"), [(m, s) for m in MODELS for s in SPECS if (m, s) not in FAST])
def test_what_is_written_reads_back_the_same_here_and_in_stock_transformers(name, spec):
    plan = make_plan(MODELS[name], spec, layers="all", replace_scaling=True)
    assert set(plan.tables) == set(read_rope(plan.config))
    found = read_back(plan.config, plan.length)
    for key, table in plan.tables.items():
        assert found[key].inv_freq == pytest.approx(table.inv_freq, rel=1e-12, abs=1e-25)
        assert found[key].attention_scale == pytest.approx(table.attention_scale, abs=1e-6)
    assert_same_tables(plan.tables, stock_tables(plan.config))


@pytest.mark.parametrize("model_type", ["olmo3", "gemma3_text", "gemma3n_text", "deepseek_v4"])
def test_the_trained_length_that_one_layer_type_records_is_that_of_all(model_type):
    config = {key: OLMO3[key] for key in OLMO3 if key not in ("layer_types", "num_hidden_layers")}
    config["model_type"] = model_type
    assert {rope.original_length for rope in read_rope(config).values()} == {8192}
    plan = make_plan(config, "yarn:factor=16", layers="all", replace_scaling=True)
    assert plan.length == plan.config["max_position_embeddings"] == 131072
    assert len(plan.ropes) == 2 and {rope.original_length for rope in plan.ropes.values()} == {8192}
    assert_same_tables(plan.tables, stock_tables(plan.config))


def test_olmo_3_is_extended_in_all_layers_by_the_closed_form_of_yarn():
    plan = make_plan(OLMO3, "yarn:factor=16", layers="all", replace_scaling=True)
    low, high = (64 * math.log(8192 / (turns * 2 * math.pi)) / math.log(500000) for turns in (32, 1))
    low, high = math.floor(low), math.ceil(high)
    ramp = [min(max((i - low) / (high - low), 0), 1) for i in range(64)]
    wanted = [f / 16 * r + f * (1 - r) for f, r in zip(series(500000, 128), ramp)]
    for table in plan.tables.values():
        assert list(table.inv_freq) == pytest.approx(wanted, rel=1e-12)
    top = make_plan(OLMO3, "linear:factor=2", layers="all", on_top=True)
    assert {rope.original_length for rope in top.ropes.values()} == {65536}
    assert_same_tables(top.tables, stock_tables(top.config))


# ---------------------------------------------------------------------------------------------------------
# Keys that the model does not look at


WHOLE_HEADS = {"llama": LLAMA, "qwen3": QWEN3, "gemma3_text": GEMMA3}
WHOLE_HEADS["deepseek_v3"] = {key: value for key, value in configurations.DEEPSEEK_V3.items() if key != "rope_scaling"}


@pytest.mark.parametrize("spec", ["linear:factor=4", "yarn:factor=4", PER_PAIR])
@pytest.mark.parametrize("name", WHOLE_HEADS)
def test_a_partial_factor_that_a_type_ignores_is_left_out_because_scaled_tables_would_follow_it(name, spec):
    plain = WHOLE_HEADS[name]
    said = plain | {"partial_rotary_factor": 0.5}
    assert_same_tables(read_back(said), stock_tables(said))
    plan, without = (make_plan(config, spec, layers="all") for config in (said, plain))
    assert plan.config == without.config
    assert any(note.startswith("partial_rotary_factor 0.5 is left out") for note in plan.notes)
    assert not any("left out" in note for note in without.notes)
    assert_same_tables(plan.tables, stock_tables(plan.config))


def test_a_partial_factor_that_a_type_ignores_is_found_inside_the_rope_parameters_too():
    plan = make_plan(in_v5(LLAMA, partial_rotary_factor=0.5), "linear:factor=4")
    assert "partial_rotary_factor" not in json.dumps(plan.config)
    assert list(plan.tables["all"].inv_freq) == pytest.approx([f / 4 for f in series(10000, 64)], rel=1e-14)
    assert_same_tables(plan.tables, stock_tables(plan.config))


def test_scaling_with_a_partial_factor_that_no_attention_of_the_type_can_use_is_refused():
    with pytest.raises(ConfigError, match=r"partial_rotary_factor 0\.5.*llama .*full heads"):
        make_plan(LLAMA31 | {"partial_rotary_factor": 0.5}, "yarn:factor=16", replace_scaling=True)


@pytest.mark.parametrize("spec", SPECS)
def test_both_key_sets_say_the_same_of_a_model_with_one_table(spec):
    new = make_plan(LLAMA, spec).config
    inner = {key: value for key, value in new["rope_parameters"].items() if key != "rope_theta"}
    assert new["rope_theta"] == new["rope_parameters"]["rope_theta"]
    assert new["rope_scaling"] == (None if inner == {"rope_type": "default"} else inner)
    v4_only = {key: value for key, value in new.items() if key != "rope_parameters"}
    v5_only = {key: value for key, value in new.items() if key not in ("rope_scaling", "rope_theta")}
    assert_same_tables(read_back(v4_only), stock_tables(v5_only))


def test_gemma3_gets_v4_keys_for_its_full_layers_and_keeps_the_sliding_theta():
    new = make_plan(GEMMA3, "yarn:factor=4").config
    assert new["rope_scaling"]["rope_type"] == "yarn" and new["rope_scaling"]["factor"] == 4.0
    assert (new["rope_theta"], new["rope_local_base_freq"]) == (1e6, 1e4)
    assert new["rope_parameters"]["sliding_attention"] == {"rope_type": "default", "rope_theta": 1e4}
    v4_only = {key: value for key, value in new.items() if key != "rope_parameters"}
    assert_same_tables(read_back(new), stock_tables(v4_only))


def test_modernbert_gets_no_v4_scaling_because_it_would_reach_its_local_layers():
    new = make_plan(MODELS["modernbert-decoder"], "abf:rope_theta=3e6").config
    assert "rope_scaling" not in new
    assert (new["global_rope_theta"], new["local_rope_theta"]) == (3e6, 1e4)


def test_a_multimodal_configuration_changes_in_its_text_section_alone():
    inner = {key: value for key, value in GEMMA3.items() if key != "model_type"}
    config = {"model_type": "gemma3", "mm_tokens_per_image": 256, "text_config": inner, "vision_config": {"a": 1}}
    new = make_plan(config, "yarn:factor=4").config
    assert new | {"text_config": inner} == config
    assert new["text_config"]["max_position_embeddings"] == 32768
    assert "rope_parameters" not in config["text_config"], "the source must not be written to"
    assert_same_tables(read_back(new), stock_tables({k: v for k, v in new.items() if k != "vision_config"}))


MROPE = LLAMA | {"model_type": "qwen2_vl_text", "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}}
OWN_KEYS = [
    (MROPE, "mrope_section", [8, 12, 12]),
    (configurations.MINISTRAL3, "llama_4_scaling_beta", 0.1),
    (configurations.MINISTRAL3, "original_max_position_embeddings", 16384),  # which its queries grow by
    (MODELS["stablelm"], "partial_rotary_factor", 0.25),
    (LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "their_own": "x"}}, "their_own", "x"),
]


@pytest.mark.parametrize(("config", "key", "value"), OWN_KEYS)
@pytest.mark.parametrize("spec", ["yarn:factor=4", "linear:factor=4", PER_PAIR])
def test_every_key_that_is_the_models_own_is_kept(config, key, value, spec):
    new = make_plan(config, spec, replace_scaling=True).config
    assert new["rope_parameters"][key] == value
    unrelated = {"hidden_size", "torch_dtype"} & (new.keys() | config.keys())
    assert {k: new[k] for k in unrelated} == {k: config[k] for k in unrelated}


@pytest.mark.parametrize("options", [{"on_top": True}, {"replace_scaling": True, "original_length": 32768}])
def test_the_temperature_of_ministral3_stays_where_a_schedule_starts_from_another_length(options):
    plan = make_plan(configurations.MINISTRAL3, "yarn", target_length=2**19, **options)
    read = stock_config(plan.config).rope_parameters
    trained = read["original_max_position_embeddings"]
    scale = get_llama_4_attn_scale(torch.tensor([[200_000]]), read["llama_4_scaling_beta"], trained)
    assert scale.item() == pytest.approx(1 + 0.1 * math.log(1 + 200_000 // 16384))
    assert_same_tables(plan.tables, stock_tables(plan.config))


@pytest.mark.parametrize("spec", ["yarn:factor=256", "abf:rope_theta=1e6", PER_PAIR, "as-is"])
def test_mistral4_keeps_the_share_of_a_head_that_its_class_computes(spec):
    text = {"model_type": "mistral4", "qk_rope_head_dim": 32, "qk_nope_head_dim": 96}
    text |= {"max_position_embeddings": 2**20, "rope_parameters": YARN_32 | {"rope_theta": 1e4}}
    plan = make_plan({"model_type": "mistral3", "text_config": text}, spec, replace_scaling=spec != "as-is")
    assert_same_tables(plan.tables or read_back(plan.config), stock_tables(plan.config))


@pytest.mark.parametrize(("target_length", "factor"), [(16384, 4.0), (None, 1.0)])
def test_per_pair_factors_are_written_with_the_stretch_of_the_length(target_length, factor):
    table = Table(factors=tuple(1 + pair / 8 for pair in range(32)))
    assert make_plan(LLAMA, table, target_length=target_length).config["rope_parameters"]["factor"] == factor


def test_a_null_head_dim_is_written_out_because_transformers_cannot_read_it():
    for name in ("mixtral", "hunyuan"):
        assert make_plan(MODELS[name], "yarn:factor=4").config["head_dim"] == 64
    without = {key: value for key, value in LLAMA.items() if key != "head_dim"}
    assert "head_dim" not in make_plan(without, "yarn:factor=4").config


def test_gemma4_gets_the_flag_without_which_transformers_refuses_per_pair_factors():
    new = make_plan(MODELS["gemma4"], "ntk-su:factor=4").config
    full = new["rope_parameters"]["full_attention"]
    assert new["allow_global_per_layer_attribute_access"] is True
    assert (full["rope_type"], len(full["short_factor"]), full["partial_rotary_factor"]) == ("longrope", 256, 1.0)
    assert full["short_factor"][64:] == [1e30] * 192
    assert_same_tables(read_back(new), stock_tables(new))


# ---------------------------------------------------------------------------------------------------------
# Phi-3


@pytest.mark.parametrize("spec", ["yarn:factor=8", "linear:factor=8", PER_PAIR, Half(4, 1.25), "longrope"])
def test_phi3_is_written_in_three_keys_from_which_stock_builds_the_asked_table(spec):
    fields = json.dumps({"name": "longrope", "factor": 32, **LISTS}) if spec == "longrope" else spec
    plan = make_plan(PHI3, fields)
    assert set(plan.config["rope_scaling"]) == {"type", "short_factor", "long_factor"}
    loaded = stock_config(plan.config)
    with quiet():
        module = rotary_classes(loaded)[0](loaded)
    position = torch.tensor([[0, 1, 5000]])  # beyond the trained 4096, so that the long list is in use
    cos, _ = module(torch.zeros(1), position)
    table = plan.tables["all"]
    angles = torch.tensor(table.inv_freq, dtype=torch.float64)
    assert module.attention_scaling == pytest.approx(table.attention_scale, abs=1e-6)
    torch.testing.assert_close(module.inv_freq.double(), angles, rtol=2e-6, atol=0)
    assert cos[0, 0].tolist() == pytest.approx([table.attention_scale] * 32, abs=1e-6)


def test_an_attention_scale_that_phi3_cannot_say_is_unsavable_with_the_reason():
    plan = make_plan(PHI3, "yarn:factor=8,attention_factor=0.9")
    assert plan.unsavable is not None and "phi3 has no key for an attention scale below 1" in str(plan.unsavable)
    assert make_plan(PHI3, "yarn:factor=8,attention_factor=1").unsavable is None


# ---------------------------------------------------------------------------------------------------------
# Scaling that is already there

PRESCALED = {
    "llama 3.1": (LLAMA31, "llama3 x8 of 8192", 8192),
    "phi3 128k": (PHI3_128K, "longrope of 4096", 4096),
    "phi3 128k under its first name": (PHI3_128K | {"rope_scaling": {"type": "su", **LISTS}}, "longrope of 4096", 4096),
    "gpt-oss": (GPT_OSS, "yarn x32 of 4096", 4096),
}


@pytest.mark.parametrize("name", PRESCALED)
def test_a_prescaled_model_is_refused_naming_what_is_there_and_the_ways_on(name):
    config, there, _ = PRESCALED[name]
    with pytest.raises(ConfigError, match=f"already scaled \\({there}\\).*replace the scaling") as refused:
        make_plan(config, "yarn:factor=2")
    two_lists = "phi3" in name  # no single table to compose with
    assert refused.value.fields == (("replace_scaling",) if two_lists else ("replace_scaling", "on_top"))
    for way in refused.value.advice:
        assert make_plan(config, "yarn:factor=2", **way.options).changes


@pytest.mark.parametrize("name", PRESCALED)
def test_replacing_scaling_computes_from_the_original_length(name):
    config, _, original = PRESCALED[name]
    plan = make_plan(config, "ntk", target_length=4 * original, replace_scaling=True)
    dim, theta = read_rope(config)["all"].rotary_dim, read_rope(config)["all"].theta
    assert plan.tables["all"].inv_freq == pytest.approx(series(theta * 4 ** (dim / (dim - 2)), dim), rel=1e-12)
    assert plan.length == plan.config["max_position_embeddings"] == 4 * original


def llama31_closed_form() -> list[float]:
    """Llama 3.1's scaling written out: wavelengths above 8192 / 1 are stretched by 8, below 8192 / 4 kept."""
    found = []
    for f in series(500000.0, 64):
        turns = 8192 * f / (2 * math.pi)
        kept = min(max((turns - 1) / (4 - 1), 0), 1)
        found.append((1 - kept) * f / 8 + kept * f)
    return found


def test_on_top_composes_with_the_current_table_and_length():
    plan = make_plan(LLAMA31, "linear:factor=2", on_top=True)
    expected = [f / 2 for f in llama31_closed_form()]
    assert plan.tables["all"].inv_freq == pytest.approx(expected, rel=1e-12)
    assert plan.length == plan.config["max_position_embeddings"] == 262144
    assert plan.ropes["all"].original_length == 131072
    assert read_back(plan.config)["all"].inv_freq == pytest.approx(expected, rel=1e-12)
    assert_same_tables(plan.tables, stock_tables(plan.config))
    target = make_plan(LLAMA31, "linear", target_length=262144, on_top=True)
    assert target.tables["all"].inv_freq == pytest.approx(expected, rel=1e-12)
    assert make_plan(LLAMA, "yarn:factor=4", on_top=True).config == make_plan(LLAMA, "yarn:factor=4").config
    left = LLAMA | {"original_max_position_embeddings": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    above = make_plan(left, "linear:factor=2", on_top=True, original_length=8192)  # where to start, and no more
    assert above.tables["all"].inv_freq == [f / 2 for f in ropescale.frequencies(left, "as-is")["all"].inv_freq]
    assert (above.length, above.label("all")) == (16384, "linear:factor=2 on yarn x4 of 4096")


def test_on_top_multiplies_the_attention_scales_once():
    scale = (0.1 * math.log(32) + 1) * (0.1 * math.log(2) + 1)
    plan = make_plan(GPT_OSS, "yarn:factor=2", on_top=True)
    assert plan.tables["all"].attention_scale == pytest.approx(scale, rel=1e-14)
    assert_same_tables(plan.tables, stock_tables(plan.config))
    frozen = make_plan(GPT_OSS, "dynamic-yarn", on_top=True, freeze_at=262144)
    assert frozen.tables["all"].attention_scale == pytest.approx(scale, rel=1e-14)
    assert_same_tables(frozen.tables, stock_tables(frozen.config))


def test_on_top_of_deepseek_keeps_what_its_softmax_scale_is_computed_from():
    parameters = make_plan(configurations.DEEPSEEK_V3, "linear:factor=2", on_top=True).config["rope_parameters"]
    assert (parameters["factor"], parameters["mscale"], parameters["mscale_all_dim"]) == (40, 1.0, 1.0)
    replaced = make_plan(configurations.DEEPSEEK_V3, "linear:factor=2", replace_scaling=True).config["rope_parameters"]
    assert "mscale_all_dim" not in replaced


def test_on_top_of_scaling_that_follows_the_length_is_refused():
    for config in (LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, PHI3_128K):
        with pytest.raises(ConfigError, match=r"changes with the length.*replace the scaling"):
            make_plan(config, "linear:factor=2", on_top=True)


def test_qwen3_is_computed_from_its_trained_length_and_says_so():
    plan = make_plan(QWEN3, "yarn:factor=4")
    assert (plan.length, plan.ropes["all"].original_length) == (131072, 32768)
    assert any("40,960 positions, but the model was trained at 32768" in note for note in plan.notes)
    assert not any("positions" in note for note in make_plan(QWEN3, "yarn:factor=4", original_length=40960).notes)


def test_as_is_changes_nothing_in_any_of_its_forms():
    for spec in ("as-is", AsIs(), {"full_attention": "as-is", "sliding_attention": "as-is"}):
        plan = make_plan(GEMMA3, spec)
        assert not plan.changes and plan.config == GEMMA3 and plan.length == 8192
        with pytest.raises(ScheduleError, match="cannot be frozen"):
            make_plan(GEMMA3, spec, freeze_at=1024)


# ---------------------------------------------------------------------------------------------------------
# Layers


def test_all_and_a_type_choose_the_layers():
    assert set(make_plan(GEMMA3, "linear:factor=4", layers="all").schedules) == {"full_attention", "sliding_attention"}
    assert list(make_plan(GEMMA3, "linear:factor=4", layers="sliding_attention").schedules) == ["sliding_attention"]
    assert list(make_plan({"model_type": "deepseek_v4"}, "linear:factor=4").schedules) == ["compress"]
    assert list(make_plan({"model_type": "zaya"}, "linear:factor=4").schedules) == ["hybrid"]
    assert list(make_plan(LLAMA, "linear:factor=4", layers="all").schedules) == ["all"]


def test_a_schedule_per_layer_type_goes_where_it_is_meant_for():
    plan = make_plan(GEMMA3, {"full_attention": "yarn:factor=4", "sliding_attention": "linear:factor=2"})
    assert plan.tables["sliding_attention"].inv_freq == pytest.approx([f / 2 for f in series(1e4, 128)], rel=1e-14)
    assert plan.length == 32768
    assert_same_tables(plan.tables, stock_tables(plan.config))


def test_layers_that_a_model_does_not_have_are_refused_with_those_it_has():
    with pytest.raises(ConfigError, match=r"'global'.*full_attention, sliding_attention"):
        make_plan(GEMMA3, "linear:factor=4", layers="global")
    with pytest.raises(ScheduleError, match=r"'chunked'.*it has full_attention"):
        make_plan(GEMMA3, {"chunked": "linear:factor=4"})
    with pytest.raises(ScheduleError, match=r"one table .*full_attention"):
        make_plan(LLAMA, {"full_attention": "linear:factor=4"})


@pytest.mark.parametrize("model_type", ["cohere2", "cohere2_moe", "exaone4", "afmoe", "flint", "beam", "llama4_text"])
def test_a_model_whose_full_layers_do_not_rotate_is_refused_by_default_with_the_reason(model_type):
    with pytest.raises(ConfigError, match=f"full-attention layers of {model_type} do not rotate.*choose all layers"):
        make_plan({"model_type": model_type}, "linear:factor=4")
    assert make_plan({"model_type": model_type}, "linear:factor=4", layers="all").changes


def test_exaone4_without_a_window_rotates_everywhere_and_is_taken():
    assert make_plan({"model_type": "exaone4", "sliding_window": None}, "linear:factor=4").changes


MIXED = [
    ({"model_type": "gemma2"}, True),
    (GPT_OSS, True),
    ({"model_type": "vaultgemma"}, True),
    (LLAMA, False),
    ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, False),
    ({"model_type": "qwen3_next"}, False),
]


@pytest.mark.parametrize(("config", "noted"), MIXED)
def test_one_table_over_mixed_layers_changes_in_all_and_says_so(config, noted):
    notes = make_plan(config, "linear:factor=4", replace_scaling=True).notes
    assert any("one table for all its layers, so the sliding-window layers change" in note for note in notes) == noted


# ---------------------------------------------------------------------------------------------------------
# Lengths, and what cannot be


def test_a_schedule_that_changes_nothing_is_an_error_that_says_why():
    with pytest.raises(ScheduleError, match=r"4 tokens .*ramp"):
        make_plan(LLAMA | {"max_position_embeddings": 4}, "yarn:factor=8")
    for spec in ("yarn:factor=8", "llama3:factor=8"):
        with pytest.raises(ScheduleError, match="leaves every frequency unchanged: even the slowest pair makes 696 "):
            make_plan({"model_type": "gemma4_text"}, spec)
    assert make_plan(LLAMA | {"max_position_embeddings": 4}, "linear:factor=8").changes


def test_a_layer_type_on_which_a_schedule_does_nothing_is_noted_where_it_works_on_another():
    plan = make_plan(GEMMA3 | {"max_position_embeddings": 1048576}, "llama3:factor=4", layers="all")
    assert any("sliding_attention: llama3 with factor 4 leaves every frequency" in note for note in plan.notes)


@pytest.mark.parametrize("spec", ["dynamic-yarn", Stretching()])
def test_a_schedule_that_follows_the_length_is_unsavable_and_freezing_is_the_way_out(spec):
    plan = make_plan(LLAMA, spec)
    assert plan.unsavable is not None and "freeze it at a length" in str(plan.unsavable)
    frozen = make_plan(LLAMA, spec, freeze_at=16384)
    assert frozen.unsavable is None
    assert frozen.length == frozen.config["max_position_embeddings"] == 16384
    assert make_plan(LLAMA, "yarn:factor=8", freeze_at=6000).config == make_plan(LLAMA, "yarn:factor=8").config
    assert_same_tables(frozen.tables, stock_tables(frozen.config))


def test_a_frozen_dynamic_schedule_is_the_closed_form_at_that_length():
    plan = make_plan(LLAMA, "dynamic:factor=2", freeze_at=8192)
    theta = 10000 * (2 * 8192 / 4096 - 1) ** (64 / 62)
    assert plan.tables["all"].inv_freq == pytest.approx(series(theta, 64), rel=1e-12)
    assert plan.config["rope_parameters"]["rope_type"] == "longrope"
    assert_same_tables(plan.tables, stock_tables(plan.config))


@pytest.mark.parametrize("spec", ["dynamic:factor=4", "dynamic-yarn"])
def test_a_schedule_cannot_be_frozen_where_it_changes_nothing_yet(spec):
    for length in (2048, 4096):
        unchanged = f"frozen at {length:,} tokens leaves every frequency unchanged.*length of 4,096"
        with pytest.raises(ScheduleError, match=unchanged):
            make_plan(LLAMA, spec, freeze_at=length)
    assert make_plan(LLAMA, spec, freeze_at=4352).tables["all"].inv_freq != series(10000, 64)


def test_frequencies_of_untouched_layers_are_those_at_the_planned_length():
    for length, factors in ((None, "long_factor"), (4096, "short_factor")):
        expected = [f / factor for f, factor in zip(series(1e4, 32), LISTS[factors])]
        found = ropescale.frequencies(PHI3_128K, "as-is", length)["all"]
        assert found.inv_freq == pytest.approx(expected, rel=1e-14)


def test_numbers_and_arrays_of_numpy_are_numbers():
    assert make_plan(LLAMA, Yarn(factor=np.float32(8))) == make_plan(LLAMA, Yarn(factor=8.0))
    for number in (np.float32(8), np.int64(8), torch.tensor(8.0), Fraction(8)):
        assert make_plan(LLAMA, "yarn", factor=number) == make_plan(LLAMA, {"name": "yarn", "factor": 8})
        assert create("yarn", factor=number) == Yarn(factor=8)
    assert Table(factors=[np.float32(2)] * 32).factors == (2.0,) * 32
    rope = read_rope(LLAMA)["all"]
    table = Table(inv_freq=np.linspace(1.0, 0.5, rope.pairs))
    assert compute(table, rope).inv_freq == pytest.approx(np.linspace(1.0, 0.5, rope.pairs).tolist())


@pytest.mark.parametrize("name", ["yarn", "linear", "ntk", "ntk-su", "llama3", "dynamic", "ntk-by-parts"])
@pytest.mark.parametrize("factor", ["1e308", "1e50", "1e13"])
def test_a_factor_beyond_any_context_is_one_sentence(name, factor):
    with pytest.raises(ScheduleError, match=r"below 1e\+100|give a smaller factor"):
        make_plan(LLAMA, f"{name}:factor={factor}")


def test_a_schedule_that_looks_at_the_length_must_say_so():
    def secret(rope: Rope, length: int) -> Frequencies:
        return Frequencies([f * rope.original_length / max(length, rope.original_length) for f in rope.inv_freq()])

    for spec in (secret, Resonance(over=secret)):
        with pytest.raises(ScheduleError, match=r"^secret changes .*length_dependent = True"):
            make_plan(LLAMA, spec)
    secret.length_dependent = True  # type: ignore[attr-defined]
    assert make_plan(LLAMA, secret).unsavable


@pytest.mark.parametrize("tokens", [1, 2 * 4096, 8 * 4096])
def test_a_schedule_is_looked_at_below_and_beyond_the_length_too(tokens):
    def odd(rope: Rope, length: int) -> Frequencies:
        return Frequencies([f / (3 if length == tokens else 2) for f in rope.inv_freq()])

    with pytest.raises(ScheduleError, match=r"^odd changes .*length_dependent = True"):
        make_plan(LLAMA, odd)


def test_an_attention_scale_that_phi3_would_need_an_impossible_length_for_is_refused():
    with pytest.raises(ScheduleError, match=r"an attention scale of 100 needs a max_position_embeddings of e\^83178"):
        make_plan({**LLAMA, "model_type": "phi3"}, "yarn:factor=4,attention_factor=100")


def test_scaling_without_a_recorded_length_says_what_to_give():
    unrecorded = {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    with pytest.raises(ConfigError, match=r"replace the scaling.* the original_length you give"):
        make_plan(unrecorded, "yarn:factor=4")
    with pytest.raises(ConfigError, match="give the original length"):
        make_plan(unrecorded, "yarn:factor=4", replace_scaling=True)
    recorded = {**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024}}
    for config in (recorded, unrecorded | {"model_max_length": 8192}):  # the last confirms factor 2 x 4,096
        with pytest.raises(ConfigError, match=r"replace the scaling.* its original (1,024|4,096) tokens"):
            make_plan(config, "yarn:factor=4")
    plan = make_plan(unrecorded, "yarn:factor=4", replace_scaling=True, original_length=512)
    assert (plan.length, plan.ropes["all"].original_length) == (2048, 512)


def test_a_softmax_scale_that_is_dropped_with_the_makers_scaling_is_named():
    def about_it(spec: str, **how: bool) -> list[str]:
        return [note for note in make_plan(configurations.DEEPSEEK_V3, spec, **how).notes if "mscale_all_dim" in note]

    (said,) = about_it("ntk:factor=80", replace_scaling=True)
    assert said.startswith("not kept from the vendor's yarn: mscale=1.0, mscale_all_dim=1.0; the ") and "MLA" in said
    assert about_it("yarn:factor=80", replace_scaling=True)[0].startswith("kept from the vendor's yarn: mscale=1.0")
    assert about_it("yarn:factor=80,mscale=1,mscale_all_dim=1", replace_scaling=True) == []
    assert about_it("linear:factor=2", on_top=True) == []


FIELDS = {"attention_factor": 1.0, "beta_fast": 16, "truncate": False}
KEPT = "kept from the vendor's yarn: "
THEIRS = {"attention_factor": 1.0}


VENDORS = [
    (FIELDS, "yarn:factor=8", FIELDS, 1.0, KEPT + "attention_factor=1.0, beta_fast=16, truncate=false; give"),
    (FIELDS, "resonance:over=yarn,factor=8", {}, 1.0, KEPT + "attention_factor=1.0, beta_fast=16, truncate=false"),
    (FIELDS, "dynamic-yarn", {}, 1.0, KEPT + "attention_factor=1.0, beta_fast=16, truncate=false"),
    (FIELDS, Yarn(8), {"truncate": True}, 1.0, KEPT + "attention_factor=1.0; give a field to change it; not kept "),
    (FIELDS, "yarn:factor=8,attention_factor=1.3,truncate=true", {"beta_fast": 16}, 1.3, KEPT + "beta_fast=16; "),
    (FIELDS, "yarn:factor=8,attention_factor=null", {"beta_fast": 16}, 1.20794415, KEPT + "beta_fast=16, truncate"),
    (FIELDS, "linear:factor=8", {}, 1.0, "not " + KEPT + "beta_fast=16, truncate=false"),
    ({"truncate": False}, "giraffe:scale_power=2", {}, 1.0, "not " + KEPT + "truncate=false"),  # giraffe's is a length
    ({"attention_factor": 1.3}, "ntk:factor=8", {}, 1.0, "not " + KEPT + "attention_factor=1.3 (now 1)"),
    # what the vendor's own factor gives follows the new factor
    ({"attention_factor": 1.138629436}, "yarn:factor=8", {}, 1.20794415, "not " + KEPT + "attention_factor=1.1386"),
    ({}, "yarn:factor=8", {}, 1.20794415, ""),
    ({"mscale": 1.0, "mscale_all_dim": 0.8}, "yarn:factor=8", {"mscale_all_dim": 0.8}, 1.03565708, KEPT + "mscale"),
    (THEIRS, "yarn:factor=8,mscale=1,mscale_all_dim=0.8", {}, 1.03565708, f"not {KEPT}attention_factor=1.0 (now"),
    ({"rope_type": "odd", "attention_factor": 1.5}, "yarn:factor=8", {}, 1.5, "kept from the vendor's odd: "),
]


@pytest.mark.parametrize(("theirs", "spec", "fields", "scale", "said"), VENDORS)
def test_what_the_makers_set_and_the_user_does_not_name_is_kept_or_said_first(theirs, spec, fields, scale, said):
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096} | theirs
    config = LLAMA | {"rope_scaling": scaling, "max_position_embeddings": 16384}
    freeze = {"freeze_at": 32768} if spec == "dynamic-yarn" else {}
    plan = make_plan(config, spec, replace_scaling=True, **freeze)
    assert fields.items() <= plan.config["rope_parameters"].items()
    assert plan.tables["all"].attention_scale == pytest.approx(scale, rel=1e-7)
    assert (plan.notes[0] if plan.notes else "").startswith(said)
    assert said or not any("vendor" in note and "kept" in note for note in plan.notes)


def test_a_context_that_becomes_shorter_than_the_makers_is_noted():
    left = LLAMA | {"original_max_position_embeddings": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 32.0}}
    for each in (LLAMA31, left):
        notes = make_plan(each, "yarn:factor=2", replace_scaling=True).notes
        assert "of 131,072, without a factor, keeps it" in str(notes)
    assert not any("shorter" in n for n in make_plan(LLAMA31, "yarn:factor=32", replace_scaling=True).notes)


def test_phi3_is_refused_a_scale_that_no_whole_maximum_gives_and_told_the_nearest():
    rope = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    config = {"model_type": "phi3", "hidden_size": 96, "num_attention_heads": 1, "rope_scaling": rope}
    small = config | {"original_max_position_embeddings": 64, "max_position_embeddings": 256}
    with pytest.raises(ScheduleError, match=r"length of 64 no maximum gives 1.13863 .*, 220, gives 1.13881"):
        make_plan(small, "yarn:factor=4", replace_scaling=True)
    nearest = math.sqrt(math.log(220) / math.log(64))
    plan = make_plan(small, f"yarn:factor=4,attention_factor={nearest!r}", replace_scaling=True)
    assert plan.config["max_position_embeddings"] == 220
    large = config | {"original_max_position_embeddings": 4096, "max_position_embeddings": 131072}
    found = make_plan(large, "yarn:factor=4", replace_scaling=True).config["max_position_embeddings"]
    assert math.sqrt(math.log(found) / math.log(4096)) == pytest.approx(0.1 * math.log(4) + 1, rel=1e-6)


def test_layers_that_are_left_alone_are_refused_where_their_scaling_would_move():
    """The sliding layers' factor is null: it is the maximum over the original length, and the maximum grows."""
    sliding = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": None}
    full = {"rope_type": "default", "rope_theta": 1e6}
    config = {
        "model_type": "gemma3_text", "head_dim": 16, "max_position_embeddings": 256, "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64,
        "rope_parameters": {"full_attention": full, "sliding_attention": sliding},
    }  # fmt: skip
    with pytest.raises(ScheduleError, match=r"sliding_attention.* follows max_position_embeddings"):
        make_plan(config, "yarn:factor=4")
    sliding["factor"] = 1.0
    assert make_plan(config, "yarn:factor=4").length == 1024
    sliding["rope_type"] = "defaul"
    with pytest.raises(ScheduleError, match="rope_type is 'defaul'"):
        make_plan(config, "yarn:factor=4")


def test_a_partial_factor_that_the_class_does_not_read_is_said_to_be_left_out():
    config = plain("mimo_v2_flash", 64, 2, 4096, 5e6, head_dim=32, partial_rotary_factor=0.5)
    assert "partial_rotary_factor 0.5 is left out" in make_plan(config, "yarn:factor=2").notes[0]


WHOLE: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0},
    "longrope": {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32},
    "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "proportional": {"factor": 2.0},
}


# Keys that transformers fills in where they are absent, but not where they are null.
FILLED = ("rope_theta", "original_max_position_embeddings", "partial_rotary_factor")


@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, keys in WHOLE.items() for name in (*keys, *FILLED)])
def test_a_scaling_without_a_key_is_refused_where_stock_stops(kind, name, null, tmp_path, monkeypatch, refused, ran):
    scaling = {"rope_type": kind, **WHOLE[kind]}
    scaling = scaling | {name: None} if null else {key: value for key, value in scaling.items() if key != name}
    config = LLAMA | {"rope_scaling": scaling}
    try:
        stock_tables(config)
        stops = False
    except Exception:
        stops = True
    monkeypatch.chdir(write_checkpoint(tmp_path / "made", config).parent)
    patch, export = ["patch", "made", "--dry-run", "--schedule"], ["export", "made", "--for", "transformers5"]
    commands = [["inspect", "made"], [*patch, "as-is"], export]
    if stops:
        commands += [[*words, "yarn:factor=2", "--replace-scaling"] for words in (patch, [*export, "--schedule"])]
        said = f"the {kind} scaling in config.json lacks {name}, without which transformers stops; add what"
        said = f"{name} is null in the rope parameters, and transformers stops" if name in FILLED else said
        assert all(said in refused(*words) for words in commands)
    else:
        assert kind == "proportional" or name in FILLED or (kind, null) == ("yarn", True)
        ran("inspect", "made")


@pytest.mark.parametrize(("name", "said"), [("rope_theta", "rope_theta is null"), ("max_position_embeddings", "lacks")])
def test_a_null_at_the_top_level_is_refused_where_stock_stops(name, said):
    for model_type in ("llama", "gemma3_text", "qwen3_moe"):
        with pytest.raises(ConfigError, match=said):
            make_plan({"model_type": model_type, name: None}, "yarn:factor=2")
        with pytest.raises(Exception):  # noqa: B017, PT011 (of many kinds)
            stock_tables({"model_type": model_type, name: None})
    apertus = {"model_type": "apertus", "rope_theta": None, "hidden_size": 64, "num_attention_heads": 2}
    assert stock_tables(apertus) and make_plan(apertus, "yarn:factor=2", replace_scaling=True)  # it does not read it


@pytest.mark.parametrize("given", [{}, {"mrope_section": None}, {"mrope_section": 16}])
def test_a_scaling_without_its_type_or_mrope_without_sections_is_refused_everywhere(given, tmp_path, refused, ran):
    config = {"model_type": "qwen2_vl", **plain("qwen2_vl", 64, 4, 4096, 1e6)}
    folder = write_checkpoint(tmp_path, config | {"rope_scaling": {"type": "mrope", **given}})
    patch, export = ["patch", folder, "--dry-run", "--schedule"], ["export", folder, "--for", "vllm"]
    for words in (["inspect", folder], [*patch, "as-is"], [*patch, "yarn:factor=2"], export):
        assert "the mrope scaling in config.json lacks mrope_section" in refused(*words)
    for scaling in ({"factor": 2.0}, {"type": None, "factor": 2.0}, {"rope_type": None}, {"type": ""}):
        write_checkpoint(tmp_path, config | {"rope_scaling": scaling})
        for words in (["inspect", folder], [*patch, "yarn:factor=2"], export):
            said = "the scaling in config.json lacks rope_type, without which transformers stops or scales nothing"
            assert f"{said}; add what" in refused(*words)
    whole = {"rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]}}
    for kind in ("mrope", "su"):  # names that few classes know
        write_checkpoint(tmp_path, LLAMA | {"rope_scaling": {**whole["rope_scaling"], "type": kind}})
        for words in (["inspect", folder], [*patch, "as-is"], export):
            assert f"llama has no rope type '{kind}', and transformers stops; write '" in refused(*words)
    ran("patch", write_checkpoint(tmp_path, config | whole), "--dry-run", "--schedule", "yarn:factor=2")


def test_dynamic_scaling_that_transformers_would_start_elsewhere_is_refused():
    """Where only windowed layers change, the maximum stays, and dynamic NTK starts from it."""
    config = {**GEMMA3, "max_position_embeddings": 256, "original_max_position_embeddings": 64}
    with pytest.raises(ScheduleError, match=r"starts from max_position_embeddings.* trained at 64; .*ntk"):
        make_plan(config, "dynamic:factor=2", layers="sliding_attention")


@pytest.mark.parametrize("name", ["layer_rope_theta", "no_rope_layers"])
def test_a_list_per_layer_that_leaves_only_windowed_layers_rotating_is_noticed(name):
    """Granite's SWA models and SmolLM 3 say layer by layer whether it rotates; 0 says that it does not."""
    config = {**LLAMA, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    theta = 10_000.0 if name == "layer_rope_theta" else 1
    with pytest.raises(ConfigError, match=r"full-attention layers .* do not rotate.*choose all layers"):
        make_plan(config | {name: [theta, 0]}, "yarn:factor=2")
    assert make_plan(config | {name: [theta, theta]}, "yarn:factor=2").changes


def test_lists_without_a_factor_leave_the_context_as_long_as_it_was():
    [rope] = read_rope(LLAMA).values()
    lists = {"short_factor": [1.0] * rope.pairs, "long_factor": [2.0] * rope.pairs}
    assert make_plan(LLAMA, {"name": "longrope", **lists}).length == rope.original_length


def test_a_users_default_stays_proportional_where_only_some_pairs_turn():
    plan = make_plan({"model_type": "gemma4_text"}, LargerTheta())
    saved, planned = plan.planned.ropes["full_attention"], plan.layers["full_attention"]
    assert saved.scaling["rope_type"] == "proportional"
    assert saved.rotated_pairs == planned.rope.rotated_pairs is not None
    assert list(stock_table(saved, 1).inv_freq) == list(planned.table(1).inv_freq)
