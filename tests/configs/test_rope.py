"""The rotary geometry: closed forms, and configurations read as stock transformers reads them."""

import math
from dataclasses import replace
from typing import Any

import configurations
import pytest
from configurations import DEEPSEEK_V3, GPT_OSS, LISTS, LLAMA31, MINISTRAL3, PHI3_128K, QWEN3, YARN_32, plain
from planning import make_plan, read_back
from rotary_modules import assert_same_tables, stock_tables

from ropescale.configs.configuration import read_rope
from ropescale.errors import ConfigError
from ropescale.rope import Rope
from ropescale.schedules import AsIs, compute


def of(model_type: str, **fields: Any) -> dict[str, Any]:
    """A configuration that states these fields and no others."""
    return {"model_type": model_type, **fields}


def without(config: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != name}


LLAMA = of("llama", hidden_size=256, num_attention_heads=4, num_hidden_layers=2, max_position_embeddings=8192)
GEMMA3 = of("gemma3_text", hidden_size=64, head_dim=32, max_position_embeddings=131072)
GEMMA3_INSIDE = without(GEMMA3, "model_type") | {"rope_theta": 2e6}
LINEAR = {"rope_type": "linear", "factor": 8.0}
YARN_8 = YARN_32 | {"factor": 8.0, "truncate": True}

UNKNOWN = LLAMA | {"model_type": "brandnew", "rope_theta": 3e4}
CONFIGS: dict[str, dict[str, Any]] = {
    "v4 llama with an explicit head_dim": LLAMA | {"rope_theta": 1e6, "head_dim": 96},
    "v4 llama, dynamic": LLAMA | {"rope_theta": 5e5, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "llama 3.1": LLAMA31,
    "both views of llama 3.1": LLAMA31
    | {"rope_parameters": {**configurations.LLAMA31_SCALING, "rope_theta": 500000.0}},
    "phi3 128k": PHI3_128K,
    "phi3 4k": plain("phi3", 128, 4, 4096, original_max_position_embeddings=4096),
    "phi4 mini, partial": PHI3_128K | {"num_attention_heads": 3, "partial_rotary_factor": 0.77, "rope_scaling": None},
    "gpt-oss": GPT_OSS,
    "qwen3": QWEN3,
    "gpt_neox": of("gpt_neox", hidden_size=512, num_attention_heads=8, rotary_pct=0.25, rotary_emb_base=25000),
    "gemma 1 with heads wider than hidden_size / heads": plain("gemma", 3072, 16, 8192, head_dim=256),
    "gemma3, v4": GEMMA3 | {"rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": LINEAR},
    "gemma3, v5, one layer type left out": GEMMA3
    | {"rope_parameters": {"full_attention": LINEAR | {"rope_theta": 3e6}}},
    "gemma3, multimodal": of("gemma3", text_config=GEMMA3_INSIDE),
    "gemma3, multimodal, saying nothing": of("gemma3"),
    "gemma4, wide heads": of("gemma4_text", head_dim=64, global_head_dim=128, num_hidden_layers=6),
    "olmo3, v4": of("olmo3", rope_theta=123456.0, rope_scaling=YARN_8),
    "modernbert-decoder, v4": of("modernbert-decoder", global_rope_theta=1e5, local_rope_theta=3e4),
    "laguna with one layer type": of("laguna", num_hidden_layers=2, layer_types=["sliding_attention"] * 2),
    "beam": of("beam"),
    "deepseek_v3, v4, MLA": DEEPSEEK_V3 | {"rope_scaling": configurations.DEEPSEEK_YARN | {"mscale_all_dim": 0.5}},
    "ministral3": MINISTRAL3,
    "minimax_m2 in coordinates": of("minimax_m2", head_dim=128, rotary_dim=64, rope_theta=5000000),
    "mixtral without a head_dim": plain("mixtral", 4096, 32, 32768, 1e6),
    "dbrx under its own names": of("dbrx", d_model=96, n_heads=3, max_seq_len=1234),
    "llama4, multimodal": of("llama4", text_config=of("llama4_text", head_dim=64, rope_theta=4e5)),
    "bailing, whose class has another theta": of("bailing_hybrid", rope_scaling=LINEAR),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_reads_as_the_tables_that_stock_transformers_builds(name):
    assert_same_tables(read_back(CONFIGS[name]), stock_tables(CONFIGS[name]))


@pytest.mark.parametrize("key", ["long_factor", "short_factor"])
def test_phi3_128k_has_its_own_lists_and_the_scale_of_its_paper(key):
    table = compute(AsIs(), read_rope(PHI3_128K)["all"], 4096 if key == "short_factor" else 4097)
    expected = [10000 ** (-2 * i / 32) / factor for i, factor in enumerate(LISTS[key])]
    assert table.inv_freq == pytest.approx(expected, rel=1e-14)
    assert table.attention_scale == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)), rel=1e-15)


