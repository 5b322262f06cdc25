"""Frequencies against stock transformers' own functions, and the way there and back through its configuration."""

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
from transformers.models.hunyuan_v1_dense import modeling_hunyuan_v1_dense as hunyuan

from ropescale import schedules as sch
from ropescale.rope import Rope

RTOL = 2e-6  # transformers computes in float32

GEOMETRIES = [
    Rope(64, 10_000.0, 4096), Rope(128, 500_000.0, 8192), Rope(256, 1_000_000.0, 32_768),
    Rope(16, 10_000.0, 2048, head_dim=64), Rope(32, 10_000.0, 512, head_dim=80), Rope(8, 10_000.0, 64),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)


def config_of(rope: Rope, parameters: Any, maximum: int | None = None) -> LlamaConfig:
    """A Llama of this geometry with these rope parameters."""
    geometry = {"rope_theta": rope.theta}
    if rope.rotary_dim != rope.head_dim:
        geometry["partial_rotary_factor"] = rope.rotary_dim / rope.head_dim
    sizes = {"hidden_size": rope.head_dim * 2, "num_attention_heads": 2, "head_dim": rope.head_dim}
    sizes["max_position_embeddings"] = maximum or rope.max_length
    return LlamaConfig(**sizes, rope_parameters={**geometry, **parameters})


def stock(config: Any, length: int | None = None, layer_type: str | None = None) -> sch.Frequencies:
    """What transformers computes for a configuration when ``length`` tokens are processed."""
    parameters = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
    kind = parameters["rope_type"]
    if kind == "default":
        table, scale = GPTNeoXRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        table, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length, layer_type=layer_type)
    return sch.Frequencies(table.double().tolist(), float(scale))


def assert_same(ours: sch.Frequencies, theirs: sch.Frequencies) -> None:
    assert list(ours.inv_freq) == pytest.approx(list(theirs.inv_freq), rel=RTOL, abs=0)
    assert ours.attention_scale == pytest.approx(theirs.attention_scale, rel=RTOL)


def lists(pairs: int) -> dict[str, Any]:
    """A short and a long list of different, growing divisors."""
    short, long = (tuple(1 + step * i for i in range(pairs)) for step in (0.01, 0.3))
    return {"short_factor": short, "long_factor": long}


