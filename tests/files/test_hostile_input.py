"""Damaged and hostile files: one clear line of bounded length, exit code 2, in bounded time, and nothing written."""

import json
import logging
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
from configurations import CONFIG, edit, read, write_files
from fuzzing.judging import limited
from refusing import refused
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import CONFIG_MAPPING, PreTrainedTokenizerFast

from ropescale import files
from ropescale.cli.main import main
from ropescale.configs.configuration import read_rope
from ropescale.errors import ConfigError, DataError
from ropescale.evals.data.documents import TextEncoder

PATCH = ["patch", "model", "-o", "out", "--schedule", "yarn:factor=4"]
REPLACE = ["patch", "model", "-o", "out", "--schedule", "yarn:factor=2", "--replace-scaling"]
INSPECT = ["inspect", "model"]
VERIFY = ["verify", "model"]


def export(engine: str) -> list[str]:
    return ["export", "model", "--for", engine]


# ---------------------------------------------------------------------------------------------------------
# Configurations

TEXTS = {
    "5000 digits": (f'{{"model_type": "llama", "x": {"9" * 5000}}}', "config.json contains a number of thousands of"),
    "300 brackets": ('{"a": ' + "[" * 300 + "]" * 300 + "}", "config.json nests its brackets too deeply"),
    "byte order mark": ("\ufeff" + json.dumps(CONFIG), "config.json is not valid JSON (line 1, column 1: Unexpected"),
}


@pytest.mark.parametrize("words", [PATCH, [*PATCH, "--dry-run"], INSPECT, VERIFY, export("vllm")], ids=" ".join)
@pytest.mark.parametrize(("text", "sentence"), TEXTS.values(), ids=TEXTS)
def test_a_configuration_that_python_cannot_walk_is_refused(model, capsys, words, text, sentence):
    (model / "config.json").write_text(text)
    refused(capsys, words, sentence)


def scaled(**changes: Any) -> dict[str, Any]:
    return {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, **changes}}


