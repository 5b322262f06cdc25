"""``ropescale export --for mlx-lm``, and what patching says of mlx-lm: the numbers that its code computes.

test_mlx_lm.py runs it. The closed forms are those of its models/rope_utils.py: under longrope queries and keys are
multiplied by ``sqrt(1 + ln s / ln L0)``, where s is max_position_embeddings over the original length L0.
"""

import json
import math
import shlex
from pathlib import Path
from typing import Any

import pytest
from configurations import HUNYUAN, LLAMA, in_v5, plain, write_checkpoint
from model_kinds import OLMO3
from planning import export, make_plan
from transformers import AutoConfig

import ropescale
from ropescale.engines import mlx_lm
from ropescale.engines.base import layers_of
from ropescale.engines.exported import engine_warnings
from ropescale.exporting import Export

FACTORS = {"name": "table", "factors": [1.0 + i / 8 for i in range(32)], "attention_factor": 1.2}
GLM4 = in_v5(LLAMA | {"model_type": "glm4"}, rope_theta=10000.0, partial_rotary_factor=0.5)
GLM_LITE = plain("glm4_moe_lite", 2048, 20, 4096, qk_rope_head_dim=64)
DEEPSEEK = LLAMA | {"model_type": "deepseek_v3", "qk_rope_head_dim": 32, "head_dim": 32}


def exported(config: dict[str, Any], spec: Any, path: Path, **options: Any) -> Export:
    return export(write_checkpoint(path, config), "mlx-lm", spec, **options)


def changed(done: Export) -> dict[str, tuple[str, str]]:
    return {row.field: (row.status, row.computes) for row in done.rows}


def changes_of(done: Export) -> dict[str, Any]:
    """The changes to a configuration in an exported command."""
    line = next(line for line in done.commands[0].text.splitlines() if line.startswith("changes = "))
    return eval(line.removeprefix("changes = "))


def told(done: Export) -> dict[str, Any]:
    """The rope parameters among them."""
    return changes_of(done)["rope_scaling"]


@pytest.mark.parametrize(("target", "stretched"), [(4096, 1), (8192, 2), (32768, 8), (131072, 32)])
def test_patching_says_which_scale_of_the_lengths_is_computed_and_export_supplies_another(target, stretched, tmp_path):
    computed = math.sqrt(1 + math.log(stretched) / math.log(4096))
    text = f"computes the attention factor of per-pair factors from the lengths ({computed:.4g} instead of 1.2)"
    supplied = f"mlx-lm: {text}; `ropescale export --for mlx-lm` avoids it"
    assert supplied in engine_warnings(make_plan(LLAMA, FACTORS, target_length=target))
    done = exported(LLAMA, FACTORS, tmp_path, target_length=target)
    assert changed(done) == {} and done.warnings == []
    original = told(done)["original_max_position_embeddings"]
    assert math.sqrt(1 + math.log(target / original) / math.log(original)) == pytest.approx(1.2, rel=1e-9)
    assert told(done)["long_factor"] == pytest.approx(FACTORS["factors"], rel=1e-12)


@pytest.mark.parametrize("scale", [0.8, 1.0, 1.5])
@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_an_attention_factor_of_yarn_is_carried_by_mscale(scale, weight, tmp_path):
    done = exported(LLAMA, f"yarn:factor=8,attention_factor={scale},mscale_all_dim={weight}", tmp_path)
    assert changed(done) == {}
    mscale, under = told(done)["mscale"], told(done)["mscale_all_dim"]
    slope = 0.1 * math.log(8)
    assert (slope * mscale + 1) / (slope * under + 1) == pytest.approx(scale, rel=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1.2])
def test_a_ramp_between_pairs_is_carried_by_factors_per_pair(scale, tmp_path):
    """The table that mlx-lm builds of them is yarn's in float64, and not that of the rounded ramp."""
    spec = f"yarn:factor=8,truncate=false,attention_factor={scale}"
    done = exported(LLAMA, spec, tmp_path)
    assert changed(done) == {} and done.warnings == []
    given, config = told(done), LLAMA
    [asked] = ropescale.frequencies(config, spec).values()
    built = [10000.0 ** (-i / 32) / factor for i, factor in enumerate(given["long_factor"])]
    assert built == pytest.approx(asked.inv_freq, rel=1e-12) and given["rope_type"] == "longrope"
    original = given["original_max_position_embeddings"]
    length = changes_of(done)["max_position_embeddings"]
    assert math.sqrt(1 + math.log(length / original) / math.log(original)) == pytest.approx(scale, rel=1e-9)


