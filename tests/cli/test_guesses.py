"""Misspelt words of options, and files that are no schedules, get an answer."""

import pytest

from ropescale.cli import main as shell


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "MODEL", "--for", "trll"], "invalid value for '--for': 'trll' is not known; did you mean 'trl'?"),
        (["export", "MODEL", "--for", "llamacpp"], "did you mean 'llama.cpp'?"),
        (["search", "MODEL", "--data", "x", "--target-length", "1k", "--method", "gradiant"], "mean 'gradient'?"),
        (["export", "MODEL", "--for", "xyz"], "is not one of"),
    ],
)
def test_a_misspelt_choice_is_guessed(capsys, words, said):
    assert shell.main(words) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


@pytest.mark.parametrize("name", ["factors.bak", "runs/factors.txt", "factors.yaml"])
def test_a_file_of_another_kind_says_how_schedules_files_end(capsys, tmp_path, name):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "head_dim": 8, "max_position_embeddings": 64}')
    assert shell.main(["inspect", str(tmp_path), "--schedule", name]) == 2
    assert f"no schedule named '{name}'; a schedule's file must end in .json or .py" in capsys.readouterr().err


def test_what_looks_like_no_file_is_told_of_the_list(capsys, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "head_dim": 8, "max_position_embeddings": 64}')
    assert shell.main(["inspect", str(tmp_path), "--schedule", "qqqqq"]) == 2
    assert "no schedule named 'qqqqq'; see `ropescale schedules`" in capsys.readouterr().err
