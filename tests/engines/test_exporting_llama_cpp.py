"""``ropescale export --for llama.cpp`` and ``ropescale gguf`` say the same of every architecture and schedule."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from configurations import DEEPSEEK, HUNYUAN, LLAMA31, write_checkpoint
from gguf_models import write_keys
from planning import export, make_plan

from ropescale import patch_checkpoint
from ropescale.checkpoints.contents import card
from ropescale.cli.main import main
from ropescale.exporting import Export
from ropescale.inspecting import inspect

LLAMA_SIZES = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 512, "rope_theta": 10000.0}
MSCALE = "yarn:factor=8,mscale=1,mscale_all_dim=1"


def _as_asked(done: Export) -> bool:
    return done.refusal is None and not done.rows


def _folder(config: dict[str, Any], path: Path) -> Path:
    return write_checkpoint(path / "made", config)


# ---------------------------------------------------------------------------------------------------------
# DeepSeek's softmax scale


@pytest.mark.parametrize("spec", ["yarn:factor=8", "linear:factor=8", MSCALE, "ntk-su:factor=4"])
@pytest.mark.parametrize("model_type", ["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu"])
def test_what_a_deepseek_file_cannot_be_told_has_no_command(model_type, spec, tmp_path):
    done = export(_folder(DEEPSEEK | {"model_type": model_type}, tmp_path), "llama.cpp", spec)
    if spec == MSCALE:  # the converter writes it from a patched folder
        assert [each.text for each in done.commands][1:] == ["llama-server -m made-32768.gguf -c 32768"]
        assert f"patch {tmp_path}/made -o made-32768 --schedule {spec}" in done.commands[0].text.replace("\\\n  ", "")
        return
    assert done.commands == [] and done.refusal and "use ntk, or serve it with transformers 5" in done.refusal
    if spec == "yarn:factor=8" and model_type.startswith("deepseek"):
        assert f"(yarn for {model_type}): deepseek2 derives a softmax scale" in done.refusal


@pytest.mark.parametrize("spec", ["ntk:factor=4", "abf:rope_theta=1000000"])
def test_another_theta_is_what_a_deepseek_file_takes(spec, tmp_path):
    done = export(_folder(DEEPSEEK, tmp_path), "llama.cpp", spec)
    assert _as_asked(done) and "deepseek2.rope.freq_base=float:" in done.commands[0].text


def test_a_folder_that_is_patched_first_has_the_length_that_was_asked_for(tmp_path):
    scaling = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "mscale": 1, "mscale_all_dim": 1}
    folder = _folder(DEEPSEEK | {"max_position_embeddings": 163840, "rope_scaling": scaling}, tmp_path)
    asked = {"target_length": "512k", "replace_scaling": True}
    done = export(folder, "llama.cpp", "abf:rope_theta=1000000", **asked)
    words = shlex.split(done.commands[0].text.replace("\\\n", ""))
    assert words[:3] == ["ropescale", "patch", str(folder)]
    assert words[words.index("--target-length") + 1] == "524288" and "--target-length 524288" in done.options


def test_the_card_of_a_patched_deepseek_has_no_flags_that_would_be_wrong(tmp_path):
    text = card(tmp_path / "README.md", make_plan(DEEPSEEK, "yarn:factor=8"), "org/name").decode()
    assert "llama-server" not in text and "llama.cpp cannot compute this schedule (yarn for deepseek_v3)" in text
    text = card(tmp_path / "README.md", make_plan(DEEPSEEK, MSCALE), "org/name").decode()  # converted as it lies
    assert "# PATH.gguf is the output of llama.cpp's convert_hf_to_gguf.py for PATH\n" in text
    assert "llama-server -m PATH.gguf -c 32768\n" in text


# ---------------------------------------------------------------------------------------------------------
# Models that their makers have scaled


SCALED = [{"model_type": name} for name in ("ministral3", "apertus", "gpt_oss")]
SCALED += [{"model_type": "mistral3", "text_config": SCALED[0]}]


@pytest.mark.parametrize("config", SCALED, ids=lambda config: config["model_type"])
def test_keys_that_the_makers_left_are_taken_back_by_ropescale_gguf_and_not_by_flags(config, tmp_path):
    done = export(_folder(config, tmp_path), "llama.cpp", "yarn:factor=32,truncate=true", replace_scaling=True)
    words = shlex.split(done.commands[0].text.replace("\\\n", ""))
    assert words[:3] == ["ropescale", "gguf", "made.gguf"] and "--override-kv" not in done.commands[1].text
    assert words[-3:] == ["--original-length", str(done.length // 32), "--replace-scaling"]  # a file may lack it
    assert _as_asked(done)


def test_an_alpha_that_the_converter_folds_into_theta_is_replaced_in_a_folder_that_is_patched_first(tmp_path):
    folder, asked = _folder(HUNYUAN, tmp_path), {"replace_scaling": True}
    done = export(folder, "llama.cpp", "yarn:factor=2", **asked)
    assert _as_asked(done) and done.commands[0].text.startswith(f"ropescale patch {folder} -o made-65536")
    patch_checkpoint(folder, tmp_path / "made-65536", "yarn:factor=2", **asked)
    assert export(tmp_path / "made-65536", "llama.cpp").commands[0].text.startswith("llama-server -m made-65536.gguf")
    assert [export(folder, engine).how for engine in ("llama.cpp", "transformers4")] == ["not known", "run"]
    assert _as_asked(export(folder, "vllm")) and not any("frequencies" in each for each in inspect(folder).warnings)


def test_the_gguf_of_a_ministral3_that_export_writes_has_no_log_multiplier(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    makers = {"type": "yarn", "factor": 16.0, "original_context_length": 16384, "yarn_log_multiplier": 1.0}
    keys = {f"rope.scaling.{name}": value for name, value in makers.items()}
    write_keys(tmp_path / "made.gguf", "mistral3", context_length=262144, **keys)
    folder = _folder({"model_type": "ministral3"}, tmp_path)
    done = export(folder, "llama.cpp", "yarn:factor=32,truncate=true", replace_scaling=True)
    words = shlex.split(done.commands[0].text.replace("\\\n", ""))
    assert main(words[1:]) == 0
    from ropescale.gguf.files import open_gguf

    written = open_gguf(words[words.index("-o") + 1]).keys
    assert "mistral3.rope.scaling.yarn_log_multiplier" not in written
    assert written["mistral3.rope.scaling.factor"].value == 32


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LISTS = {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [4.0] * 16}


@pytest.mark.parametrize(("length", "config", "keys"), [
    *((None, {"model_type": name}, "") for name in ("deepseek_v3", "llama")),
    (None, {"model_type": "qwen3", "max_position_embeddings": 40960, "rope_scaling": YARN}, "qwen3"),
    (None, {"model_type": "glm", "max_position_embeddings": 8192}, "chatglm"),  # the converter writes hidden_size
    (2**19, {"model_type": "ministral3"}, "mistral3"),  # has the log multiplier, so needs no attn_factor
    (2**18, {"model_type": "apertus"}, "apertus"),  # llama3
    *((None, LLAMA31 | {"model_type": name}, "") for name in ("mixtral", "iquestcoder", "granite_swa")),
    (2**17, {"model_type": "minicpm3", "rope_scaling": LISTS},
     "minicpm3.rope.scaling.original_context_length=int:32768,minicpm3"),
])  # fmt: skip
def test_a_model_as_its_makers_scaled_it_is_told_its_window_alone_and_only_if_longer(length, config, keys, tmp_path):
    done = export(_folder(config, tmp_path), "llama.cpp", length and "as-is", target_length=length)
    told = f" --override-kv {keys}.context_length=int:{length or done.length}" if keys else ""
    assert done.commands[0].text.replace("\\\n  ", "") == f"llama-server -m made.gguf -c {done.length}{told}"
    assert {row.field for row in done.rows} <= {"switch"} and (keys != "qwen3" or done.length == 131072)


def test_it_is_not_known_how_queries_scale_in_a_file_that_gets_another_original_length(tmp_path):
    folder = _folder({"model_type": "ministral3"}, tmp_path)
    patched = patch_checkpoint(folder, tmp_path / "out", "yarn:factor=2", on_top=True).folder
    for done in (export(folder, "llama.cpp", "yarn:factor=2", on_top=True), export(patched, "llama.cpp")):
        assert [(row.field, row.status) for row in done.rows] == [("query scale", "not known")]


def test_an_architecture_is_what_the_wrapper_makes_of_it(tmp_path):
    config = {"model_type": "mistral3", "text_config": {"model_type": "mistral", "max_position_embeddings": 8192}}
    done = export(_folder(config, tmp_path), "llama.cpp", "yarn:factor=4,attention_factor=1.5")
    assert "mistral3.rope.scaling.attn_factor=float:1.3173" in done.commands[0].text


def test_a_type_that_the_converter_does_not_know_is_refused(tmp_path):
    done = export(_folder({"model_type": "helium"}, tmp_path), "llama.cpp", "yarn:factor=4")
    facts = ("llama.cpp cannot", "yarn for helium", "does not support HeliumForCausalLM", "serve it with transformers")
    assert done.refusal is not None and all(fact in done.refusal for fact in facts)


def test_kimi_k2_and_deepseek_v3_have_one_answer_and_an_unknown_class_has_no_command(tmp_path):
    kimi = DEEPSEEK | {"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]}
    for spec in ("yarn:factor=8", "ntk:factor=4"):
        found = [export(_folder(each, tmp_path), "llama.cpp", spec) for each in (kimi, DEEPSEEK)]
        assert len({(done.refusal is None, done.how) for done in found}) == 1
    inside = {"language_config": LLAMA_SIZES | {"model_type": "llama"}}
    for config in ({"architectures": ["zorblax"], **LLAMA_SIZES}, inside):
        of = {"model_type": "zorblax", "architectures": ["zorblax"]}
        done = export(_folder(of | config, tmp_path), "llama.cpp", "yarn:factor=2")
        assert done.commands == [] and done.refusal and "does not support zorblax" in done.refusal
