"""The rotary layers of vLLM and SGLang, run on what ``ropescale export`` tells them, against float64 tables.

Whatever the parity table calls honoured must come out as asked, and whatever it calls otherwise must not.
"""

import json
import math
import shlex
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from configurations import LLAMA, write_checkpoint
from engine_sources import rotary_package
from planning import export, make_plan

import ropescale
from ropescale.configs.configuration import Configuration
from ropescale.engines import sglang, vllm
from ropescale.schedules import Frequencies

pytestmark = pytest.mark.engines

ENGINES = {"vllm": vllm.ENGINE.version, "sglang": sglang.ENGINE.version}
MROPE = {"type": "mrope", "mrope_section": [8, 12, 12]}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "glm4": LLAMA | {"model_type": "glm4", "partial_rotary_factor": 0.5},
    "phi3": LLAMA | {"model_type": "phi3"},
    **{name: LLAMA | {"model_type": name, "rope_scaling": MROPE} for name in ("qwen2_vl_text", "qwen3_vl_text")},
    "gemma3": {"model_type": "gemma3_text", "max_position_embeddings": 4096, "head_dim": 64},
    **{name: LLAMA | {"model_type": name} for name in "gemma2 granite mistral mixtral qwen2 qwen3".split()},
    **{name: LLAMA | {"model_type": name} for name in ("cohere2_moe", "ernie4_5_moe")},
}
LISTS = {"short_factor": [1.0 + i / 16 for i in range(32)], "long_factor": [1.0 + i / 4 for i in range(32)]}
SPECS: dict[str, Any] = {
    "two lists": {"name": "longrope", "factor": 4, **LISTS},
    "two lists, scale": {"name": "longrope", "factor": 4, "attention_factor": 1.3, **LISTS},
    "table": {"name": "table", "factors": [1.0 + i / 8 for i in range(32)], "attention_factor": 1.2},
}
LLAMA_SPECS = [
    *("ntk:factor=4", "abf:rope_theta=500000", "linear:factor=4", "llama3:factor=4", "ntk-by-parts:factor=4"),
    *("yarn:factor=4", "yarn:factor=4,truncate=false", "yarn:factor=4,beta_fast=16,beta_slow=2"),
    *("yarn:factor=4,attention_factor=1.5", "yarn:factor=4,mscale=1,mscale_all_dim=0.5", "dynamic:factor=4"),
    "yarn:factor=4.2,beta_fast=15.2646,beta_slow=0.5866,truncate=false,attention_factor=1.2017",  # searched
    *("two lists", "two lists, scale", "table"),
    *("proportional:partial_rotary_factor=1,factor=4", "proportional:partial_rotary_factor=0.5"),
]
MROPE_SPECS = [
    *("ntk:factor=4", "abf:rope_theta=500000", "linear:factor=4", "llama3:factor=4", "dynamic:factor=4", "table"),
    *("yarn:factor=4", "yarn:factor=4,mscale=1,mscale_all_dim=0.5"),
    *("proportional:partial_rotary_factor=1,factor=4", "proportional:partial_rotary_factor=0.5"),
]
OTHERS = "gemma2 granite mistral mixtral qwen2 qwen3 cohere2_moe ernie4_5_moe".split()
CASES = [
    *(("llama", spec) for spec in LLAMA_SPECS),
    *(("glm4", spec) for spec in ("yarn:factor=4", "ntk:factor=4", "ntk-su:factor=4")),
    *(("phi3", spec) for spec in ("ntk-su:factor=4", "table")),
    *(("gemma3", spec) for spec in ("yarn:factor=4", "linear:factor=4")),
    *product(("qwen2_vl_text", "qwen3_vl_text"), MROPE_SPECS),
    *product(OTHERS, ("yarn:factor=4", "ntk:factor=4", "ntk-su:factor=4", "llama3:factor=4")),
]
NEIGHBOURS = ("cohere2_moe", "ernie4_5_moe", "glm4")
# Types whose code in SGLang gives the rotary layer a theta of this type, and no scaling.
SGLANG_TAKES_THETA_ONLY = {"gemma2": float, "mixtral": int}

