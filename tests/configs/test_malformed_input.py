"""Whatever is wrong with the input: exit code 2, one line that says what and where, nothing written, no traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from configurations import CONFIG, edit
from crashing import unchanged
from refusing import one_error, refused

PATCH = ["patch", "model", "-o", "out", "--schedule", "yarn:factor=4"]
COMMANDS = [PATCH, ["inspect", "model", "--schedule", "yarn:factor=4"], ["inspect", "model"]]

FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing folder": (shutil.rmtree, "model"),
    "empty folder": (lambda m: [path.unlink() for path in m.iterdir()], "model has no config.json"),
    "no config": (lambda m: (m / "config.json").unlink(), "model has no config.json"),
    "config is a folder": (
        lambda m: [(m / "config.json").unlink(), (m / "config.json").mkdir()],
        "is a folder, not a regular file",
    ),
    "a file": (lambda m: [shutil.rmtree(m), m.write_text("x")], "model is a file"),
    "not JSON": (lambda m: (m / "config.json").write_text("model_type: llama"), "is not valid JSON (line 1, column 1"),
    "truncated": (lambda m: (m / "config.json").write_text(json.dumps(CONFIG)[:-20]), "is not valid JSON"),
    "empty file": (lambda m: (m / "config.json").write_text(""), "is not valid JSON"),
    "string": (lambda m: (m / "config.json").write_text('"llama"'), "contains a JSON str, not an object"),
    "too deep": (lambda m: (m / "config.json").write_text('{"a":' * 100_000), "config.json"),
    "adapter": (lambda m: (m / "adapter_config.json").write_text("{}"), "into base_model_name_or_path"),
    "bad adapter": (lambda m: (m / "adapter_config.json").write_text("{"), "adapter_config.json is not valid JSON"),
    "adapter list": (
        lambda m: (m / "adapter_config.json").write_text("[]"),
        "adapter_config.json contains a JSON list",
    ),
}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(("damage", "sentence"), FILES.values(), ids=FILES)
def test_a_folder_that_is_no_checkpoint_is_refused(model, capsys, words, damage, sentence):
    damage(model)
    refused(capsys, words, sentence)


GEMMA3 = {"model_type": "gemma3_text"}
CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "no type": ({"model_type": None}, "no model_type"),
    "a type that is a number": ({"model_type": 5}, "no model_type"),
    "unknown type": ({"model_type": "newest", "rope_theta": None, "head_dim": None, "hidden_size": None}, "rope_theta"),
    "head_dim 0": ({"head_dim": 0}, "head_dim is 0"),
    "head_dim vast": ({"head_dim": 2**31}, "a head would rotate 2147483648 coordinates"),
    "head_dim string": ({"head_dim": "64"}, "head_dim is '64'"),
    "no heads": ({"head_dim": None, "num_attention_heads": 0}, "num_attention_heads is 0"),
    "length null": ({"model_type": "newest", "max_position_embeddings": None}, "max_position_embeddings"),
    "length string": ({"max_position_embeddings": "256"}, "max_position_embeddings is '256'"),
    "length 0": ({"max_position_embeddings": 0}, "max_position_embeddings"),
    "original 0": ({"original_max_position_embeddings": 0}, "original_max_position_embeddings is 0"),
    "theta string": ({"rope_theta": "10000"}, "rope_theta is '10000'"),
    "theta 1": ({"rope_theta": 1}, "rope_theta is 1 in the configuration; it must be greater than 1"),
    "theta NaN": ({"rope_theta": float("nan")}, "rope_theta is nan"),
    "partial string": ({"partial_rotary_factor": "half"}, "partial_rotary_factor is 'half'"),
    "partial 0": ({"partial_rotary_factor": 0}, "partial_rotary_factor is 0"),
    "nothing rotates": ({"model_type": "stablelm", "partial_rotary_factor": 0.001}, "leaves no coordinate to rotate"),
    "partial above 1": ({"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5"),
    "length of 400 digits": ({"max_position_embeddings": 10**400}, "max_position_embeddings is 1000"),
    "layer_types number": ({**GEMMA3, "layer_types": 5}, "layer_types is 5"),
    "layer_types nested": ({**GEMMA3, "layer_types": [["a"]]}, "layer_types is [['a']]"),
    "layer thetas": ({"model_type": "granite_swa", "layer_rope_theta": ["a", 1]}, "layer_rope_theta is 'a'"),
    "rotary_dim": ({"model_type": "minimax_m2", "rotary_dim": "x"}, "rotary_dim is 'x'"),
    "factor of 400 digits": (
        {"rope_scaling": {"rope_type": "linear", "factor": 10**400}},
        "it must be a finite number below 1e+100",
    ),
    "scaling string": ({"rope_scaling": "yarn"}, "rope_scaling must be an object of keys and values, not 'yarn'"),
    "parameters list": ({"rope_parameters": [1]}, "rope_parameters must be an object of keys and values, not [1]"),
    "scaled already": ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "already scaled"),
}


@pytest.mark.parametrize(("changes", "sentence"), CONFIGS.values(), ids=CONFIGS)
def test_a_configuration_that_cannot_be_is_refused(model, capsys, changes, sentence):
    edit(model, **changes)
    refused(capsys, PATCH, sentence)


def test_a_configuration_with_nan_is_refused(model, capsys):
    edit(model, attention_dropout=float("nan"))
    refused(capsys, PATCH, "config.json contains NaN")


OTHERS = {
    "tokenizer_config.json": ["{", "[]", "5", '{"model_max_length": 5, "x": NaN}'],
    "generation_config.json": ["{", "[]"],
    "params.json": ["{"],
    "ropescale.json": [
        "{",
        "[]",
        "{}",
        '{"schema": 2}',
        '{"schema": 1, "undo": []}',
        '{"schema": 1, "undo": {"changed": {}}, "tables": {}}',
        '{"schema": 1, "undo": {"changed": {}, "added": 5}, "tables": {}}',
        '{"schema": 1, "undo": {"changed": {}, "added": []}, "tables": {"all": 1}}',
    ],
}


@pytest.mark.parametrize(("name", "content"), [(name, text) for name, texts in OTHERS.items() for text in texts])
def test_another_file_that_is_damaged_is_named(model, capsys, name, content):
    (model / name).write_text(content)
    refused(capsys, PATCH, name)


# What else can be wrong in a schedule's text, and in a length's, is in tests/schedules and tests/core.
ARGUMENTS: dict[str, tuple[list[str], str]] = {
    "attention enormous": (["--schedule", "yarn:factor=4,attention_factor=1e50"], "a positive number below 1e+06"),
    "length of 5000 digits": (["--schedule", "yarn", "--target-length", "9" * 5000], "is not a length"),
    "option abc": (["--schedule", "yarn", "--factor", "abc"], "'--factor': 'abc' is not a factor"),
    "set without value": (["--schedule", "yarn:factor=4", "--set", "beta_fast"], "'beta_fast' is not key=value"),
    "length negative": (["--schedule", "yarn", "--target-length", "-4k"], "'-4k' is not a length"),
    "layers": (
        ["--schedule", "yarn:factor=4", "--layers", "some"],
        "keeps one table for every layer, so 'some' cannot be changed separately; change all (--layers)",
    ),
    "link": (["--schedule", "yarn:factor=4", "--link", "soft"], "'soft' is not one of"),
    "revision": (["--schedule", "yarn:factor=4", "--revision", "main"], "revision applies to a model on the Hub"),
    "unknown option": (["--schedule", "yarn:factor=4", "--farce"], "no such option '--farce'"),
    "no schedule": ([], "missing option '--schedule'"),
    "extra argument": (["--schedule", "yarn:factor=4", "more"], "unexpected extra argument (more)"),
    "in place too": (["--schedule", "yarn:factor=4", "--in-place"], "mutually exclusive"),
}


@pytest.mark.parametrize(("words", "sentence"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_that_cannot_be_are_refused(model, capsys, words, sentence):
    refused(capsys, ["patch", "model", "-o", "out", *words], sentence)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["patch"], "missing argument 'MODEL'"),
        (["restore"], "missing argument 'DIR'"),
        (["patch", "model", "--schedule", "yarn:factor=4"], "name the folder of the patched checkpoint, or"),
        (["restore", "model"], "nothing to restore in model"),
        (["patch", "/none", "-o", "out", "--schedule", "yarn:factor=4"], "folder /none does not exist"),
        (
            ["patch", "~no-such-user/none/x", "-o", "out", "--schedule", "yarn:factor=4"],
            "folder ~no-such-user/none/x does not exist",
        ),
        (["patch", "", "-o", "out", "--schedule", "yarn:factor=4"], "the model's name is empty"),
        (["patch", "model", "-o", "o" * 300, "--schedule", "yarn:factor=4"], "File name too long"),
        (["patch", "model", "-o", "o\0o", "--schedule", "yarn:factor=4"], "null byte"),
        (["patch", "model", "-o", "", "--schedule", "yarn:factor=4"], "the output's name is empty"),
        (["patch", "model", "-o", "model", "--schedule", "yarn:factor=4"], "is the source itself"),
        (["patch", "model", "-o", "model/config.json/x", "--schedule", "yarn:factor=4"], "overlap"),
        (["patch", "model", "-o", "/dev/null/out", "--schedule", "yarn:factor=4"], "/dev/null is not a folder"),
        (["patch", "model", "-o", "~no-such-user/out", "--schedule", "yarn:factor=4"], "~no-such-user"),
    ],
)
def test_places_that_cannot_be_are_refused(model, capsys, words, sentence):
    refused(capsys, words, sentence)


def test_an_existing_output_is_refused(model, capsys):
    Path("out").mkdir()
    refused(capsys, PATCH, "out exists already; choose another folder, or replace it with force (--force)")
    refused(capsys, [*PATCH[:-1], "yran:factor=4"], "no schedule named 'yran'; did you mean 'yarn'?")


def test_a_dry_run_shows_what_would_be_written_beside_an_existing_output(model, ran):
    Path("out").mkdir()
    shown = ran(*PATCH, "--dry-run")
    assert '+    "rope_type": "yarn"' in shown.out
    assert (
        "warning: the command would write nothing: out exists already; choose another folder, or replace it"
        in shown.err
    )
    assert not any(Path("out").iterdir())


HEAD = "from ropescale import Frequencies\n"
SCHEDULES: dict[str, tuple[str, str]] = {
    "null byte": ("x = 1\0", "mine.py"),
    "raises": ("def f(rope, length):\n    raise KeyError('x')", "raised KeyError"),
    "by length": (
        "class f:\n    length_dependent = True\n    def __call__(self, rope, length):\n"
        "        return Frequencies([x / 2 for x in rope.inv_freq()])",
        "--freeze-at",
    ),
}


@pytest.mark.parametrize(("code", "sentence"), SCHEDULES.values(), ids=SCHEDULES)
def test_a_schedule_file_that_misbehaves_is_refused(model, capsys, monkeypatch, code, sentence):
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    Path("mine.py").write_text(HEAD + code)
    refused(capsys, ["patch", "model", "-o", "out", "--schedule", "mine.py::f", "--target-length", "1k"], sentence)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("model::f", "model"),
        ("model/config.json::f", "error: "),
        ("model/config.json", "needs a name"),
        ("my.module::", "names no class"),
    ],
)
def test_a_schedule_that_is_not_there_is_refused(model, capsys, spec, sentence):
    refused(capsys, ["patch", "model", "-o", "out", "--schedule", spec], sentence)


@pytest.mark.parametrize("words", [[*PATCH[:-1], "yarn:factor=abc"], PATCH], ids=["factor=abc", "gpt2"])
def test_the_installed_program_refuses_in_the_same_way(model, command_line, words):
    (model / "config.json").write_text('{"model_type": "gpt2"}')
    with unchanged(Path.cwd()):
        done = command_line(*words, cwd=model.parent)
    assert (done.returncode, done.stdout) == (2, "")
    one_error(done.stderr)
