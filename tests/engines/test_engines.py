"""Engines' differences from what was asked, and what the card of a patched checkpoint says of them."""

import json
import shlex
from pathlib import Path
from typing import Any

import generate_model_code
import own_schedules
import pytest
from configurations import DEEPSEEK_V3, GPT_OSS, LLAMA, MINISTRAL3, QWEN3, plain, write_checkpoint
from coverage_models import SEEING
from planning import make_plan

import ropescale
from ropescale.checkpoints.contents import card
from ropescale.configs.configuration import Configuration
from ropescale.configs.families import FAMILIES
from ropescale.engines import model_code, sglang, vllm
from ropescale.engines.base import layers_of
from ropescale.engines.exported import engine_warnings

MROPE = {"type": "mrope", "mrope_section": [8, 12, 12]}
# Configurations by name; any other name is that of a type with Llama's sizes.
CONFIGS = {
    "qwen3": QWEN3,
    "gpt_oss": GPT_OSS,
    "deepseek_v3": DEEPSEEK_V3,
    "gemma3_text": {"model_type": "gemma3_text", "head_dim": 128, "max_position_embeddings": 8192},
    "dbrx": {"model_type": "dbrx", "d_model": 128, "n_heads": 2, "attn_config": {"rope_theta": 1e4}},
    "lfm3": {"model_type": "lfm3", "max_position_embeddings": 8192},
    "llama4_text": LLAMA | {"model_type": "llama4_text", "no_rope_layers": [1], "num_hidden_layers": 1},
    "qwen2_vl_text": LLAMA | {"model_type": "qwen2_vl_text", "rope_scaling": MROPE},
    "qwen3_vl_text": LLAMA | {"model_type": "qwen3_vl_text", "rope_scaling": MROPE},
    "ministral3": MINISTRAL3,
    "own code": LLAMA | {"model_type": "my", "architectures": ["My"], "auto_map": {"AutoModel": "my.My"}},
    "own class": LLAMA | {"architectures": ["LlamaTwiceForCausalLM"]},
    "gpt_neox": plain("gpt_neox", 256, 2, 2048, rotary_pct=0.5, rotary_emb_base=10000),
    "no class": LLAMA | {"architectures": ["LlamaModel"], "partial_rotary_factor": 0.5},
    "lighton_ocr": {"model_type": "lighton_ocr", "text_config": LLAMA | {"model_type": "qwen3"}},
    "qwen3_vl": {"model_type": "qwen3_vl", "text_config": LLAMA | {"model_type": "qwen3_vl_text"}},
}