CONFIGS: dict[str, tuple[Any, ...]] = {
    "no type": ({"model_type": None}, "no model_type"),
    "many types": ({"model_type": [1.0] * 10**5, "text_config": CONFIG}, "model_type must be a name, not [1.0"),
    "unknown type": ({"model_type": "newest", "rope_theta": None, "head_dim": None, "hidden_size": None}, "rope_theta"),
    "head_dim 0": ({"head_dim": 0}, "head_dim is 0"),
    "head_dim vast": ({"head_dim": 2**31}, "a head would rotate 2147483648 coordinates"),
    "no heads": ({"head_dim": None, "num_attention_heads": 0}, "num_attention_heads is 0"),
    "tiny heads": ({"model_type": "newest", "head_dim": None, "hidden_size": 1, "rotary_dim": 2}, "heads is 0"),
    "length null": ({"model_type": "newest", "max_position_embeddings": None}, "max_position_embeddings"),
    "original 0": ({"original_max_position_embeddings": 0}, "original_max_position_embeddings is 0"),
    "original -0": (scaled(original_max_position_embeddings=-0.0), "is -0.0", [*INSPECT, "--original-length", "64"]),
    "theta 1": ({"rope_theta": 1}, "rope_theta is 1 in the configuration; it must be greater than 1"),
    "theta NaN": ({"rope_theta": float("nan")}, "rope_theta is nan"),
    "partial 0": ({"partial_rotary_factor": 0}, "partial_rotary_factor is 0"),
    "nothing rotates": ({"model_type": "stablelm", "partial_rotary_factor": 0.001}, "leaves no coordinate to rotate"),
    "NaN": ({"attention_dropout": float("nan")}, "contains NaN"),
    "layer_types number": ({"model_type": "gemma3_text", "layer_types": 5}, "layer_types is 5"),
    "layer thetas": ({"model_type": "granite_swa", "layer_rope_theta": ["a", 1]}, "layer_rope_theta is 'a'"),
    "scaling string": ({"rope_scaling": "yarn"}, "rope_scaling must be an object of keys and values, not 'yarn'"),
    "scaled already": ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "already scaled"),
    "mscale": (scaled(mscale="x", mscale_all_dim=1), "mscale is 'x' in the rope parameters", REPLACE),
    "factor NaN": (scaled(factor=float("nan")), "factor is nan in the rope parameters", export("vllm")),
    "an odd head": ({"head_dim": 7}, "head_dim is 7"),
    "escapes": ({"head_dim": "\x1b[31m"}, r"'\x1b[31m'"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_that_cannot_be_is_refused(model, capsys, name):
    changes, sentence, *others = CONFIGS[name]
    edit(model, **changes)
    refused(capsys, *others or [PATCH], sentence)


def test_a_window_of_hundreds_of_digits_does_not_stop_a_patch(model):
    edit(model, model_type="gemma3_text", sliding_window=10**400)
    assert main([*PATCH[:-1], "yarn:factor=4,mscale=1,mscale_all_dim=0.8"]) == 0


MLA = (
    "axk1 axk2 bailing_hybrid deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa hy_v4 longcat_flash "
    "minicpm3 youtu"
).split()


@pytest.mark.parametrize("stated", [{"head_dim": 8}, {"qk_rope_head_dim": 32}, {"qk_rope_head_dim": 8, "head_dim": 8}])
@pytest.mark.parametrize("model_type", MLA)
def test_latent_attention_rotates_as_transformers_builds_it(model_type, stated):
    """The table has ``config.head_dim`` coordinates and attention rotates ``config.qk_rope_head_dim`` of each head."""
    built = CONFIG_MAPPING[model_type](**stated)
    config = {"model_type": model_type, **stated}
    if built.head_dim == built.qk_rope_head_dim:
        assert read_rope(config)["all"].rotary_dim == built.head_dim
    else:  # transformers cannot run it
        with pytest.raises(ConfigError, match=f"head_dim is {built.head_dim} and .* {built.qk_rope_head_dim}: "):
            read_rope(config)


# ---------------------------------------------------------------------------------------------------------
# Records

RECORDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no spec": lambda r: r.pop("spec"),
    "an original length of nothing": lambda r: r.update(original_length={"all": 0}),
    "a table of NaN": lambda r: r["tables"]["all"].update(inv_freq=[float("nan")] * 8),
    "a side without a length": lambda r: r.update(switch={"all": [{"inv_freq": [1.0] * 8, "attention_scale": 1.0}]}),
}


@pytest.mark.parametrize("damage", RECORDS.values(), ids=RECORDS)
def test_a_record_with_values_that_cannot_be_is_refused(model, capsys, damage):
    assert main(PATCH) == 0
    record = read(Path("out/ropescale.json"))
    damage(record)
    write_files(Path("out"), {"ropescale.json": json.dumps(record)})
    capsys.readouterr()
    again = ["patch", "out", "-o", "second", "--schedule", "ntk:factor=2"]
    others = ["export", "out", "--for", "vllm"], ["inspect", "out", *again[4:]], ["verify", "out"]
    for words in (again, [*again, "--dry-run"], *others):
        refused(capsys, words, "ropescale.json is a record that ropescale")


# ---------------------------------------------------------------------------------------------------------
# Files that are not files

NAMES = "config.json adapter_config.json tokenizer.json ropescale.json README.md model.safetensors.index.json".split()


PIPES = [(PATCH, name) for name in NAMES]
PIPES += [(words, "config.json") for words in (INSPECT, VERIFY, export("vllm"))]


@pytest.mark.parametrize(("words", "name"), PIPES)
def test_a_pipe_is_not_read(model, capsys, words, name):
    (model / name).unlink(missing_ok=True)
    os.mkfifo(model / name)
    refused(capsys, words, f"{name} is a pipe or a device, not a regular file")


LARGE = [("config.json", 9, "8.39 MB"), ("model.safetensors.index.json", 129, "134 MB")]


@pytest.mark.parametrize(("name", "mebibytes", "most"), LARGE)
def test_a_file_that_is_larger_than_any_of_its_name_is_not_read(model, capsys, name, mebibytes, most):
    with open(model / name, "wb") as file:
        file.truncate(mebibytes * 2**20)
    refused(capsys, PATCH, f"{name} is larger than {most}")


