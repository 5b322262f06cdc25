"""Engines' differences from what was asked, and what the card of a patched checkpoint says of them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import engine_registries
import gguf
import own_schedules
import pytest
from configurations import DEEPSEEK, LLAMA, write_checkpoint
from coverage_models import SEEING
from gguf_models import write_keys
from planning import make_plan

import ropescale
from ropescale.checkpoints.model_card import card
from ropescale.configs.families import FAMILIES
from ropescale.engines import engine_warnings, model_code, sglang, vllm
from ropescale.engines.base import layers_of

QWEN2_VL = LLAMA | {"model_type": "qwen2_vl_text", "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}}
PER_PAIR = "ntk-su:factor=4"


def warned(config: dict[str, Any], spec: str, **options: Any) -> list[str]:
    return engine_warnings(make_plan(config, spec, **options))


def card_of(config: dict[str, Any], spec: str, source: str = "org/name", target: str = "PATH") -> str:
    """The card of a patched checkpoint whose source has none."""
    return card(Path("no README.md"), make_plan(config, spec), source, target).decode()


@pytest.mark.parametrize("share", ["0", "0.5", "1"])
def test_engines_do_not_load_proportional_rope_on_a_llama(share):
    factor = ",factor=4" if share == "1" else ""
    found = warned(LLAMA, f"proportional:partial_rotary_factor={share}{factor}")
    refused = ["vLLM: refuses proportional RoPE with partial_rotary_factor 0; serve it with transformers"]
    ignored = ["vLLM, SGLang and llama.cpp: ignore the factor of proportional RoPE"]
    left = "SGLang: leaves partial_rotary_factor to the model's own code, which for most models does not read it there"
    assert found == [
        *(refused if share == "0" else []),
        *(ignored if factor else [left]),
        "llama.cpp: does not support proportional RoPE for this architecture",
        "transformers 4: does not support proportional RoPE and stops with a KeyError; load it with transformers 5",
    ]


def test_vllm_builds_the_ramp_of_an_mrope_model_from_four_times_the_length_where_the_model_s_code_does():
    text = "vLLM: computes the ramp of qwen2_vl_text from 16384 trained tokens instead of 4096; use another rope_theta"
    assert f"{text} (ntk, abf)" in warned(QWEN2_VL, "yarn:factor=4")
    assert not [
        line for line in warned(QWEN2_VL | {"model_type": "qwen3_vl_text"}, "yarn:factor=4") if "ramp of" in line
    ]
    assert not [line for line in warned(LLAMA, "yarn:factor=4") if "ramp of" in line]


@pytest.mark.parametrize(
    "schedule", ["linear", "llama3", "ntk-su", "dynamic", "proportional:partial_rotary_factor=0.5"]
)
def test_vllm_and_sglang_cannot_turn_three_rows_of_positions_by_other_schedules_than_another_theta_and_yarn(schedule):
    spec = schedule if ":" in schedule else f"{schedule}:factor=4"
    kind = {"ntk-su": "longrope"}.get(schedule, schedule.partition(":")[0])
    text = f"vLLM and SGLang: cannot turn the three rows of positions of qwen2_vl_text under {kind}"
    assert f"{text}; use another rope_theta (ntk, abf)" in warned(QWEN2_VL, spec)
    for theta in ("ntk:factor=4", "abf:rope_theta=500000"):
        assert not [line for line in warned(QWEN2_VL, theta) if "three rows" in line]


@pytest.mark.parametrize(
    ("config", "spec", "times"),
    [
        (DEEPSEEK, "yarn:factor=4,attention_factor=1", 1),
        (DEEPSEEK, "yarn:factor=4", 0),
        (DEEPSEEK, "yarn:factor=4,mscale=1,mscale_all_dim=1", 0),
        (LLAMA, "yarn:factor=4,attention_factor=1", 0),
    ],
)
def test_vllm_reads_an_attention_factor_of_one_as_another_type_on_mla_models(config, spec, times):
    assert sum("deepseek_llama_scaling" in line for line in warned(config, spec)) == times


LLAMA4 = {"model_type": "llama4_text", "no_rope_layers": [1], "num_hidden_layers": 1}


@pytest.mark.parametrize(
    ("changes", "engines"),
    [
        *(({"model_type": name}, "vLLM and SGLang: ") for name in ("cohere", "cohere2_moe", "ernie4_5_moe", "glm4")),
        *(({"model_type": name}, "") for name in ("llama", "glm", "helium")),  # by transformers' code, as it should
        (LLAMA4, ""),  # whose weights vLLM permutes
    ],
)
def test_per_pair_factors_turn_interleaved_pairs_by_transformers_code_alone(changes, engines):
    found = warned(LLAMA | changes, PER_PAIR, layers="all")
    text = f"{engines}cannot turn the pairs of {changes['model_type']} by per-pair factors; serve it with transformers"
    assert (text in found) == any("cannot turn" in line for line in found) == bool(engines)
    served = "vLLM: serves the original length by default; pass --max-model-len 16384"
    assert (served in found) == (changes["model_type"] in ("llama", "glm", "helium", "llama4_text"))


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


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"model_type": "mycustom"}, "vLLM and SGLang: know no mycustom; serve it with transformers"),
        ({"architectures": ["LlamaTwiceForCausalLM"]}, "vLLM and SGLang: know no LlamaTwiceForCausalLM; serve it with"),
        (
            {"model_type": "my", "architectures": ["My"], "auto_map": {"AutoModel": "my.My"}},
            "vLLM and SGLang: run My with the checkpoint's own code, if at all, which was not checked",
        ),
        ({"model_type": "bamba"}, "SGLang: knows no BambaForCausalLM; serve it with transformers"),
        (
            {"model_type": "mixtral"},
            "SGLang: does not scale mixtral, silently leaving base RoPE; use another rope_theta",
        ),
    ],
)
def test_a_model_that_an_engine_does_not_have_or_scale_is_warned_about(config, text):
    assert [line for line in warned(LLAMA | config, "yarn:factor=4") if line.startswith(text)]


def test_a_model_is_looked_up_by_its_type_where_its_architecture_says_nothing_and_for_what_it_lacks():
    assert not warned(LLAMA | {"architectures": ["LlamaModel"], "partial_rotary_factor": 0.5}, "llama3:factor=4")
    assert warned({"model_type": "lfm3", "max_position_embeddings": 8192}, "ntk:factor=4") == [
        "vLLM and SGLang: know no Lfm3ForCausalLM; serve it with transformers",
        "transformers 4: lacks lfm3, which came with transformers 5",
    ]


@pytest.mark.engines
def test_the_lists_of_models_are_those_of_the_engines_sources():
    assert model_code.load()["versions"]["vllm"] == vllm.ENGINE.version
    assert model_code.load()["versions"]["sglang"] == sglang.ENGINE.version
    assert engine_registries.generate() == model_code.load()


def test_the_card_has_the_numbers_of_a_schedule_whose_file_the_reader_lacks(tmp_path: Path) -> None:
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


def test_the_card_of_a_repository_has_its_name_in_every_command() -> None:
    text = card_of(LLAMA, "ntk-su:factor=4", "org/base", "me/long")
    assert "PATH" not in text
    for command in ("vllm serve me/long ", "--model-path me/long ", "`ropescale verify me/long`", "-o long-16384.gguf"):
        assert command in text
    assert text.count('from_pretrained("me/long")') == 2


def test_the_card_lets_code_run_only_where_the_checkpoint_needs_its_own() -> None:
    auto_map = {"auto_map": {"AutoModelForCausalLM": "modeling.My"}}
    own = card_of(LLAMA | auto_map | {"model_type": "my"}, "yarn:factor=4", "a")
    assert own.count('from_pretrained("PATH", trust_remote_code=True)') == 2
    assert "ropescale verify PATH --trust-remote-code" in own
    assert len([line for line in own.splitlines() if "serve" in line and "--trust-remote-code" in line]) == 2
    stock = card_of(LLAMA | auto_map, "yarn:factor=4", "a")
    assert "trust" not in stock


def test_the_card_says_what_was_frozen_and_under_its_commands_what_an_engine_does_otherwise(tmp_path: Path) -> None:
    before, after = card_of(LLAMA, "dynamic:factor=4").split(
        "Differences of these engines, to know before you serve it:"
    )
    assert "vllm serve PATH" in before and "* vLLM: computes one static table" in after
    ropescale.patch_checkpoint(
        write_checkpoint(tmp_path / "in", LLAMA), tmp_path / "out", "dynamic:factor=4", freeze_at="16k"
    )
    text = (tmp_path / "out" / "README.md").read_text()
    assert "| all | `dynamic:factor=4 frozen at 16384 tokens` | 4096 | 16384 |" in text and "://" not in text
    record = json.loads((tmp_path / "out" / "ropescale.json").read_text())
    assert record["frozen"] == {"all": "dynamic:factor=4 frozen at 16384 tokens"}
    assert record["spec"]["all"].startswith("table:")


def test_the_python_in_the_page_about_llama_cpp_writes_the_file(repository, tmp_path, monkeypatch) -> None:
    page = (repository / "docs" / "llama.cpp.md").read_text()
    [code] = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    write_keys(Path("llama.gguf"))
    names: dict[str, Any] = {}
    exec(compile(code, "llama.cpp.md", "exec"), names)
    assert names["done"].path.resolve() == (tmp_path / "llama-8k.gguf").resolve()
    fields = gguf.GGUFReader("llama-8k.gguf").fields
    assert fields["llama.rope.scaling.factor"].contents() == 32.0
