"""Whatever is wrong with the input: exit code 2, one line that says what and where, nothing written, no traceback."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from configurations import CONFIG, edit, write_files
from refusing import refused

PATCH = ["patch", "model", "-o", "out", "--schedule", "yarn:factor=4"]
COMMANDS = [PATCH, ["inspect", "model", "--schedule", "yarn:factor=4"], ["inspect", "model"]]

FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing folder": (shutil.rmtree, "model"),
    "empty folder": (lambda m: [path.unlink() for path in m.iterdir()], "model has no config.json"),
    "no config": (lambda m: (m / "config.json").unlink(), "model has no config.json"),
    "config is a folder": (lambda m: [(m / "config.json").unlink(), (m / "config.json").mkdir()], "is a folder, not"),
    "a file": (lambda m: [shutil.rmtree(m), m.write_text("x")], "model is a file"),
    "not JSON": (lambda m: (m / "config.json").write_text("model_type: llama"), "is not valid JSON (line 1, column 1"),
    "truncated": (lambda m: (m / "config.json").write_text(json.dumps(CONFIG)[:-20]), "is not valid JSON"),
    "adapter": (lambda m: (m / "adapter_config.json").write_text("{}"), "into base_model_name_or_path"),
}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(("damage", "sentence"), FILES.values(), ids=FILES)
def test_a_folder_that_is_no_checkpoint_is_refused(model, capsys, words, damage, sentence):
    damage(model)
    refused(capsys, words, sentence)


GEMMA3 = {"model_type": "gemma3_text"}
CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "no type": ({"model_type": None}, "no model_type"),
    "unknown type": ({"model_type": "newest", "rope_theta": None, "head_dim": None, "hidden_size": None}, "rope_theta"),
    "head_dim 0": ({"head_dim": 0}, "head_dim is 0"),
    "head_dim vast": ({"head_dim": 2**31}, "a head would rotate 2147483648 coordinates"),
    "no heads": ({"head_dim": None, "num_attention_heads": 0}, "num_attention_heads is 0"),
    "length null": ({"model_type": "newest", "max_position_embeddings": None}, "max_position_embeddings"),
    "original 0": ({"original_max_position_embeddings": 0}, "original_max_position_embeddings is 0"),
    "theta 1": ({"rope_theta": 1}, "rope_theta is 1 in the configuration; it must be greater than 1"),
    "theta NaN": ({"rope_theta": float("nan")}, "rope_theta is nan"),
    "partial 0": ({"partial_rotary_factor": 0}, "partial_rotary_factor is 0"),
    "nothing rotates": ({"model_type": "stablelm", "partial_rotary_factor": 0.001}, "leaves no coordinate to rotate"),
    "NaN": ({"attention_dropout": float("nan")}, "config.json contains NaN"),
    "layer_types number": ({**GEMMA3, "layer_types": 5}, "layer_types is 5"),
    "layer thetas": ({"model_type": "granite_swa", "layer_rope_theta": ["a", 1]}, "layer_rope_theta is 'a'"),
    "scaling string": ({"rope_scaling": "yarn"}, "rope_scaling must be an object of keys and values, not 'yarn'"),
    "scaled already": ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "already scaled"),
}


@pytest.mark.parametrize(("changes", "sentence"), CONFIGS.values(), ids=CONFIGS)
def test_a_configuration_that_cannot_be_is_refused(model, capsys, changes, sentence):
    edit(model, **changes)
    refused(capsys, PATCH, sentence)


OTHERS = {
    "tokenizer_config.json": ["{", "[]", "5", '{"model_max_length": 5, "x": NaN}'],
    "generation_config.json": ["{", "[]"],
    "params.json": ["{"],
    "model.safetensors.index.json": ["", "[]", "{}", '{"weight_map": 5}', '{"weight_map":', "\x80"],
    "ropescale.json": [
        "{",
        "[]",
        "{}",
        '{"schema": 1, "undo": {"changed": {}}, "tables": {}}',
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
