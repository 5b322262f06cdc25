"""Advice that names a key of config.json, or an option, is followed as a person would, and leads out."""

import re
from typing import Any

import pytest
from configurations import LLAMA, PHI3_128K, plain, write_checkpoint

GEMMA3 = plain("gemma3_text", 64, 2, 8192, 1e6, head_dim=128)
GEMMA4 = {"model_type": "gemma4_text", "hidden_size": 64, "num_attention_heads": 2, "max_position_embeddings": 8192}
DEEPSEEK = plain("deepseek_v3", 64, 2, 4096, qk_rope_head_dim=32)
FULL, SLIDING = {"rope_type": "default", "rope_theta": 1e6}, {"rope_type": "default", "rope_theta": 1e4}
LINEAR, OLD = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}, {"type": "linear", "factor": 2.0}
BOTH = {"full_attention": LINEAR, "sliding_attention": SLIDING}
DYNAMIC = LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}
NULLS = ("truncate", "beta_fast", "beta_slow")

EDITS: list[tuple[dict[str, Any], dict[str, Any], str, dict[str, Any]]] = [
    (LLAMA, {"rope_scaling": OLD | {"rope_type": "yarn"}}, "keep one", {"rope_scaling": OLD}),
    (LLAMA, {"rope_parameters": LINEAR, "rope_scaling": OLD | {"factor": 4.0}}, "remove one", {"rope_scaling": None}),
    (LLAMA, {"rope_parameters": LINEAR | {"rope_theta": 5.0}}, "make them agree", {"rope_theta": 5.0}),
    (GEMMA3, {"rope_parameters": LINEAR, "rope_theta": None}, "under the layer type", {"rope_parameters": BOTH}),
    (GEMMA3, {"rope_scaling": OLD}, "write rope_type", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    (LLAMA, {"rope_parameters": BOTH}, "give one flat rope_parameters", {"rope_parameters": LINEAR}),
    (LLAMA, {"rope_parameters": LINEAR | {"partial_rotary_factor": 0.5}}, "the partial_", {"rope_parameters": LINEAR}),
    (GEMMA4, {"rope_parameters": {"full_attention": FULL}}, "state its parameters too", {"rope_parameters": BOTH}),
    (DEEPSEEK, {"head_dim": 16}, "make them equal", {"head_dim": 32}),
    (plain("dbrx", 64, 4, 4096), {"attn_config": {"rope_theta": 5e5}}, "write rope_theta 500000", {"rope_theta": 5e5}),
    (LLAMA, {"head_dim": 33}, "give an even head_dim", {"head_dim": 34}),
    (LLAMA, {"rope_scaling": DYNAMIC["rope_scaling"] | {"alpha": 9.0}}, "scales, and transformers' llama", DYNAMIC),
    (LLAMA, {"rope_scaling": OLD | {"type": "yarn", "extrapolation_factor": 0.5}}, "not; remove it", DYNAMIC),
    *((LLAMA, {"rope_scaling": OLD | {"type": "yarn", null: None}}, "give its value", DYNAMIC) for null in NULLS),
]


@pytest.mark.parametrize(("config", "wrong", "advice", "edit"), EDITS)
def test_an_edit_of_the_configuration_that_is_advised_is_accepted(config, wrong, advice, edit, tmp_path, ran, refused):
    assert advice in refused("inspect", write_checkpoint(tmp_path, config | wrong))
    ran("inspect", write_checkpoint(tmp_path, config | wrong | edit))


FREEZES = "dynamic:factor=4 --dry-run"
LONG = "--target-length 1m --dry-run"
OPTIONS = [
    (LLAMA, "yarn:factor=2", "use a dry run (-o, --dry-run)", "yarn:factor=2 --dry-run"),
    (LLAMA, "yarn:factor=2 -o M", "is the source itself; choose another folder", "yarn:factor=2 -o P"),
    (LLAMA, "as-is --freeze-at 8k --dry-run", "name a schedule", "dynamic:factor=2 --freeze-at 8k --dry-run"),
    (DYNAMIC, f"as-is {LONG}", "by a schedule (--replace-scaling, ", f"yarn {LONG} --replace-scaling"),
    (PHI3_128K, "yarn:factor=64 --on-top --dry-run", "(--replace-", "yarn:factor=64 --replace-scaling --dry-run"),
    (PHI3_128K, "base --dry-run", "(--replace-scaling)", "base --replace-scaling --dry-run"),
    (PHI3_128K, FREEZES, "8192 (--replace-scaling, --freeze-at)", f"{FREEZES} --replace-scaling --freeze-at 8192"),
    (LLAMA, "yarn:factor=2 --layers sliding --dry-run", "all (--layers)", "yarn:factor=2 --layers all --dry-run"),
    (LLAMA, "yarn:factor=2 --target-length 1m --dry-run", "use the factor 256,", "yarn:factor=256 --dry-run"),
    (LLAMA, "yarn --dry-run", "yarn:factor=8", "yarn:factor=8 --dry-run"),
    (LLAMA, "abf:rope_theta=1e6 --factor 2 --dry-run", "it has rope_theta", "abf:rope_theta=1e6 --dry-run"),
]


@pytest.mark.parametrize(("config", "words", "advice", "followed"), OPTIONS)
def test_an_option_that_is_advised_is_accepted(config, words, advice, followed, tmp_path, ran, refused, monkeypatch):
    monkeypatch.chdir(write_checkpoint(tmp_path / "M", config).parent)
    assert advice in refused("patch", "M", "--schedule", *words.split())
    ran("patch", "M", "--schedule", *followed.split())


@pytest.mark.parametrize(("wrong", "why"), [({"truncate": "false"}, "true or false"), ({"beta_fast": 1}, "be smaller")])
def test_a_wrong_value_is_named_where_no_option_leads_past_it(wrong, why, tmp_path, refused):
    scaling = {"rope_type": "yarn", "factor": 8.0, "beta_slow": 32, "beta_fast": 64} | wrong
    folder = write_checkpoint(tmp_path, LLAMA | {"rope_scaling": scaling})
    for words in ("inspect", "patch --dry-run --schedule yarn:factor=2", "export --for vllm"):
        said = refused(*words.split(), folder)
        assert f"the checkpoint's rope parameters: yarn: {next(iter(wrong))} " in said
        assert why in said


@pytest.mark.parametrize("target", [4097, 1048577])
def test_the_factor_that_is_advised_for_a_length_is_exact_enough_for_it(target, tmp_path, ran, refused):
    patch = ["patch", write_checkpoint(tmp_path, LLAMA), "--dry-run", "--target-length", target, "--schedule"]
    (factor,) = re.findall("use the factor (.*), or", refused(*patch, "yarn:factor=2"))
    ran(*patch, f"yarn:factor={factor}")


def test_the_factor_that_untouched_layers_derive_is_advised_for_their_own_parameters(tmp_path, ran, refused):
    sliding = {"rope_type": "yarn", "rope_theta": 1e4, "factor": None, "original_max_position_embeddings": 3000}
    config = GEMMA4 | {"rope_parameters": {"full_attention": FULL, "sliding_attention": sliding}}
    patch = ["patch", write_checkpoint(tmp_path, config), "--dry-run", "--schedule", "abf:rope_theta=1e7"]
    (factor,) = re.findall(r"write its factor (\S+) there", refused(*patch, "--target-length", "64k"))
    config["rope_parameters"]["sliding_attention"] = sliding | {"factor": float(factor)}
    write_checkpoint(tmp_path, config)
    ran(*patch, "--target-length", "64k")