def test_per_pair_factors_with_a_scale_below_1_are_refused(tmp_path):
    below = FACTORS | {"attention_factor": 0.9}
    done = exported(LLAMA, below, tmp_path, target_length="16k")
    assert done.commands == [] and done.refusal is not None
    assert "cannot multiply by less than 1" in done.refusal and "0.9" in done.refusal
    [warning] = [text for text in engine_warnings(make_plan(LLAMA, below)) if text.startswith("mlx-lm")]
    assert "(0.9 requested)" in warning


def test_a_patched_folder_whose_scale_is_not_read_is_loaded_from_python(tmp_path):
    source = write_checkpoint(tmp_path / "in", LLAMA)
    done = ropescale.patch_checkpoint(source, tmp_path / "out", FACTORS, target_length="16k")
    [warning] = [text for text in done.warnings if text.startswith("mlx-lm")]
    assert "(1.08 instead of 1.2)" in warning  # sqrt(1 + ln 4 / ln 4096)
    assert warning in (tmp_path / "out" / "README.md").read_text()
    found = export(tmp_path / "out", "mlx-lm")
    assert found.warnings == []
    assert [command.language for command in found.commands] == ["python"]
    assert "mlx_lm.server" in found.commands[0].note
    stored = json.loads((tmp_path / "out" / "config.json").read_text())["rope_scaling"]
    assert told(found).keys() >= stored.keys()


@pytest.mark.parametrize("model_type", ["phi3", "phimoe"])
def test_types_whose_configuration_can_say_the_scale_are_given_it(model_type, tmp_path):
    """phimoe's code reads ``long_mscale``, and phi3's maximum is chosen so that the closed form gives the scale."""
    config = LLAMA | {"model_type": model_type}
    assert changed(exported(config, FACTORS, tmp_path, target_length="16k")) == {}
    [layers] = layers_of(make_plan(config, FACTORS, target_length=16384))
    assert mlx_lm.longrope_scale(layers) == pytest.approx(1.2, rel=1e-6)


TWO_LISTS = {"name": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32, "factor": 4}
ROWS: dict[str, tuple[dict[str, Any], Any, dict[str, tuple[str, str]]]] = {
    "yarn": (LLAMA, "yarn:factor=8", {}),
    "no rounding": (LLAMA, "yarn:factor=8,truncate=false", {}),
    "linear": (LLAMA, "linear:factor=4", {}),
    "llama3": (LLAMA, "llama3:factor=4", {}),
    "theta": (LLAMA, "ntk:factor=4", {}),
    "proportional": (LLAMA, "proportional:partial_rotary_factor=0.5,factor=2", {}),
    "table without a scale": (LLAMA, "ntk-by-parts:factor=4", {}),
    "dynamic": (LLAMA, "dynamic:factor=4", {}),
    "dynamic with a fixed alpha": (HUNYUAN, None, {}),
    "two lists": (LLAMA, TWO_LISTS, {"switch": ("dropped", "the long list, always")}),
    "latent attention": (DEEPSEEK, "yarn:factor=4,mscale=1,mscale_all_dim=1", {}),
    "a head as wide as MLA's slice": (GLM_LITE | {"head_dim": 64}, "yarn:factor=4,mscale=1,mscale_all_dim=1", {}),
    "one theta": (OLMO3, None, {}),
    "version 5's keys, its own theta": (in_v5(LLAMA, rope_theta=10000.0), None, {}),
    "another": (in_v5(LLAMA, rope_theta=50000.0), None, {"theta": ("dropped", "the default of its code")}),
    "with the key": (in_v5(LLAMA, rope_theta=50000.0) | {"rope_theta": 50000.0}, None, {}),
}


