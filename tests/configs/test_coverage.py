"""Every causal language model of transformers: patched in memory and on disk, or refused by name with the reason."""

import json
import os
from pathlib import Path
from typing import Any

import coverage_outcomes as outcomes
import models_page
import pytest
import tiny_models
import torch
import transformers
from configurations import write_checkpoint
from coverage_measuring import TOKENS, assert_live, measure, snapshot
from coverage_models import SEEING, TRAINED, TYPES, build, logits, tiny_config
from coverage_oracle import FACTOR, SCHEDULES, Table, expected, geometries, rotary_modules, yarn_table
from packaging.version import Version
from rotary_modules import quiet, tables_of

import ropescale
from ropescale.errors import ConfigError

MEASURED = outcomes.load()
# The types with a table per layer type.
NESTED = [name for name, outcome in MEASURED.items() if len(outcome.get("tables", ())) > 1]

A_DOZEN = (
    "llama",  # one table, halves
    "gemma3_text",  # a table per layer type
    "gpt_oss",  # one table over mixed layers, half-width cos and sin, scaled by its makers
    "cohere2",  # full-attention layers that do not rotate
    "deepseek_v2",  # MLA, complex numbers, the softmax scale
    "granite_swa",  # a list of thetas
    "phi3",  # per pair only, its scale in the maximum length
    "phimoe",  # both lists and both scales
    "ministral3",  # keys that it reads in every forward
    "recurrent_gemma",  # another theta only
    "gptj",  # sinusoids
    "bloom",  # no rotary embeddings
)

# Later versions must do the same; earlier ones lack some of the types.
MEASURED_WITH = "5.23.0"

OLDER = Version(transformers.__version__) < Version(MEASURED_WITH)
pytestmark = pytest.mark.skipif(OLDER, reason=f"measured with transformers {MEASURED_WITH}")


def of_this_shard(types: list[str]) -> list[str]:
    """``ROPESCALE_SHARD=2/4``: every fourth type, from the second."""
    number, _, count = os.environ.get("ROPESCALE_SHARD", "1/1").partition("/")
    return types[int(number) - 1 :: int(count)]


OTHERS = of_this_shard([name for name in TYPES if name not in A_DOZEN])