PER_PAIR = "ntk-su:factor=4"
SERVES = "vLLM: serves the original length by default; pass --max-model-len"
DROPS = "llama.cpp: its converter drops per-pair factors"
RAISES = "vLLM and SGLang: raise max_position_embeddings by the factor"
NO_PROPORTIONAL = [
    "llama.cpp: does not support proportional RoPE for this architecture",
    "transformers 4: does not support proportional RoPE and stops with a KeyError",
]
ROWS = "cannot use the three rows of positions of qwen2_vl_text under {}; "
BY_VLLM, BY_SGLANG = f"vLLM: {ROWS}use ntk, or serve", f"SGLang: {ROWS}use yarn or ntk, or serve it with"
SOFTMAX = "llama.cpp: derives a softmax scale of its own from the scaling factor (1.296 instead of 1)"
FOREIGN = "transformers 5 and transformers 4: lack {}, and it is not known what the checkpoint's own code, if any, r"
TWO_LISTS = {"name": "longrope", "factor": 32, "short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
# A configuration, a schedule, and the beginnings of all that is said.
WARNINGS: list[tuple[str, Any, list[str]]] = [
    *(("llama", spec, []) for spec in ("yarn:factor=4", "yarn:factor=3.3", "llama3:factor=4", "ntk:factor=4")),
    ("llama", "linear:factor=4", [RAISES]),
    ("llama", "yarn:factor=4,truncate=false", [
        "llama.cpp: always rounds the ramp",
        "mlx-lm: always rounds the ramp to whole pairs (truncate = true); `ropescale export --for mlx-lm` avoids it"]),
    ("llama", "yarn:factor=4,attention_factor=1", [
        "SGLang: recomputes the attention factor (1.139 instead of 1)",
        "llama.cpp: recomputes the attention factor (1.139 instead of 1); `ropescale export",
        "mlx-lm: recomputes the attention factor (1.139 instead of 1); `ropescale export"]),
    ("llama", "dynamic:factor=2", [
        "vLLM: computes one static table, base RoPE of 4,096 positions",
        "SGLang: computes one static table, for 8,192 tokens",
        "llama.cpp: has no dynamic scaling",
        "transformers 5 and transformers 4: keep state between calls"]),
    ("llama", PER_PAIR, [
        f"{SERVES} 16384",
        f"{DROPS} for this architecture, silently leaving base RoPE; `ropescale export --for llama.cpp` avoids",
        "mlx-lm: computes the attention factor of per-pair factors from the lengths (1.08 instead of 1)"]),
    ("llama", "proportional:partial_rotary_factor=0", [
        "vLLM: refuses proportional RoPE with partial_rotary_factor 0", *NO_PROPORTIONAL]),
    ("llama", "proportional:partial_rotary_factor=0.5", NO_PROPORTIONAL),  # SGLang's llama.py reads the share
    ("qwen3", "proportional:partial_rotary_factor=0.5", ["SGLang: ignores the scaling of qwen3", *NO_PROPORTIONAL]),
    ("gpt_neox", "abf:rope_theta=50000", []),
    ("llama", "proportional:partial_rotary_factor=1,factor=4", [
        "vLLM and SGLang: ignore the factor", "llama.cpp: ignores the factor of proportional RoPE; `ropescale export",
        *NO_PROPORTIONAL]),
    ("phi3", TWO_LISTS, [
        "vLLM and llama.cpp: choose the short or the long list once",
        f"{SERVES} 131072",
        "SGLang: selects the list batch by batch",
        "mlx-lm: always uses the long list",
        "transformers 5: before 5.20, generation past 4,096 tokens forgets the previous text"]),
    ("gpt_oss", "linear:factor=4", ["vLLM: is hard-wired to yarn for gpt-oss", RAISES]),
    ("gpt_oss", "yarn:factor=64,truncate=false", ["llama.cpp and mlx-lm: always round the ramp"]),
    ("qwen3", "llama3:factor=4", ["llama.cpp: does not apply llama3 scaling"]),
    ("qwen2_vl_text", "ntk:factor=4", []),
    ("qwen2_vl_text", "yarn:factor=4", ["vLLM: computes the ramp of qwen2_vl_text from 16384 trained tokens"]),
    ("qwen3_vl_text", "yarn:factor=4", []),
    ("qwen2_vl_text", "linear:factor=4", [BY_VLLM.format("linear"), RAISES, BY_SGLANG.format("linear")]),
    ("qwen2_vl_text", "llama3:factor=4", [
        BY_VLLM.format("llama3"), BY_SGLANG.format("llama3"), "llama.cpp: does not apply llama3 scaling"]),
    ("qwen2_vl_text", PER_PAIR, [
        BY_VLLM.format("longrope"), SERVES, BY_SGLANG.format("longrope"), f"{DROPS} for this architecture"]),
    ("qwen2_vl_text", "proportional:partial_rotary_factor=0.5", [
        f"vLLM and SGLang: {ROWS}serve it with transformers 5".format("proportional"), *NO_PROPORTIONAL]),
    ("deepseek_v3", "linear:factor=4", [
        "vLLM and SGLang: overwrite linear with deepseek_yarn on MLA models", RAISES, SOFTMAX]),
    ("deepseek_v3", "yarn:factor=4", []),  # the makers' mscale and mscale_all_dim are kept
    ("deepseek_v3", "yarn:factor=4,mscale=1,mscale_all_dim=0", [SOFTMAX]),
    ("deepseek_v3", "yarn:factor=4,mscale=1,mscale_all_dim=1", []),
    ("deepseek_v3", "yarn:factor=4,mscale=1,mscale_all_dim=0.5", [
        "llama.cpp: recomputes the attention factor (1 instead of 1.065)"]),
    ("deepseek_v3", "yarn:factor=4,mscale=1,mscale_all_dim=0,attention_factor=1", [
        "vLLM: replaces an attention factor of 1 on MLA models by deepseek_llama_scaling",
        "SGLang: recomputes the attention factor (1.139 instead of 1)",
        SOFTMAX,
        "llama.cpp: recomputes the attention factor (1.139 instead of 1)",
        "mlx-lm: recomputes the attention factor"]),
    ("deepseek_v3", PER_PAIR, [
        "vLLM and SGLang: overwrite longrope with deepseek_yarn on MLA models",
        DROPS,
        "mlx-lm: cannot apply per-pair factors to the pairs of deepseek_v3"]),
    ("gemma3_text", {"sliding_attention": "yarn:factor=4"}, [
        "SGLang: was not checked with yarn for gemma3_text",  # its file has a rotary layer of its own
        "mlx-lm: reads no scaling for the sliding_attention layers of gemma3_text",
        "transformers 4: has no keys for a scaled gemma3_text (sliding_attention)"]),
    ("lfm3", "linear:factor=4", [
        "vLLM and SGLang: lack Lfm3ForCausalLM",
        "llama.cpp: ignores the factor of proportional RoPE",
        "transformers 4: lacks lfm3"]),
    ("mistral", "linear:factor=4", [RAISES]),
    ("deepseek_v2", "yarn:factor=4,mscale=1,mscale_all_dim=1", [
        "transformers 4: leaves out the softmax scale of mscale_all_dim for deepseek_v2; use yarn or linear or ntk, or",
    ]),
    ("deepseek_v3", "ntk:factor=4", []),
    ("dbrx", "ntk:factor=4", ["SGLang: was not checked with default for dbrx"]),
    ("dbrx", "linear:factor=4", [
        "vLLM: ignores the scaling of dbrx, silently", RAISES, "SGLang: does not scale dbrx, silently",
        "llama.cpp: its converter writes no linear scaling for dbrx",
        "mlx-lm: reads no scaling for dbrx",
        "transformers 4: ignores rope_scaling for dbrx"]),
    ("olmo3", "ntk:factor=4", ["transformers 4: has one theta for all layers of olmo3, so the other layers change"]),
    ("gemma3_text", PER_PAIR, [
        SERVES, "SGLang: was not checked with longrope", DROPS, "mlx-lm: computes the attention factor",
        "transformers 5: before 5.21, the second forward pass over more than 8,192 tokens fails (full_attention)"]),
    ("olmo2", "linear:factor=4", [RAISES]),
    ("olmo2", "yarn:factor=4", ["transformers 4: refuses yarn scaling for olmo2; use linear or ntk, or serve"]),
    ("olmo2", PER_PAIR, [
        SERVES, DROPS, "mlx-lm: computes the attention factor", "transformers 4: refuses per-pair factors for olmo2"]),
    ("nemotron", PER_PAIR, [
        SERVES, DROPS, "mlx-lm: stops with an error at longrope for nemotron",
        "transformers 4: ignores rope_scaling for nemotron"]),
    *((name, PER_PAIR, [
        f"vLLM and SGLang: cannot apply per-pair factors to the pairs of {name}; use yarn or linear or ntk, or serve",
        DROPS, f"mlx-lm: reads no scaling for {name}",
    ]) for name in ("cohere", "ernie4_5_moe", "glm4")),
    ("helium", PER_PAIR, [SERVES, DROPS, "mlx-lm: reads no scaling for helium"]),  # vLLM runs transformers' code
    ("llama4_text", PER_PAIR, [
        "vLLM and SGLang: was not checked with longrope for llama4_text", SERVES, DROPS, "mlx-lm: reads no scaling for",
    ]),
    ("glm", PER_PAIR, [SERVES, DROPS, "mlx-lm: does not rotate the 32 of 64 coordinates of glm"]),
    ("glm", "ntk:factor=4", ["mlx-lm: does not rotate the 32 of 64 coordinates of glm"]),
    ("cohere2_moe", PER_PAIR, [
        "vLLM and SGLang: cannot apply per-pair factors to the pairs of cohere2_moe", DROPS,
        "transformers 4: lacks cohere2_moe"]),
    ("mycustom", "yarn:factor=4", ["vLLM and SGLang: lack mycustom", FOREIGN.format("mycustom")]),
    ("own class", "yarn:factor=4", [
        "vLLM and SGLang: lack LlamaTwiceForCausalLM", FOREIGN.format("LlamaTwiceForCausalLM")]),
    ("own code", "yarn:factor=4", [
        "vLLM and SGLang: run My with the checkpoint's own code, if at all", FOREIGN.format("my")]),
    ("no class", "llama3:factor=4", []),
    ("bamba", "yarn:factor=4", [
        "SGLang: lacks BambaForCausalLM", "llama.cpp: its converter was not checked with yarn for bamba"]),
    ("mixtral", "yarn:factor=4", ["SGLang: does not scale mixtral, silently", "mlx-lm: reads no scaling for mixtral"]),
    ("ministral3", "yarn:factor=32", ["vLLM: does not scale queries: config.json", "transformers 4: lacks ministral3"]),
    ("lighton_ocr", "yarn:factor=4", ["transformers 4: lacks lighton_ocr, which came with transformers 5"]),
    ("qwen3_vl", "yarn:factor=4", []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "spec", "said"), WARNINGS)
def test_each_engines_difference_is_said_where_it_is_and_only_there(name, spec, said):
    config = CONFIGS.get(name, LLAMA | {"model_type": name})
    layers = "all" if name in ("cohere2_moe", "llama4_text") else "full"  # whose full-attention layers do not rotate
    is_scaled = Configuration.read(config).is_scaled
    found = engine_warnings(make_plan(config, spec, replace_scaling=is_scaled, layers=layers))
    assert len(found) == len(said) and all(map(str.startswith, found, said)), found


def card_of(config: dict[str, Any], spec: str, source: str = "org/name") -> str:
    """The card of a patched checkpoint whose source has none."""
    return card(Path("no README.md"), make_plan(config, spec), source).decode()


def test_engines_are_told_the_pairs_that_the_schedule_was_computed_for():
    latent = {"model_type": "bailing_hybrid", "max_position_embeddings": 4096}  # rotates a slice of its heads
    plan = make_plan(latent, "proportional:partial_rotary_factor=0.5")
    assert [layers.rope for layers in layers_of(plan)] == [plan.layers["all"].rope]
    assert plan.layers["all"].rope.pairs == 32


def test_every_type_that_is_interleaved_in_transformers_is_told_apart_from_the_engines_halves(repository):
    outcomes = json.loads((repository / "tests" / "helpers" / "model_coverage" / "coverage.json").read_text())
    interleaved = {name for name, outcome in outcomes.items() if outcome.get("pairs") == "interleaved"}
    interleaved -= {*SEEING}  # under whose names no language model lies
    assert interleaved == {name for name, record in FAMILIES.items() if record.interleaved}
    assert interleaved > vllm.TURN_HALVES_AFTER_ALL


@pytest.mark.engines
def test_the_lists_of_models_are_those_of_the_engines_sources():
    assert model_code.load()["versions"]["vllm"] == vllm.ENGINE.version
    assert model_code.load()["versions"]["sglang"] == sglang.ENGINE.version
    assert generate_model_code.generate() == model_code.load()


def test_the_card_has_the_numbers_of_a_schedule_whose_file_the_reader_lacks(tmp_path):
    plan = make_plan(LLAMA, f"{own_schedules.__file__}::Half:factor=4")
    text = card(tmp_path / "README.md", plan, "org/name").decode()
    command = next(line for line in text.replace(" \\\n  ", " ").splitlines() if line.startswith("ropescale gguf"))
    words = shlex.split(command)
    assert words[:5] == ["ropescale", "gguf", "name.gguf", "-o", "PATH-16384.gguf"]
    options = dict(zip(words[5::2], words[6::2]))
    assert set(options) == {"--schedule", "--target-length"}
    again = make_plan(LLAMA, options["--schedule"], target_length=options["--target-length"])
    assert again.length == 16384
    assert again.tables["all"].inv_freq == pytest.approx(plan.tables["all"].inv_freq, rel=1e-14)


def test_the_card_names_the_folder_in_every_command():
    text = card_of(LLAMA, "ntk-su:factor=4", "org/base")
    for command in ("vllm serve PATH ", "--model-path PATH ", "`ropescale verify PATH`", "-o PATH-16384.gguf"):
        assert command in text
    assert text.count('from_pretrained("PATH")') == 2


def test_the_card_lets_code_run_only_where_the_checkpoint_needs_its_own():
    auto_map = {"auto_map": {"AutoModelForCausalLM": "modeling.My"}}
    own = card_of(LLAMA | auto_map | {"model_type": "my"}, "yarn:factor=4", "a")
    assert own.count('from_pretrained("PATH", trust_remote_code=True)') == 2
    assert "ropescale verify PATH --trust-remote-code" in own
    assert len([line for line in own.splitlines() if "serve" in line and "--trust-remote-code" in line]) == 2
    assert "trust" not in card_of(LLAMA | auto_map, "yarn:factor=4", "a")


def test_the_card_says_what_was_frozen_and_under_its_commands_what_an_engine_does_otherwise(tmp_path):
    before, after = card_of(LLAMA, "dynamic:factor=4").split("Some engines differ from the requested schedule:")
    assert "vllm serve PATH" in before and "* vLLM: computes one static table" in after
    source = write_checkpoint(tmp_path / "in", LLAMA)
    ropescale.patch_checkpoint(source, tmp_path / "out", "dynamic:factor=4", freeze_at="16k")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "| all | `dynamic:factor=4 frozen at 16384 tokens` | 4096 | 16384 |" in text and "://" not in text
    record = json.loads((tmp_path / "out" / "ropescale.json").read_text())
    assert record["frozen"] == {"all": "dynamic:factor=4 frozen at 16384 tokens"}
    assert record["spec"]["all"].startswith("table:")