@pytest.mark.parametrize("case", ROWS)
def test_the_rows_that_are_not_honoured_are_these(case, tmp_path):
    config, spec, rows = ROWS[case]
    done = exported(config, spec, tmp_path)
    assert changed(done) == rows
    assert done.refusal is None


REFUSED = [
    (LLAMA | {"model_type": "mixtral"}, "yarn:factor=4", "reads no scaling for mixtral, silently leaving base"),
    (LLAMA | {"model_type": "qwen2_moe"}, "yarn:factor=4", "stops with an error at yarn for qwen2_moe"),
    (LLAMA | {"model_type": "olmo"}, "yarn:factor=4", "mlx-lm cannot compute this schedule"),
    ({"model_type": "lfm3"}, "yarn:factor=4", "mlx-lm cannot compute this schedule"),
    (DEEPSEEK, {"name": "table", "factors": [2.0] * 16}, "cannot apply per-pair factors to the pairs of deepse"),
    (GLM_LITE | {"head_dim": 32}, "ntk:factor=4", "does not rotate the 32 of 32 coordinates of glm4_moe_lite"),
    (OLMO3 | {"rope_scaling": None}, "ntk:factor=4", "another table for the sliding_attention layers of olmo3"),
    (GLM4, None, "for glm4 without rope_theta 10000.0, partial_rotary_factor 0.5 beside rope_parameters"),
]


@pytest.mark.parametrize(("config", "spec", "said"), REFUSED)
def test_what_is_not_computed_is_refused(config, spec, said, tmp_path):
    done = exported(config, spec, tmp_path)
    assert done.refusal and said in done.refusal and done.refusal.endswith("serve it with transformers 5")


def test_the_share_of_proportional_rope_is_where_the_factory_looks_for_it(tmp_path):
    """Its layer turns ``int(head_dim * rope_scaling["partial_rotary_factor"])`` coordinates."""
    spec = "proportional:partial_rotary_factor=0.5,factor=2"
    assert told(exported(LLAMA, spec, tmp_path / "in"))["partial_rotary_factor"] == 0.5
    ropescale.patch_checkpoint(tmp_path / "in", tmp_path / "out", spec)
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["rope_scaling"] == {"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 2.0}
    read = AutoConfig.from_pretrained(tmp_path / "out").rope_parameters
    assert read == {**written["rope_scaling"], "rope_theta": 10000.0}
    assert changed(export(tmp_path / "out", "mlx-lm")) == {}


def test_a_patched_folder_is_served_by_its_name_alone(tmp_path):
    source, out = write_checkpoint(tmp_path / "in", LLAMA), tmp_path / "it's out"
    ropescale.patch_checkpoint(source, out, "yarn:factor=4")
    server, generate = (shlex.split(command.text.replace("\\\n", "")) for command in export(out, "mlx-lm").commands)
    assert server == ["mlx_lm.server", "--model", str(out)] and generate[:3] == ["mlx_lm.generate", "--model", str(out)]


@pytest.mark.parametrize("wrapped", [False, True])
def test_without_a_patched_folder_python_changes_the_keys_that_mlx_lm_reads(wrapped, tmp_path):
    config = {"model_type": "mistral3", "text_config": LLAMA | {"model_type": "mistral"}} if wrapped else LLAMA
    done = exported(config, "yarn:factor=4", tmp_path)
    [command], changes = done.commands, changes_of(done)
    assert command.language == "python"
    if wrapped:
        changes = changes["text_config"]  # replaced whole, so what was there is in it
        assert changes["hidden_size"] == 128
    assert changes["rope_scaling"]["rope_type"] == "yarn"
    assert changes["rope_scaling"]["factor"] == 4.0
    assert changes["max_position_embeddings"] == 16384
    assert f"load({str(tmp_path)!r}, model_config=changes)" in command.text


def test_what_transformers_5_alone_has_written_is_not_read(tmp_path):
    rest = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    scaled = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 1024}
    done = exported(rest | {"rope_parameters": scaled}, None, tmp_path)
    assert done.refusal is not None
    assert "does not read rope_parameters for llama" in done.refusal
    plain = {"rope_type": "default", "rope_theta": 1e6}
    assert changed(exported(rest | {"rope_parameters": plain}, None, tmp_path))["theta"][0] == "dropped"
