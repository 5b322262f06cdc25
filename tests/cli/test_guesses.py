"""Misspelt words of options, and files that are no schedules, get an answer."""

import pytest
from configurations import LLAMA, write_checkpoint
from tiny import byte_tokenizer, llama

from ropescale.cli.options import DTYPES, Dtype


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "MODEL", "--for", "vlm"], "invalid value for '--for': unknown value 'vlm'; did you mean 'vllm'?"),
        (["export", "MODEL", "--for", "llamacpp"], "did you mean 'llama.cpp'?"),
        (["search", "MODEL", "--data", "x", "--target-length", "1k", "--objective", "textt"], "mean 'text'?"),
    ],
)
def test_a_misspelt_choice_is_guessed(ran, words, said):
    err = ran(*words, code=2).err
    assert said in err and err.count("\n") == 1


@pytest.mark.parametrize(("word", "name"), [("YaRN", "yarn"), ("NTK-by-parts", "ntk-by-parts"), ("LINEAR", "linear")])
def test_a_schedule_is_known_in_any_case(ran, tmp_path, word, name):
    folder = write_checkpoint(tmp_path, LLAMA)
    one, other = (ran("inspect", folder, "--schedule", f"{each}:factor=4", "--json").out for each in (word, name))
    assert one == other


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--schedule", "dynamic-ntk:factor=4"], "no schedule named 'dynamic-ntk'; did you mean 'dynamic'?"),
        (["--dtype", "bf61"], "'bf61'"),
        (["--dtype", "float23"], "did you mean 'float32'?"),
        (["--device", "gpu:99"], "device 'cuda:99' cannot be used"),
    ],
)
def test_words_of_others_are_understood_or_guessed(ran, tmp_path, words, said):
    (tmp_path / "text.txt").write_text("a text " * 99)
    llama().save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    err = ran("eval", tmp_path / "model", "--data", tmp_path / "text.txt", "--lengths", "16", *words, code=2).err
    assert said in err


@pytest.mark.parametrize(("short", "name"), [("bf16", "bfloat16"), ("fp16", "float16"), ("BF16", "bfloat16")])
def test_short_names_of_dtypes_are_those_of_torch(short, name):
    assert Dtype(DTYPES).convert(short, None, None) == name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *((name, "a schedule's file must end in .json or .py") for name in ("a.bak", "runs/a.txt", "a.yaml")),
        ("qqqqq", "see `ropescale schedules`"),
    ],
)
def test_a_file_of_another_kind_says_how_schedules_files_end_and_no_file_the_list(ran, tmp_path, name, said):
    write_checkpoint(tmp_path, {"model_type": "llama", "head_dim": 8, "max_position_embeddings": 64})
    assert f"no schedule named '{name}'; {said}" in ran("inspect", tmp_path, "--schedule", name, code=2).err