def test_a_tokenizer_of_a_hundred_thousand_added_tokens_is_read(model):
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word", "special"), False)
    tokens = {str(number): {"content": f"<|reserved_special_token_{number}|>", **flags} for number in range(100_000)}
    content = {"added_tokens_decoder": tokens}
    (model / "tokenizer_config.json").write_text(json.dumps(content))
    assert files.read_json(model / "tokenizer_config.json") == content


def test_a_pattern_of_a_tokenizer_that_backtracks_without_end_is_refused_in_a_second():
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    with pytest.raises(DataError, match=r"retry-limit.*correct the patterns in its tokenizer\.json"):
        TextEncoder(PreTrainedTokenizerFast(tokenizer_object=tokenizer)).whole("a" * 60 + "!")


# ---------------------------------------------------------------------------------------------------------
# Indexes


def write_index(model: Path, shards: list[Any]) -> None:
    weights = {f"w{i}": shard for i, shard in enumerate(shards)}
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))


@pytest.mark.parametrize("shard", ["b.safetensors", "b.gguf", "weights.of.mine", "m" * 300])
def test_a_shard_that_is_missing_is_named_whatever_it_is_called(model, capsys, shard):
    write_index(model, ["model.safetensors", shard])
    refused(capsys, PATCH, f"model lacks 1 of the 2 files in model.safetensors.index.json, such as {shard[:60]}")


@pytest.mark.parametrize("shard", ["../x", "/etc/passwd", "..\\x", "C:\\x", "a\\..\\x", 5, None, ["a"], "", "a\0b"])
def test_a_shard_outside_the_folder_is_refused(model, capsys, shard):
    write_index(model, ["model.safetensors", shard])
    refused(capsys, PATCH, "instead of the name of a file in its folder")


# ---------------------------------------------------------------------------------------------------------
# What transformers loads