# Types whose code in SGLang looks for ``partial_rotary_factor`` in the rope parameters.
SGLANG_READS_SHARE = ("glm4",)

# Fields that are not the rotary layer's.
OUTSIDE = ("max length", "switch", "softmax scale")


def told(engine: str, config: dict[str, Any], spec: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
    """What export says about a schedule, and the rope parameters and length that its command leaves in the engine."""
    done = export(write_checkpoint(folder, config), engine, spec, layers=_layers(config))
    if done.refusal is not None:
        return done, {}
    words = shlex.split(done.commands[0].text.replace("\\\n", ""))
    option = {"vllm": "--hf-overrides", "sglang": "--json-model-override-args"}[engine]
    changed = json.loads(words[words.index(option) + 1]) if option in words else {}
    return done, changed


def _layers(config: dict[str, Any]) -> str:
    return "all" if config["model_type"] == "cohere2_moe" else "full"  # whose full-attention layers do not rotate


def case(engine: str, done: Any, config: Any, changed: dict[str, Any], spec: Any, key: str) -> dict[str, Any]:
    planned = Configuration.read(make_plan(config, spec, layers=_layers(config)).config).section
    parameters = changed.get("rope_parameters", planned["rope_parameters"])
    parameters = parameters if key == "all" else parameters[key]
    if engine == "sglang" and config["model_type"] in SGLANG_TAKES_THETA_ONLY:
        theta = SGLANG_TAKES_THETA_ONLY[config["model_type"]](parameters["rope_theta"])
        parameters = {"rope_type": "default", "rope_theta": theta}
    longest = changed.get("max_position_embeddings", config["max_position_embeddings"])
    sent = asking(config["model_type"], parameters, longest, done.length)
    if engine == "sglang" and config["model_type"] == "llama":  # llama.py reads the share at the top level
        sent["partial"] = changed.get("partial_rotary_factor", 1.0)
    return sent


def asking(model_type: str, parameters: dict[str, Any], max_position: int, length: int) -> dict[str, Any]:
    """A case for engine_rotary.py, with what the model's own code adds to the parameters."""
    passes_share = model_type in SGLANG_READS_SHARE
    return {
        "head_size": 64,
        "max_position": max_position,
        "max_model_len": length,
        "neox": model_type not in NEIGHBOURS,
        "parameters": parameters,
        "partial": parameters.get("partial_rotary_factor", 1.0) if passes_share else 1.0,
        "positions_factor": 1 if model_type == "qwen3_vl_text" else 4,
        "positions": [position for position in (1, 17, 1000, 4095, 4096, length - 1) if position < length],
    }


def run(engine: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the engine's layers make of the cases, each in one process of its own."""
    script = Path(__file__).parents[1] / "helpers" / "scripts" / "engine_rotary.py"
    words = [sys.executable, str(script), engine, str(rotary_package(engine, ENGINES[engine]))]
    done = subprocess.run(words, input=json.dumps(cases), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def asked(config: dict[str, Any], spec: Any, key: str, length: int) -> Frequencies:
    return ropescale.frequencies(config, spec, length, layers=_layers(config))[key]


def is_as_asked(answer: dict[str, Any], positions: list[int], table: Frequencies) -> bool:
    """float32 angles lose about a unit in the last place per radian."""
    if "error" in answer:
        return False
    for position, row in zip(positions, answer["rows"]):
        angles = [position * f for f in table.inv_freq]
        wanted = [fn(a) * table.attention_scale for fn in (math.cos, math.sin) for a in angles]
        if row != pytest.approx(wanted, abs=2e-6 + 4e-7 * position, rel=0):
            return False
    return True


@pytest.mark.parametrize("engine", ENGINES)
def test_what_the_table_calls_honoured_comes_out_as_asked_and_nothing_else_does(engine, tmp_path):
    prepared = []
    for name, label in CASES:
        config, spec = CONFIGS[name], SPECS.get(label, label)
        done, changed = told(engine, config, spec, tmp_path)
        for key in make_plan(config, spec, layers=_layers(config)).schedules:
            claims = [row for row in done.rows if row.layers == key and row.status != "not known"]  # of a model file
            honoured = all(row.field in OUTSIDE for row in claims)
            prepared.append((name, label, key, honoured, case(engine, done, config, changed, spec, key)))
    answers, wrong = run(engine, [each[-1] for each in prepared]), []
    for (name, label, key, honoured, sent), answer in zip(prepared, answers):
        table = asked(CONFIGS[name], SPECS.get(label, label), key, sent["max_model_len"])
        if is_as_asked(answer, sent["positions"], table) != honoured:
            wrong.append((name, label, key, f"honoured: {honoured}", str(answer)[:200]))
    assert not wrong
    assert {honoured for _, _, _, honoured, _ in prepared} == {True, False}


def test_these_types_are_those_that_the_table_calls_run():
    assert {CONFIGS[name]["model_type"] for name, _ in CASES} == {*vllm.ENGINE.run} == {*sglang.ENGINE.run}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "rope_theta": 10000.0}
PLAIN = ropescale.frequencies(LLAMA, "base")["all"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weights", [{}, {"mscale": 1.0, "mscale_all_dim": 0.5}, {"mscale_all_dim": 1.0}])
def test_the_engines_yarn_for_latent_attention_has_the_scale_that_we_say(engine, weights):
    parameters = YARN | weights
    extra = {"attention_factor": 3.0, "truncate": False}  # which that type does not take
    [answer] = run(engine, [asking("llama", parameters | extra | {"rope_type": "deepseek_yarn"}, 16384, 16384)])
    table = ropescale.frequencies(LLAMA, "yarn:factor=4")["all"]
    wanted = Frequencies(table.inv_freq, vllm.deepseek_scale(parameters))
    assert is_as_asked(answer, [1, 17, 1000, 4095, 4096, 16383], wanted)


def test_a_dynamic_folder_is_base_rope_in_vllm_and_the_longest_table_in_sglang():
    parameters = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    sent = asking("llama", parameters, 4096, 4096)
    [answer] = run("vllm", [sent])
    assert is_as_asked(answer, sent["positions"], PLAIN)
    sent = asking("llama", parameters, 4096, 16384)
    [answer] = run("sglang", [sent])
    assert is_as_asked(answer, sent["positions"], ropescale.frequencies(LLAMA, "dynamic:factor=4", 16384)["all"])


def test_vllm_builds_the_ramp_of_an_mrope_model_from_four_times_the_length():
    sent = asking("llama", YARN | {"mrope_section": [8, 12, 12]}, 16384, 16384)
    [answer] = run("vllm", [sent])
    stretched = ropescale.frequencies(LLAMA | {"max_position_embeddings": 16384}, "yarn:factor=4")["all"]
    assert is_as_asked(answer, sent["positions"], stretched)


def test_vllm_takes_no_whole_number_for_the_factor_of_linear():
    parameters = {"rope_type": "linear", "factor": 4, "rope_theta": 10000.0}
    [answer] = run("vllm", [asking("llama", parameters, 4096, 16384)])
    assert answer == {"error": "TypeError: 'int' object is not iterable"}


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_vllm_takes_no_proportional_rope_without_a_pair_that_turns_and_no_factor(share):
    parameters = {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": share, "factor": 4.0}
    sent = asking("llama", parameters, 16384, 16384)
    [answer] = run("vllm", [sent])
    if share:
        assert is_as_asked(answer, sent["positions"], PLAIN)
    else:
        assert answer["error"].startswith("ValueError")
