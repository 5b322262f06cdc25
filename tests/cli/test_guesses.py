"""Misspelt words of options, and files that are no schedules, get an answer."""

import pytest
from configurations import write_checkpoint


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "MODEL", "--for", "vlm"], "invalid value for '--for': 'vlm' is not known; did you mean 'vllm'?"),
        (["export", "MODEL", "--for", "llamacpp"], "did you mean 'llama.cpp'?"),
        (["search", "MODEL", "--data", "x", "--target-length", "1k", "--objective", "textt"], "mean 'text'?"),
    ],
)
def test_a_misspelt_choice_is_guessed(ran, words, said):
    err = ran(*words, code=2).err
    assert said in err and err.count("\n") == 1


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