@pytest.mark.parametrize("model_type", [*A_DOZEN, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_a_type_does_under_four_schedules_what_the_support_table_says(model_type, tmp_path):
    assert measure(model_type, tmp_path) == MEASURED[model_type]


@pytest.mark.parametrize("off", [1.00001, 1.001])
def test_the_check_notices_frequencies_and_scales_that_are_a_little_off(off, tmp_path):
    model, _ = made("llama", tmp_path)
    [rope] = geometries(model, TRAINED).values()
    inv_freq, scale = expected("yarn", rope)
    with ropescale.patch(model, "yarn:factor=4"):
        assert_live(model, {"all": (inv_freq, scale)})
        for wrong in ((inv_freq * off, scale), (inv_freq, scale * off**2)):
            with pytest.raises(AssertionError):
                assert_live(model, {"all": wrong})


# ---------------------------------------------------------------------------------------------------------
# The table


def test_the_table_has_every_type_that_transformers_has():
    assert set(MEASURED) == set(TYPES)
    assert len(MEASURED) + len(outcomes.UNMEASURED) == 272
    assert len(NESTED) == 24  # and beam, whose full-attention layers have none


def test_exactly_these_types_are_refused_and_each_by_name_with_its_reason():
    refused = {name: outcome["refused"] for name, outcome in MEASURED.items() if "refused" in outcome}
    assert refused.keys() == outcomes.REASONS.keys()
    for name, reason in refused.items():
        assert (name in SEEING or reason.startswith(name)) and outcomes.REASONS[name] in reason


def test_all_but_three_of_the_189_types_with_rope_parameters_take_every_schedule_and_blt_says_why_not():
    with_rope = {*MEASURED} - {*outcomes.REASONS} | {"blt"}
    assert len(with_rope) == 189
    refused = {name for name in with_rope if any(f"{v}".startswith("refused") for v in MEASURED[name].values())}
    taking = with_rope - {"blt"} - refused
    assert with_rope - taking == {"blt", *outcomes.THETA_ONLY}
    for name, words in outcomes.THETA_ONLY.items():
        for schedule, label in {"linear": "linear", "yarn": "yarn", "llama3": "llama3", "table": "Waves"}.items():
            text = MEASURED[name][schedule]
            assert text.startswith(f"refused: {name}") and text.endswith(words.format(label))


def test_the_page_is_what_the_measured_table_gives(repository):
    page = (repository / "docs" / "models.md").read_text(encoding="utf-8")
    assert page == models_page.page(MEASURED), "run python tests/tools/models_page.py"


# ---------------------------------------------------------------------------------------------------------
# Particular types


def made(model_type: str, folder: Path, **changes: Any) -> tuple[Any, Path]:
    """A tiny model and the folder of its configuration."""
    source = write_checkpoint(folder / "source", tiny_config(model_type) | changes)
    return build(source), source


def assert_both(model: Any, source: Path, schedule: Any, wanted: dict[str, Table], **options: Any) -> dict[str, Any]:
    """In memory, and in the checkpoint that stock transformers loads; returns the configuration written."""
    target = source.parent / "target"
    with quiet(), ropescale.patch(model, schedule, **options):
        ropescale.patch_checkpoint(source, target, schedule, **options)
        assert_live(model, wanted)
        stock = build(target)
        assert_live(stock, wanted)
        stock.load_state_dict(model.state_dict())
        assert torch.equal(logits(stock, TOKENS), logits(model, TOKENS))
    return json.loads((target / "config.json").read_text())


@pytest.mark.parametrize("schedule", ["abf:rope_theta=5e5", "ntk:factor=4"])
def test_recurrent_gemma_takes_another_theta_in_memory_and_on_disk(schedule, tmp_path):
    model, source = made("recurrent_gemma", tmp_path)
    [rope] = geometries(model, TRAINED).values()
    theta = 5e5 if "abf" in schedule else rope.theta * 4 ** (rope.dim / (rope.dim - 2))
    steps = torch.arange(rope.dim // 2, dtype=torch.float64) * 2 / rope.dim
    assert_both(model, source, schedule, {"all": (theta**-steps, 1.0)}, original_length=TRAINED)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in of_this_shard(NESTED) if name != "olmo3"]


@pytest.mark.parametrize("model_type", ["olmo3", *SLOW])
def test_a_ramp_that_is_not_rounded_reaches_tables_per_layer_type_which_transformers_would_round(model_type, tmp_path):
    """transformers 5.23 looks for ``truncate`` beside the layer types, so this must be written pair by pair."""
    model, source = made(model_type, tmp_path)
    ropes = geometries(model, TRAINED)
    wanted = {key: yarn_table(rope, truncate=False) for key, rope in ropes.items()}
    assert any(not torch.equal(table, yarn_table(ropes[key])[0]) for key, (table, _) in wanted.items())
    written = assert_both(model, source, "yarn:factor=4,truncate=false", wanted, layers="all")
    parameters = written.get("text_config", written)["rope_parameters"]
    assert {parameters[key]["rope_type"] for key in ropes} == {"longrope"}


@pytest.mark.parametrize("schedule", ["linear", "yarn", "llama3", "table"])
def test_an_odd_rotary_dim_has_a_pair_for_the_last_coordinate_alone(schedule, tmp_path):
    """transformers' own yarn cannot build half a pair; the exponents count the odd dim."""
    with quiet():
        config = tiny_config("mimo_v2_flash", head_dim=16)  # 0.334 of 16 coordinates: 5
    source = write_checkpoint(tmp_path / "source", config)
    found = ropescale.frequencies(source, SCHEDULES[schedule])["full_attention"]
    ropescale.patch_checkpoint(source, tmp_path / "target", SCHEDULES[schedule])
    with quiet():
        module = dict(rotary_modules(build(tmp_path / "target")))["model.rotary_emb"]
    assert tables_of(module)["full_attention"][0].tolist() == pytest.approx(list(found.inv_freq), rel=2e-6)
    assert len(found.inv_freq) == 3
    if schedule == "linear":
        assert list(found.inv_freq) == pytest.approx([5e6 ** (-2 * i / 5) / FACTOR for i in range(3)], rel=1e-14)


UNLIKE = [
    ("falcon", {"alibi": True}, "this falcon has no rotary position embeddings: alibi is true"),
    ("granitemoehybrid", {"position_embedding_type": None}, "position_embedding_type is null"),
    ("zamba2", {"use_mem_rope": False}, "use_mem_rope is false in its configuration, and it only rotates with"),
    ("granite_swa", {"layer_rope_theta": [1e4, 5e5]}, "layer_rope_theta gives some layers the theta 500000"),
]


@pytest.mark.parametrize(("model_type", "changes", "words"), UNLIKE)
def test_a_model_that_rotates_unlike_its_type_is_refused_in_memory_and_on_disk(model_type, changes, words, tmp_path):
    model, source = made(model_type, tmp_path, **changes)
    before = snapshot(model)
    with quiet(), pytest.raises(ConfigError, match=words):
        ropescale.patch(model, "linear:factor=4")
    with pytest.raises(ConfigError, match=words):
        ropescale.patch_checkpoint(source, tmp_path / "target", "linear:factor=4")
    tiny_models.assert_same(before, snapshot(model))
    assert not (tmp_path / "target").exists()


OLDER_KEYS = [
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
    ("deepseek_v3", {"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
    ("cohere2_moe", {"rope_theta": 5e4}),
]


@pytest.mark.parametrize(("model_type", "said"), OLDER_KEYS)
@pytest.mark.parametrize("schedule", ["linear", "table"])
def test_what_transformers_reads_of_older_keys_is_scaled_in_memory_and_on_disk(model_type, said, schedule, tmp_path):
    """A partial factor that plain tables ignore and scaled ones would follow; a theta that nothing else states."""
    config = tiny_config(model_type)
    for key in ("rope_parameters", "rope_theta", "rope_scaling"):
        config.pop(key, None)
    source = write_checkpoint(tmp_path / "source", config | said)
    model = build(source)
    before, ropes = logits(model, TOKENS), geometries(model, TRAINED)
    assert ropes["all"].theta == said.get("rope_theta", 1e4) and ropes["all"].dim == 32
    wanted = {"all": expected(schedule, ropes["all"])}
    assert_both(model, source, SCHEDULES[schedule], wanted, layers="all")
    assert torch.equal(logits(model, TOKENS), before)


def test_a_null_head_dim_of_a_language_model_inside_is_written_out(tmp_path):
    config = tiny_config("qwen2_vl")
    config["text_config"]["head_dim"] = None
    config["vision_config"]["embed_dim"] = 32
    source = write_checkpoint(tmp_path / "source", config)
    ropescale.patch_checkpoint(source, tmp_path / "target", "yarn:factor=4")
    stock = build(tmp_path / "target")
    [rope] = geometries(stock, TRAINED).values()
    assert_live(stock, {"all": yarn_table(rope)})


@pytest.mark.parametrize(("schedule", "theta"), [("linear:factor=4", 5e5), ("abf:rope_theta=8e6", 8e6)])
def test_dbrx_states_its_theta_at_the_top_level_and_the_same_in_attn_config(schedule, theta, tmp_path):
    """Its releases have the second only, which transformers 5 does not look at and transformers 4 did."""
    attention = {"kv_n_heads": 2, "rope_theta": 5e5, "clip_qkv": 8.0}
    model, source = made("dbrx", tmp_path, attn_config=attention, rope_parameters=None, rope_theta=5e5)
    steps = torch.arange(16, dtype=torch.float64) / 16
    factor = FACTOR if schedule.startswith("linear") else 1.0
    written = assert_both(model, source, schedule, {"all": (theta**-steps / factor, 1.0)})
    assert written["attn_config"]["rope_theta"] == written["rope_theta"] == theta
    assert ropescale.frequencies(source.parent / "target", "as-is")["all"].inv_freq[1] < 1.0
