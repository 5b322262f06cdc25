"""``-o`` with the folder of a model: every command that writes a run refuses it before it reads a weight."""

from __future__ import annotations

import pytest
from crashing import unchanged
from tiny import llama

COMMANDS = {
    "eval": ["eval", "MODEL", "--data", "TEXT", "--lengths", "32"],
    "retrieval": ["retrieval", "MODEL", "--lengths", "32"],
    "recommend": ["recommend", "MODEL", "--data", "TEXT", "--target-length", "128"],
    "search": ["search", "MODEL", "--data", "TEXT", "--target-length", "128"],
    "demo": ["demo"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_is_not_written_into_a_models_folder(name, tmp_path, refused):
    model = tmp_path / "q-search"
    llama(vocab_size=257).save_pretrained(model)
    (model / "model.safetensors").write_bytes(b"whoever reads this fails")
    (tmp_path / "text.txt").write_text("It was a bright cold day in April. " * 40)
    given = {"MODEL": str(model), "TEXT": str(tmp_path / "text.txt")}
    out = tmp_path / "q.json" if name == "search" else model
    with unchanged(tmp_path):
        said = refused(*(given.get(word, word) for word in COMMANDS[name]), "-o", str(out))
    assert said == f"error: cannot write into {model}: it holds a model (config.json) and no run; choose another folder"
