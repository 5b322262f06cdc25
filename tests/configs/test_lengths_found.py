"""The language model's section and its lengths are found with their keys, and patched where the code reads them."""

import json

import pytest
import read_configs
import torch
from configurations import LLAMA, LLAMA31, PHI3_128K, plain, write_checkpoint
from planning import make_plan
from rotary_modules import stock_tables
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import ropescale
from ropescale.errors import ConfigError, ScheduleError
from ropescale.inspecting import inspect

LINEAR4 = LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0}}
PHI3 = plain("phi3", 128, 4, 131072, rope_scaling=PHI3_128K["rope_scaling"])
VICUNA, QWEN3_40K = LINEAR4 | {"max_sequence_length": 16384}, plain("qwen3", 64, 4, 40960, head_dim=16)
COMMAND_R = plain("cohere", 64, 4, 8192, 8000000.0) | {"model_max_length": 131072}
YARN4 = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
DRAFT = LLAMA31 | {"max_position_embeddings": 2048, "architectures": ["LlamaForCausalLMEagle3"]}
DUAL = {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}
ORIGINAL, MAXIMUM = "rope_scaling.original_max_position_embeddings", "max_position_embeddings"
INITIAL, DEFAULT = "initial_context_length", f"{MAXIMUM}, the default of llama"
DUAL_ORIGINAL = f"dual_chunk_attention_config.{ORIGINAL.partition('.')[2]}"
OF_YARN4 = 32768, ORIGINAL, 131072, f"factor 4 x {ORIGINAL}"
DUAL_CHUNK = plain("qwen2", 64, 4, 1010000) | {"dual_chunk_attention_config": DUAL}
DUAL_4K = QWEN3_40K | {"dual_chunk_attention_config": DUAL | {"original_max_position_embeddings": 4096}}
GEMMA3 = plain("gemma3_text", 64, 4, 131072, 1e6, rope_scaling={"rope_type": "linear", "factor": 8.0})
FOUND = {
    "vicuna-16k": (VICUNA, 4096, MAXIMUM, 16384, f"factor 4 x {MAXIMUM}"),
    "llama 3.1": (LLAMA31, 8192, ORIGINAL, 131072, MAXIMUM),
    "phi3 without the original": (PHI3, 4096, "another layer type or a class default", 131072, MAXIMUM),
    "a draft head": (DRAFT, 8192, ORIGINAL, 2048, MAXIMUM),
    "command-r": (COMMAND_R, 8192, MAXIMUM, 8192, MAXIMUM),
    "yarn, the maximum left": (LLAMA | {MAXIMUM: 32768, "rope_scaling": YARN4}, *OF_YARN4),
    "qwen3 with its card's yarn": (QWEN3_40K | {"rope_scaling": YARN4}, *OF_YARN4),
    "dual chunk attention": (DUAL_CHUNK, 262144, DUAL_ORIGINAL, 1010000, MAXIMUM),
    "an original elsewhere": (DUAL_4K, 4096, DUAL_ORIGINAL, 40960, MAXIMUM),
    "an own key": (plain("gpt_neox", 64, 4, 2048) | {"seq_length": 2048}, 2048, MAXIMUM, 2048, MAXIMUM),
    "gpt-oss's own key": (LLAMA | {MAXIMUM: 131072, INITIAL: 4096}, 4096, INITIAL, 131072, MAXIMUM),
    "transformers' name beside an own one": (plain("bailing_hybrid", 64, 4, 32768), 32768, MAXIMUM, 32768, MAXIMUM),
    "a class default": ({"model_type": "llama"}, 2048, DEFAULT, 2048, DEFAULT),
    "gemma 3, whose maximum includes its factor": (GEMMA3, 32768, "its model card", 131072, MAXIMUM),
}