AS_LONG, OF_32K = (131072, 131072), (32768, 131072)
GEOMETRIES = {
    "llama 3.1": {"all": (64, 64, 5e5, 8192, 131072)},
    "gpt-oss": {"all": (64, 64, 1.5e5, 4096, 131072)},
    "qwen3": {"all": (128, 128, 1e6, 32768, 40960)},
    "gpt_neox": {"all": (16, 64, 25000, 2048, 2048)},
    "deepseek_v3, v4, MLA": {"all": (64, 64, 1e4, 4096, 163840)},
    "minimax_m2 in coordinates": {"all": (64, 128, 5e6, 196608, 196608)},
    "dbrx under its own names": {"all": (32, 32, 1e4, 1234, 1234)},
    "gemma3, v4": {"full_attention": (32, 32, 5e5, *OF_32K), "sliding_attention": (32, 32, 2e4, *OF_32K)},
    "gemma4, wide heads": {"full_attention": (128, 128, 1e6, *AS_LONG), "sliding_attention": (64, 64, 1e4, *AS_LONG)},
    "beam": {"sliding_attention": (128, 128, 1e4, None, None)},
    "laguna with one layer type": {"sliding_attention": (128, 128, 1e4, 131072, 131072)},
    "ministral3": {"all": (128, 128, 1e6, 16384, 262144)},
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_geometry_is_the_one_that_the_configuration_states(name):
    found = read_rope(CONFIGS[name])
    assert set(found) == set(GEOMETRIES[name])
    for key, (rotary_dim, head_dim, theta, original, maximum) in GEOMETRIES[name].items():
        rope = found[key]
        assert (rope.rotary_dim, rope.head_dim, rope.theta) == (rotary_dim, head_dim, theta)
        assert rope.layer_type == (None if key == "all" else key)
        if original is not None:
            assert (rope.original_length, rope.max_length) == (original, maximum)


def test_a_proportional_factor_is_scaling_and_its_share_is_not():
    full = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    both = {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    plain = read_rope(of("gemma4_text", rope_parameters=both))["full_attention"]
    scaled = of("gemma4_text", rope_parameters=both | {"full_attention": {**full, "factor": 8.0}})
    assert not plain.is_scaled and read_rope(scaled)["full_attention"].is_scaled
    assert (plain.pairs, plain.rotated_pairs) == (256, 64)


# ---------------------------------------------------------------------------------------------------------
# What is refused


LACKING = [
    ({"hidden_size", "rope_theta"}, "rope_theta, head_dim (or hidden_size and num_attention_heads)"),
    ({"max_position_embeddings"}, "lacks max_position_embeddings; its own code may"),
    ({"rope_theta"}, "lacks rope_theta; its own code may"),
    ({"num_attention_heads"}, "head_dim (or hidden_size and num_attention_heads); its own code may"),
]


@pytest.mark.parametrize(("lacking", "named"), LACKING)
def test_an_unknown_model_type_with_fields_missing_is_an_error_that_names_them(lacking, named):
    config = {key: value for key, value in UNKNOWN.items() if key not in lacking}
    with pytest.raises(ConfigError, match="'brandnew', whose defaults ropescale does not know") as caught:
        read_rope(config)
    assert named in str(caught.value)


THETA_INSIDE = {"rope_type": "default", "rope_theta": 1e6}
YARN_SNIPPET = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
YARN_INSIDE = YARN_SNIPPET | {"rope_theta": 1e6}
CONTRADICTIONS = {
    "the model card's snippet pasted into a v5 file": (
        without(QWEN3, "rope_theta") | {"rope_parameters": THETA_INSIDE, "rope_scaling": YARN_SNIPPET},
        ("in rope_parameters", "in rope_scaling"),
    ),
    "the same scaling, but v4's theta is gone": (
        without(QWEN3, "rope_theta") | {"rope_parameters": YARN_INSIDE, "rope_scaling": YARN_SNIPPET},
        ("rope_theta is 1000000.0 in rope_parameters", "10000.0 in rope_scaling"),
    ),
    "an attention factor that v4's key lacks, and which would be lost": (
        LLAMA
        | {"rope_theta": 1e6, "rope_scaling": YARN_SNIPPET, "rope_parameters": YARN_INSIDE | {"attention_factor": 1.0}},
        ("attention_factor is 1.0 in rope_parameters", "None in rope_scaling"),
    ),
    "two partial factors": (
        of("stablelm", partial_rotary_factor=0.25, rope_parameters=THETA_INSIDE | {"partial_rotary_factor": 0.5}),
        ("partial_rotary_factor is 0.5", "0.25 at the top level"),
    ),
    "two thetas under GPT-NeoX's name": (
        of("gpt_neox", rotary_emb_base=1e4, rope_parameters=THETA_INSIDE),
        ("rope_theta is 1000000.0", "rotary_emb_base is 10000.0 at the top level"),
    ),
    "two thetas for the sliding layers": (
        GEMMA3 | {"rope_local_base_freq": 1e4, "rope_parameters": {"sliding_attention": THETA_INSIDE}},
        ("1000000.0 in rope_parameters (sliding_attention layers)", "rope_local_base_freq is 10000.0 at the top level"),
    ),
    "two trained lengths": (LLAMA31 | {"original_max_position_embeddings": 4096}, ("is 4096 at the top", "8192 in")),
    "a trained length that phi3's class overrides": (
        without(PHI3_128K, "original_max_position_embeddings")
        | {"rope_scaling": {"type": "longrope", **LISTS, "original_max_position_embeddings": 8192}},
        ("4096 by phi3's default", "8192 inside"),
    ),
    "types": (LLAMA | {"rope_scaling": {"type": "linear", "rope_type": "odd"}}, ("rope_type 'odd'", "type 'linear'")),
    "flat rope_parameters on a model with a table per layer type": (
        GEMMA3 | {"rope_parameters": LINEAR | {"rope_theta": 1e6}},
        ("gemma3_text keeps rope_parameters per layer type", "flat", "ignored by transformers"),
    ),
    "nested rope_parameters on a model with one table": (
        LLAMA | {"rope_parameters": {"full_attention": THETA_INSIDE}},
        ("llama keeps one table", "full_attention"),
    ),
    "rope_scaling in vain": (of("cohere2_moe", rope_scaling=LINEAR), ("cohere2_moe does not read rope_scaling",)),
    "a theta of their own for some layers": (
        of("granite_swa", rope_theta=1e4, layer_rope_theta=[1e4, 5e5, 0]),
        ("layer_rope_theta", "500000.0", "rope_theta 10000.0"),
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_views_that_contradict_each_other_are_an_error_naming_both(name):
    config, parts = CONTRADICTIONS[name]
    with pytest.raises(ConfigError) as caught:
        read_rope(config)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


# ---------------------------------------------------------------------------------------------------------
# Rope itself, against closed forms


def test_frequencies_are_the_geometric_series_and_pairs_that_do_not_turn_have_none():
    rope = Rope(rotary_dim=8, theta=10000.0, original_length=4096)
    assert rope.inv_freq() == pytest.approx([1, 0.1, 0.01, 0.001], rel=1e-14)
    assert rope.wavelengths() == pytest.approx([2 * math.pi * 10**i for i in range(4)], rel=1e-14)
    assert rope.turns()[1] == pytest.approx(4096 * 0.1 / (2 * math.pi), rel=1e-14)
    still = replace(rope, rotated_pairs=2)
    assert still.inv_freq() == [1.0, pytest.approx(0.1), 0.0, 0.0]
    assert still.wavelengths()[2:] == [math.inf, math.inf] and still.turns()[2:] == [0.0, 0.0]


def test_pair_at_inverts_turns_on_the_series_and_on_a_table():
    rope = Rope(rotary_dim=128, theta=500000.0, original_length=8192)
    table = Rope(rotary_dim=128, theta=2.0, original_length=8192, table=tuple(rope.inv_freq()))
    for pair in (0, 7, 31.5, 63):
        turns = 8192 * 500000.0 ** (-2 * pair / 128) / (2 * math.pi)
        assert rope.pair_at(turns) == pytest.approx(pair, abs=1e-9)
        assert table.pair_at(turns) == pytest.approx(pair, abs=1e-9)
    # beyond a table it extrapolates, and one pair is enough
    rope = Rope(rotary_dim=8, theta=10000.0, original_length=4096)
    table = Rope(rotary_dim=8, theta=2.0, original_length=4096, table=tuple(rope.inv_freq()))
    assert table.pair_at(4096 * 10**-5.0 / (2 * math.pi)) == pytest.approx(5)
    assert table.pair_at(4096 * 10**1.0 / (2 * math.pi)) == pytest.approx(-1)
    assert Rope(rotary_dim=2, theta=1e4, original_length=64, table=(0.5,)).pair_at(1.0) == 0.0
    # pairs that stand still are left out, two that turn are enough, and equal ones are no slope
    two = Rope(rotary_dim=6, theta=1e4, original_length=64, table=(1.0, 0.01, 0.0))
    assert two.pair_at(64 * 0.1 / (2 * math.pi)) == pytest.approx(0.5, rel=1e-12)
    assert replace(two, table=(0.5, 0.5, 0.0)).pair_at(1.0) == 0.0
    assert replace(two, table=(0.5, 0.0, 0.0)).pair_at(1.0) == 0.0
    # the slope beyond the end is that of the last two
    assert replace(two, table=(1.0, 0.1, 0.001)).pair_at(64 * 1e-5 / (2 * math.pi)) == pytest.approx(3, rel=1e-12)


HALF_TURNS = {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 10000.0}
SLICED = {"qk_rope_head_dim": 8, "hidden_size": 64, "num_attention_heads": 4}


WIDTHS = [
    *((UNKNOWN | each, 32) for each in ({"partial_rotary_factor": 0.5}, {"rope_pct": 0.5}, {"rotary_dim": 32})),
    (UNKNOWN | SLICED, 8),  # may be MLA
    (UNKNOWN | SLICED | {"model_type": "qwen2"}, 16),  # rotates whole heads whatever stands in its file
    (SLICED | {"model_type": "deepseek_v3", "rope_parameters": HALF_TURNS}, 8),  # as transformers' head_dim is
]


@pytest.mark.parametrize(("config", "width"), WIDTHS)
def test_a_head_rotates_as_many_coordinates_as_the_keys_that_its_class_has_say(config, width):
    assert [rope.rotary_dim for rope in read_rope(config).values()] == [width]


def test_a_slice_of_an_unknown_type_is_read_alike_before_and_after_it_turns_in_part():
    plan = make_plan(UNKNOWN | SLICED, "proportional:partial_rotary_factor=0.5")
    assert [rope.rotary_dim for rope in (*plan.ropes.values(), *read_rope(plan.config).values())] == [8, 8]


def test_a_head_rotates_up_to_65536_coordinates_also_an_odd_number():
    assert Rope(rotary_dim=21, theta=1e4, original_length=64).pairs == 11
    assert Rope(rotary_dim=2**16, theta=1e4, original_length=64).head_dim == 2**16
    with pytest.raises(ConfigError, match="a head would rotate 65538 coordinates"):
        Rope(rotary_dim=2**16 + 2, theta=1e4, original_length=64)