@pytest.fixture
def loadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny Llama at ``model`` in the working directory, with weights and a tokenizer."""
    monkeypatch.chdir(tmp_path)
    with limited(60):
        return tiny.checkpoint(tmp_path / "model", tiny.llama())


GENERATE = ["verify", "model", "--generate", "--length", "8"]


UNBUILT = [
    ({"num_hidden_layers": 2**31}, "num_hidden_layers is 2147483648 in model/config.json"),
    ({"num_hidden_layers": math.inf}, "num_hidden_layers is inf in model/config.json"),
    ({"model_type": ["llama"], "auto_map": {"AutoModel": "x.Y"}}, "transformers has no model type ['llama']"),
]


@pytest.mark.parametrize(("changes", "said"), UNBUILT)
@pytest.mark.parametrize("words", [VERIFY, GENERATE], ids=" ".join)
def test_what_no_model_has_is_not_built(loadable, capsys, words, changes, said):
    edit(loadable, **changes)
    refused(capsys, words, said)


def test_weights_that_are_not_those_of_the_model_are_one_line_and_unused_ones_are_named(loadable, capfd, caplog):
    edit(loadable, intermediate_size=40)
    refused(capfd, GENERATE, "down_proj.weight; download both again")
    edit(loadable, intermediate_size=48, num_hidden_layers=1)
    assert main(GENERATE) == 0
    assert "model has 9 weights that its model does not use, such as model.layers.1." in caplog.text
    edit(loadable, num_hidden_layers=3)
    capfd.readouterr()
    refused(capfd, GENERATE, "model lacks 9 weights of its model, such as model.layers.2.")


def test_transformers_adds_nothing_while_weights_load(loadable, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    with caplog.at_level(logging.WARNING, "transformers"):
        assert main(GENERATE) == 0
    assert caplog.messages == []


# --- whatever is wrong with the input: exit code 2, one line that says what and where, and nothing written ---


COMMANDS = [PATCH, ["inspect", "model", "--schedule", "yarn:factor=4"], ["inspect", "model"]]

FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing folder": (shutil.rmtree, "model"),
    "no config": (lambda m: (m / "config.json").unlink(), "model has no config.json"),
    "config is a folder": (lambda m: [(m / "config.json").unlink(), (m / "config.json").mkdir()], "is a folder, not"),
    "a file": (lambda m: [shutil.rmtree(m), m.write_text("x")], "model is a file"),
    "not JSON": (lambda m: (m / "config.json").write_text("model_type: llama"), "is not valid JSON (line 1, column 1"),
    "adapter": (lambda m: (m / "adapter_config.json").write_text("{}"), "into base_model_name_or_path"),
}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(("damage", "sentence"), FILES.values(), ids=FILES)
def test_a_folder_that_is_no_checkpoint_is_refused(model, capsys, words, damage, sentence):
    damage(model)
    refused(capsys, words, sentence)


OTHERS = {
    "tokenizer_config.json": ["{", "[]", "5", '{"model_max_length": 5, "x": NaN}'],
    "generation_config.json": ["{", "[]"],
    "params.json": ["{"],
    "model.safetensors.index.json": ["", "[]", "{}", '{"weight_map": 5}', '{"weight_map":', "\x80"],
    "ropescale.json": [
        *("{", "[]", "{}", '{"schema": 1, "undo": {"changed": {}}, "tables": {}}'),
        '{"schema": 1, "undo": {"changed": {}, "added": 5}, "tables": {}}',
        '{"schema": 1, "undo": {"changed": {}, "added": []}, "tables": {"all": 1}}',
    ],
}


@pytest.mark.parametrize(("name", "content"), [(name, text) for name, texts in OTHERS.items() for text in texts])
def test_another_file_that_is_damaged_is_named(model, capsys, name, content):
    (model / name).write_bytes(content.encode("latin-1"))
    refused(capsys, PATCH, f"{name} ")


# What else can be wrong in a schedule's text, and in a length's, is in tests/schedules and tests/core.
ARGUMENTS: dict[str, tuple[list[str], str]] = {
    "attention enormous": (["--schedule", "yarn:factor=4,attention_factor=1e50"], "a positive number below 1e+06"),
    "length of 5000 digits": (["--schedule", "yarn", "--target-length", "9" * 5000], "is not a length"),
    "layers": (["--schedule", "yarn:factor=4", "--layers", "some"], "so 'some' cannot be changed separately; change a"),
}


@pytest.mark.parametrize(("words", "sentence"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_that_cannot_be_are_refused(model, capsys, words, sentence):
    refused(capsys, ["patch", "model", "-o", "out", *words], sentence)


PLACES = [
    (["patch", "model", "--schedule", "yarn:factor=4"], "name the output folder, or"),
    (["restore", "model"], "nothing to restore in model"),
    (["patch", "/none", "-o", "out", "--schedule", "yarn:factor=4"], "folder /none does not exist"),
    (["patch", "", "-o", "out", "--schedule", "yarn:factor=4"], "the model's name is empty"),
    (["patch", "model", "-o", "", "--schedule", "yarn:factor=4"], "the output's name is empty"),
    (["patch", "model", "-o", "/dev/null/out", "--schedule", "yarn:factor=4"], "/dev/null is not a folder"),
]


@pytest.mark.parametrize(("words", "sentence"), PLACES)
def test_places_that_cannot_be_are_refused(model, capsys, words, sentence):
    refused(capsys, words, sentence)


def test_an_existing_output_is_refused_and_a_dry_run_shows_what_would_be_written(model, capsys, ran):
    write_files(Path("out"), {"mine.txt": "mine"})
    Path("empty").mkdir()
    Path("link").symlink_to("empty")
    words = [word.replace("out", "link") for word in PATCH]
    refused(capsys, words, "link was not written by ropescale (a symbolic link)")
    said = "out was not written by ropescale (no ropescale.json), so it is never replaced; choose another folder"
    refused(capsys, PATCH, f"{said} (-o)")
    shown = ran(*PATCH, "--dry-run")
    assert '+    "rope_type": "yarn"' in shown.out and f"warning: the command would write nothing: {said}" in shown.err
    assert [path.name for path in Path("out").iterdir()] == ["mine.txt"]