@pytest.mark.parametrize("name", FOUND)
def test_inspect_shows_the_lengths_and_where_they_come_from(name, tmp_path, ran):
    config, trained, trained_key, served, served_key = FOUND[name]
    folder = write_checkpoint(tmp_path, config, {"tokenizer_config.json": '{"model_max_length": 777}'})
    for schedule in ([], ["--schedule", "yarn:factor=2"]):
        lengths = json.loads(ran("inspect", folder, "--json", *schedule).out)["lengths"]
        assert lengths["trained"] == {"tokens": trained, "from": trained_key}
        assert lengths["served"] == {"tokens": served, "from": served_key}
        assert lengths["tokenizer"] == 777 and not {trained_key, served_key} & lengths["others"].keys()
    out, err = ran("inspect", folder)
    assert f"{trained:,} tokens" in out and served_key in out and "777 tokens" in out
    assert "without original_max_position_embeddings" not in err
    if name == "command-r":
        assert lengths["others"] == {"model_max_length": 131072} and "model_max_length" in out


ASKS, KEYS = "give the original length", ("target_positions", "context_length", "seq_len")
PATCHED = [
    (COMMAND_R, {"schedule": "yarn:factor=2"}, ASKS),
    (COMMAND_R, {"schedule": "yarn:factor=2", "original_length": "128k"}, 262144),
    (COMMAND_R, {"schedule": "ntk", "target_length": "256k"}, ASKS),  # the factor follows from the trained length
    (COMMAND_R, {"schedule": "abf:rope_theta=1e8", "target_length": "256k"}, 262144),
    (COMMAND_R, {"schedule": "abf:rope_theta=1e8"}, ASKS),  # another window
    (COMMAND_R, {"schedule": "yarn:factor=2", "on_top": True}, ASKS),
    (LINEAR4, {"schedule": "abf:rope_theta=1e6", "target_length": "64k", "replace_scaling": True}, 65536),
    (COMMAND_R | {"model_max_length": 8192}, {"schedule": "yarn:factor=2"}, 16384),
    *((each, {"schedule": "linear:factor=2", "on_top": True}, 32768) for each in (VICUNA, LINEAR4)),
    (GEMMA3, {"schedule": "linear:factor=2", "on_top": True}, 262144),
    (VICUNA, {"schedule": "linear:factor=2", "on_top": True, "original_length": 4096}, 32768),
    (LINEAR4 | {MAXIMUM: 16384}, {"schedule": "linear:factor=2", "on_top": True, "original_length": 4096}, 32768),
    (VICUNA, {"schedule": "yarn:factor=8", "replace_scaling": True}, 32768),
    (LINEAR4, {"schedule": "yarn:factor=8", "replace_scaling": True}, ASKS),
    (LLAMA31, {"schedule": "yarn:factor=2", "on_top": True}, 262144),
    *((LLAMA | {f"max_{each}": 8192.0}, {"schedule": "yarn:factor=2"}, ASKS) for each in KEYS),
    (LLAMA31 | {MAXIMUM: 100000}, {"schedule": "yarn:factor=32", "replace_scaling": True}, 262144),
    (LLAMA | {MAXIMUM: 65536, "rope_scaling": YARN4}, {"schedule": "linear:factor=2", "on_top": True}, ASKS),
    (QWEN3_40K, {"schedule": "linear:factor=4", "original_length": 40960}, 163840),
]


@pytest.mark.parametrize(("config", "options", "wanted"), PATCHED)
def test_patch_asks_only_where_two_readings_differ(config, options, wanted, tmp_path, ran):
    folder, schedule = write_checkpoint(tmp_path / "M", config), options["schedule"]
    given = {key: value for key, value in options.items() if key != "schedule"}
    if wanted == ASKS:
        with pytest.raises(ConfigError, match=ASKS):
            ropescale.patch_checkpoint(folder, None, schedule, dry_run=True, **given)
        return
    assert ropescale.patch_checkpoint(folder, tmp_path / "P", schedule, **given).plan.length == wanted
    written = json.loads((tmp_path / "P/config.json").read_text())
    for key in written.keys() & {"model_max_length", "max_sequence_length"}:
        assert written[key] == written[MAXIMUM]
    assert inspect(tmp_path / "P").lengths.served.tokens == wanted
    assert f"-len {wanted}" in ran("export", tmp_path / "P", "--for", "vllm").out