YARNS: list[dict[str, Any]] = [
    {"factor": 4.0}, {"factor": 16.0, "truncate": False}, {"factor": 8.0, "beta_fast": 64.0, "beta_slow": 2.0},
    {"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.707},
    {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.5}, {"factor": 8.0, "mscale": 1.0},
    {"factor": 2.0, "attention_factor": 1.25}, {"factor": 1.0}, {"factor": 8.0, "beta_fast": 2.0, "beta_slow": 2.0},
]  # fmt: skip
LLAMA3S: list[dict[str, Any]] = [
    {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 16.0},
    {"factor": 1.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
]


# Schedules beside the rope parameters that mean the same, as a person would write them.
NATIVE: list[tuple[sch.BuiltIn, dict[str, Any]]] = [
    (sch.Base(), {"rope_type": "default"}),
    *((sch.Linear(s), {"rope_type": "linear", "factor": s}) for s in (1.0, 4.0, 64.0)),
    *((sch.Yarn(**fields), {"rope_type": "yarn", **fields}) for fields in YARNS),
    *((sch.Llama3(**fields), {"rope_type": "llama3", **fields}) for fields in LLAMA3S),
]


def label(value: Any) -> str:
    if isinstance(value, Rope):
        return f"d{value.rotary_dim}of{value.head_dim}-L{value.original_length}"
    return type(value).__name__ if isinstance(value, sch.BuiltIn) else "-".join(str(v) for v in value.values())


def with_original(rope: Rope, parameters: dict[str, Any]) -> dict[str, Any]:
    needs = parameters["rope_type"] in ("yarn", "llama3", "longrope")
    return {**parameters, "original_max_position_embeddings": rope.original_length} if needs else dict(parameters)


@pytest.mark.parametrize("rope", GEOMETRIES, ids=label)
@pytest.mark.parametrize(("schedule", "parameters"), NATIVE, ids=label)
def test_a_schedule_its_native_form_and_as_is_are_transformers_own_function(rope, schedule, parameters):
    assert_same(sch.compute(schedule, rope), stock(config_of(rope, with_original(rope, parameters))))
    assert_same(stock(config_of(rope, schedule.rope_parameters(rope))), sch.compute(schedule, rope))
    longest, unread = rope.original_length * 16, 7 if "original" in str(with_original(rope, parameters)) else None
    config = config_of(rope, with_original(rope, parameters), maximum=longest)
    read = replace(rope, theta=1.0, original_length=unread or rope.original_length, max_length=longest)
    assert_same(sch.compute(sch.AsIs(), replace(read, scaling=config.rope_parameters)), stock(config))


STRETCHES = [(factor, times) for factor in (1.0, 2.0) for times in (0.5, 1, 1.001, 7.3)]


@pytest.mark.parametrize("rope", GEOMETRIES, ids=label)
@pytest.mark.parametrize(("factor", "times"), [*STRETCHES, (8.0, 32)])
def test_dynamic_follows_the_length_as_transformers_does(rope: Rope, factor: float, times: float) -> None:
    length, schedule = int(rope.original_length * times), sch.Dynamic(factor)
    config = config_of(rope, schedule.rope_parameters(rope), maximum=rope.original_length)
    assert_same(sch.compute(schedule, rope, length), stock(config, length))
    read = replace(rope, original_length=7, max_length=rope.original_length, scaling=config.rope_parameters)
    assert_same(sch.compute(sch.AsIs(), read, length), stock(config, length))


@pytest.mark.parametrize("rope", GEOMETRIES, ids=label)
@pytest.mark.parametrize("given", [{}, {"factor": 1.5}, {"factor": 1.0}, {"attention_factor": 1.3}], ids=label)
@pytest.mark.parametrize("beyond", [0, 1, 1000])
def test_longrope_switches_lists_as_transformers_does(rope: Rope, given: dict[str, Any], beyond: int) -> None:
    rope = replace(rope, max_length=rope.original_length * 4)
    length = rope.original_length + beyond
    schedule = sch.LongRope(**lists(rope.pairs), **given)
    by_hand = {"rope_type": "longrope", **{k: list(v) for k, v in lists(rope.pairs).items()}, **given}
    config = config_of(rope, with_original(rope, by_hand))
    assert_same(sch.compute(schedule, rope, length), stock(config, length))
    assert_same(stock(config_of(rope, schedule.rope_parameters(rope)), length), stock(config, length))
    assert_same(sch.compute(sch.AsIs(), replace(rope, scaling=config.rope_parameters), length), stock(config, length))


@pytest.mark.parametrize("rope", [r for r in GEOMETRIES if r.head_dim == r.rotary_dim], ids=label)
@pytest.mark.parametrize("partial", [0.0, 0.25, 0.3, 0.75, 1.0])
@pytest.mark.parametrize("factor", [1.0, 8.0])
def test_proportional_is_transformers_own_function(rope: Rope, partial: float, factor: float) -> None:
    schedule = sch.Proportional(partial, factor)
    by_hand = {"rope_type": "proportional", "partial_rotary_factor": partial, "factor": factor}
    config = config_of(rope, by_hand)
    assert_same(sch.compute(schedule, rope), stock(config))
    assert_same(stock(config_of(rope, schedule.rope_parameters(rope))), stock(config))
    read = replace(rope, rotated_pairs=int(partial * rope.head_dim // 2), scaling=config.rope_parameters)
    assert_same(sch.compute(sch.AsIs(), read), stock(config))


@pytest.mark.parametrize("schedule", [sch.Base(), sch.Linear(4), sch.Ntk(8), sch.Abf(2e6)], ids=label)
@pytest.mark.parametrize("turning", [0, 5, 16, 31])
def test_theta_and_linear_keep_their_native_form_where_only_some_pairs_turn(schedule, turning):
    rope = Rope(64, 1e6, 4096, rotated_pairs=turning)
    assert_same(stock(config_of(rope, schedule.rope_parameters(rope))), sch.compute(schedule, rope))


ALIKE = [sch.Ntk(1), sch.Ntk(8), sch.Abf(2e6), sch.NtkByParts(8), sch.NtkByParts(4, beta_fast=8)]


@pytest.mark.parametrize("rope", GEOMETRIES, ids=label)
@pytest.mark.parametrize("schedule", ALIKE, ids=label)
def test_schedules_without_a_type_of_their_own_are_written_as_another(rope: Rope, schedule: sch.BuiltIn) -> None:
    written = schedule.rope_parameters(rope)
    assert written is not None
    assert written["rope_type"] in ("default", "llama3")
    assert_same(stock(config_of(rope, written)), sch.compute(schedule, rope))


def test_a_trained_length_below_one_turn_keeps_every_pair_as_in_transformers() -> None:
    rope = Rope(64, 10_000.0, 2)
    config = config_of(rope, {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 2})
    result = sch.compute(sch.Yarn(8), rope)
    assert_same(result, stock(config))
    assert list(result.inv_freq) == rope.inv_freq()


def test_a_beta_of_zero_means_the_default_as_in_transformers() -> None:
    rope = Rope(64, 10_000.0, 4096)
    written = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    config = config_of(rope, {**written, "beta_fast": 0, "beta_slow": 0})
    read = sch.compute(sch.AsIs(), replace(rope, scaling=config.rope_parameters))
    assert_same(read, stock(config))
    assert read == sch.compute(sch.Yarn(4), rope)


@pytest.mark.parametrize("truncate", [True, False])
def test_truncate_per_layer_type_is_read_as_transformers_reads_it(truncate: bool) -> None:
    parameters = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096, "truncate": truncate}
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "head_dim": 64, "max_position_embeddings": 32_768}
    by_layer = {"full_attention": {"rope_theta": 1e6, **parameters}}
    by_layer["sliding_attention"] = {"rope_type": "default", "rope_theta": 1e4}
    config = Gemma3TextConfig(**sizes, num_hidden_layers=2, layer_types=[*by_layer], rope_parameters=by_layer)
    rope = Rope(64, 1e6, 4096, max_length=32_768, layer_type="full_attention")
    read = replace(rope, scaling=config.rope_parameters["full_attention"])
    assert_same(sch.compute(sch.AsIs(), read), stock(config, layer_type="full_attention"))
    assert (sch.Yarn(8, truncate=truncate).rope_parameters(rope) is None) == (not truncate)


def test_hunyuans_fixed_alpha_is_read_as_its_own_class_computes_it() -> None:
    parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 1000.0, "factor": 1.0}
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "head_dim": 64, "max_position_embeddings": 4096}
    config = hunyuan.HunYuanDenseV1Config(**sizes, rope_parameters=parameters)
    module = hunyuan.HunYuanDenseV1RotaryEmbedding(config)
    module.forward(torch.zeros(1, 1, 8), torch.tensor([[100_000]]))  # the table stays as it is
    table = sch.Frequencies(module.inv_freq.double().tolist(), float(module.attention_scaling))
    assert_same(sch.compute(sch.AsIs(), Rope(64, 1e4, 4096, scaling=parameters)), table)


def test_a_scaling_without_its_factor_takes_it_from_the_two_lengths() -> None:
    rope = Rope(64, 1e4, 4096, max_length=32_768, scaling={"rope_type": "yarn", "factor": None})
    assert sch.from_rope_parameters(rope)[0] == sch.Yarn(8.0)


def test_phi3_names_of_longrope_are_understood() -> None:
    numbers = lists(32)
    for old in ("su", "yarn"):
        scaling = {"type": old, **{key: list(value) for key, value in numbers.items()}}
        schedule, _ = sch.from_rope_parameters(Rope(64, 1e4, 4096, max_length=131_072, scaling=scaling))
        assert schedule == sch.LongRope(**numbers)