@pytest.mark.parametrize("schedule", ["ntk", "yarn", "linear"])
@pytest.mark.parametrize(("factor", "trained", "key"), [(32, 8192, MAXIMUM), (2, 131072, "model_max_length")])
def test_a_factor_and_a_target_length_settle_which_of_two_readings_holds(schedule, factor, trained, key, tmp_path, ran):
    folder, wanted = write_checkpoint(tmp_path, COMMAND_R), {MAXIMUM: trained, "model_max_length": trained}
    table = ropescale.frequencies(COMMAND_R | wanted, f"{schedule}:factor={factor}")
    target = ["--target-length", "256k"]
    for words in (["--schedule", f"{schedule}:factor={factor}"], ["--schedule", schedule, "--factor", factor]):
        done = json.loads(ran("patch", folder, "--dry-run", "--json", *words, *target).out)
        assert done["length"] == 262144 and done["layers"]["all"]["original_length"] == trained
        exported = ran("export", folder, "--for", "transformers5", *words, *target)
        assert f"the schedule starts from {trained:,} ({key})" in exported.err
    assert ropescale.frequencies(COMMAND_R, f"{schedule}:factor={factor}", target_length="256k") == table


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn"])
def test_as_is_has_one_length_where_the_maximum_was_left_at_the_original(kind, tmp_path, ran):
    parameters = {"rope_type": kind, "factor": 4.0, "rope_theta": 10000.0}
    config = plain("llama", 64, 4, 256) | {"rope_parameters": parameters}  # which transformers 4 does not read
    parameters |= {"original_max_position_embeddings": 256} if kind == "yarn" else {}
    folder = write_checkpoint(tmp_path / "M", config)
    seen = json.loads(ran("inspect", folder, "--json").out)
    assert seen["lengths"]["served"]["tokens"] == seen["layers"]["all"]["target_length"] == 1024
    ran("patch", folder, "-o", tmp_path / "P", "--schedule", "as-is")
    length = json.loads((tmp_path / "P/ropescale.json").read_text())["length"]
    written = json.loads((tmp_path / "P/config.json").read_text())
    assert length == 1024
    wanted = ropescale.frequencies(config, "as-is", 1024)
    assert ropescale.frequencies(config, "as-is") == wanted == ropescale.frequencies(written, "as-is", length)


CHUNKED = plain("llama4_text", 64, 4, 262144, head_dim=16) | {"attention_chunk_size": 8192}


@pytest.mark.parametrize(("config", "trained"), [(CHUNKED, 262144), (DUAL_CHUNK, 262144), (DUAL_4K, 4096)])
def test_a_chunk_of_attention_is_no_length_and_dual_chunks_state_the_original(config, trained):
    assert make_plan(config, "yarn:factor=8", layers="all").length == 8 * trained


WIDE = {"llama 3.1": LLAMA31, "a draft head": DRAFT, "plain": LLAMA, "linear": LINEAR4}
WIDE["yarn without an original"] = LLAMA | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
WIDE["command-r"] = COMMAND_R | {"model_max_length": 8192}


@pytest.mark.parametrize("name", WIDE)
def test_as_is_with_a_target_length_widens_the_window_and_keeps_the_table(name, tmp_path, ran):
    folder, length = write_checkpoint(tmp_path / "M", WIDE[name]), 262144
    ran("patch", folder, "-o", tmp_path / "P", "--schedule", "as-is", "--target-length", length)
    written = json.loads((tmp_path / "P/config.json").read_text())
    assert written[MAXIMUM] == length and written.get("model_max_length", length) == length
    (kept, scale), (table, same) = stock_tables(written)["all"], stock_tables(WIDE[name])["all"]
    assert torch.equal(kept, table) and scale == same
    assert inspect(tmp_path / "P").lengths.served.tokens == length
    assert inspect(tmp_path / "P").lengths.trained.tokens == inspect(folder).lengths.trained.tokens
    assert "live: yes" in ran("verify", tmp_path / "P").out
    yarn = "yarn" in name  # whose table ends there in these engines
    for words in [] if name == "a draft head" else (["P"], ["M", "--schedule", "as-is", "--target-length", length]):
        for engine in ("vllm", "sglang"):
            done = ran("export", tmp_path / words[0], "--for", engine, *words[1:], code=int(yarn))
            assert "ends yarn's table at 16,384 tokens" in done.err if yarn else f"{length}" in done.out
    assert json.loads((tmp_path / "P/ropescale.json").read_text())["length"] == length
    words = (tmp_path / "P", "--dry-run", "--schedule", "linear:factor=2", "--on-top", "--original-length", length)
    assert not (yarn or name == "linear") or f" x4 of {LLAMA[MAXIMUM]} " in ran("patch", *words).out


def test_a_maximum_below_the_served_length_is_raised_as_verify_advises(tmp_path, ran):
    folder = write_checkpoint(tmp_path / "M", WIDE["yarn without an original"])
    assert "as-is and this target length raises it" in ran("verify", folder, code=1).err
    ran("patch", folder, "-o", tmp_path / "P", "--schedule", "as-is", "--target-length", 16384)
    written = json.loads((tmp_path / "P/config.json").read_text())
    (kept, scale), (table, same) = stock_tables(written)["all"], stock_tables(WIDE["yarn without an original"])["all"]
    assert torch.equal(kept, table) and (scale, written[MAXIMUM]) == (same, 16384)
    assert "live: yes" in ran("verify", tmp_path / "P").out


ANOTHER, DYNAMIC = "a longer window is another table", LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}
NARROW = [(LLAMA31, "64k", "the window is 131,072 tokens already")]
NARROW += [(DYNAMIC, "1m", ANOTHER), (PHI3_128K, "1m", ANOTHER)]


@pytest.mark.parametrize(("config", "length", "why"), NARROW)
def test_a_window_that_cannot_be_widened_is_refused(config, length, why, tmp_path, refused):
    folder = write_checkpoint(tmp_path / "M", config)
    assert why in refused("patch", folder, "-o", tmp_path / "P", "--schedule", "as-is", "--target-length", length)
    assert not (tmp_path / "P").exists()


VISION = {"vision_config": {"hidden_size": 8, "num_attention_heads": 2, "max_position_embeddings": 9}}
SECTIONS = {"deepseek_vl_v2": ["language_config"], "internvl_chat": ["llm_config"], "brandnew": ["decoder"]}
SECTIONS["qwen2_5_omni"] = ["thinker_config", "text_config"]


@pytest.mark.parametrize(("model_type", "path"), SECTIONS.items())
def test_a_language_models_section_is_read_and_written_under_its_name_and_unknown_types_are(model_type, path, tmp_path):
    config = LLAMA
    for name in reversed(path):
        config = {name: config}
    others = VISION | ({"talker_config": LLAMA} if path[0] == "thinker_config" else {})
    folder = write_checkpoint(tmp_path / "M", {"model_type": model_type, **config, **others})
    done = ropescale.patch_checkpoint(folder, tmp_path / "P", "yarn:factor=2")
    written = inner = json.loads((tmp_path / "P/config.json").read_text())
    for name in path:
        inner = inner[name]
    assert inner[MAXIMUM] == 8192 and inner["rope_parameters"]["rope_type"] == "yarn"
    assert written.keys() == {"model_type", path[0], *others} and written.get("talker_config", LLAMA) == LLAMA
    said = f"type '{model_type}' is unknown to ropescale; whether its code reads what is written in {'.'.join(path)} is"
    assert any(said in each for each in done.warnings) == (model_type != "qwen2_5_omni")
    assert ("describes a language model: talker_config" in str(done.plan.notes)) == ("talker_config" in others)


@pytest.mark.parametrize("scaling", [None, {"type": "mrope", "mrope_section": [2, 3, 3]}])
def test_flat_keys_are_read_and_written_where_the_class_reads_flat_keys(scaling, tmp_path):
    """Qwen2.5-VL's published files have no text_config; the class of transformers fills its own from the top level."""
    config = {"model_type": "qwen2_5_vl", **plain("llama", 64, 4, 4096, 1e6), "rope_scaling": scaling, **VISION}
    folder = write_checkpoint(tmp_path / "M", config | {"model_type": "qwen2_5_vl"})
    ropescale.patch_checkpoint(folder, tmp_path / "P", "yarn:factor=2")
    text = AutoConfig.from_pretrained(tmp_path / "P").get_text_config()
    found, scale = ROPE_INIT_FUNCTIONS["yarn"](text, "cpu")
    wanted = ropescale.frequencies(folder, "yarn:factor=2")["all"]
    torch.testing.assert_close(found.double(), torch.tensor(wanted.inv_freq, dtype=torch.float64), rtol=1e-6, atol=0)
    assert (text.max_position_embeddings, scale) == (8192, wanted.attention_scale)


OWN = LLAMA | {"rope_theta": None}
REFUSED = [
    (LLAMA | {"model_type": "deepseek_vl_v2", "language_config": LLAMA}, "in the top level and language_config"),
    *((LLAMA | {"model_type": each}, "in the top level; nothing is read or changed") for each in ("emu3", "llava")),
    (LLAMA | {"model_type": "ultrabert"}, "ultrabert keeps rope_parameters per layer type (sliding_attention, full_"),
    (LLAMA | {"model_type": "clip_text_model"}, "of clip_text_model in no section"),
    ({"model_type": "brandnew", "a": LLAMA, "b": LLAMA}, "in a and b"),
    *(({"model_type": "brandnew", each: LLAMA}, f"in {each}, and whether the code of mod") for each in ("llm", "a.b")),
    ({"model_type": "brandnew", "model": {"decoder": LLAMA}}, "in model.decoder, and whether the code of model type"),
    *((LLAMA | {"model_type": each}, "reads keys of its own") for each in ("chatglm", "baichuan", "qwen")),
    (OWN | {"model_type": "brandnew"}, "lacks rope_theta; its own code may compute this from other keys"),
]


@pytest.mark.parametrize(("config", "why"), REFUSED)
def test_a_section_that_nothing_is_known_to_read_is_named_and_not_written(config, why, tmp_path, refused):
    folder = write_checkpoint(tmp_path / "M", config)
    for command in (["inspect"], ["patch", "-o", tmp_path / "P", "--schedule", "linear:factor=2"]):
        message = refused(*command, folder)
        assert why in message and "add it" not in message


def test_a_dangling_configuration_is_named_with_its_target(tmp_path, refused):
    (tmp_path / "config.json").symlink_to("../../blobs/abc")
    assert "config.json is a link to ../../blobs/abc, which does not exist" in refused("inspect", tmp_path)


def test_of_a_key_that_stands_twice_the_last_value_is_read_as_transformers_does_and_that_is_said(tmp_path, ran, caplog):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA).rstrip("}") + ', "rope_theta": 5e5}')
    assert "500,000" in ran("inspect", tmp_path).out
    assert caplog.text.count("states 'rope_theta' more than once; the last value counts") == 1
    with pytest.raises(ScheduleError, match="states 'factor' more than once"):
        ropescale.frequencies(tmp_path, '{"name": "yarn", "factor": 2, "factor": 4}')


def test_the_tool_prints_what_is_read_in_a_folder_of_configurations(tmp_path, monkeypatch, capsys):
    for name, config in {"a": {"model_type": "internvl_chat", "llm_config": VICUNA}, "b": OWN}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(config | ({"model_type": "new"} if name == "b" else {})))
    monkeypatch.setattr("sys.argv", ["read_configs.py", str(tmp_path)])
    read_configs.main()
    first, second = capsys.readouterr().out.splitlines()[2:]
    read = ["llm_config (llama)", "4,096 (max_position_embeddings)", "16,384 (factor 4 ", "32 of head 64", "linear x4"]
    assert all(words in first for words in read) and "refused: " in second and "lacks rope_theta" in second


AS_IS = ["--schedule", "as-is"], "--target-length has no effect: as-is keeps the frequencies"
AT_LENGTHS = [(LLAMA, [], "--target-length needs a schedule"), (LLAMA, *AS_IS), (LLAMA31, [], "")]


@pytest.mark.parametrize(("config", "words", "why"), AT_LENGTHS)
def test_inspect_shows_a_scaled_table_at_a_length_and_refuses_one_without_effect(config, words, why, tmp_path, ran):
    folder = write_checkpoint(tmp_path, config)
    seen = ran("inspect", folder, "--target-length", "64k", "--json", *words, code=2 if why else 0)
    assert why in seen.err if why else json.loads(seen.out)["layers"]["all"]["target_length"] == 65536
