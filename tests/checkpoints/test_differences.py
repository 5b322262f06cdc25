"""``patch`` shows, for every file, the change that it then writes."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from configurations import write_checkpoint

import ropescale
from ropescale.checkpoints.contents import diff
from ropescale.checkpoints.patching import PatchedCheckpoint

TOKENIZER = {"added_tokens_decoder": {"0": {"content": "<s>"}}, "model_max_length": 256, "padding_side": "left"}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    files = {"tokenizer_config.json": json.dumps(TOKENIZER), "README.md": "---\nlicense: mit\n---\n\n# Theirs\n"}
    return write_checkpoint(tmp_path / "model", files=files | {"model.safetensors": b"weights"})


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def patched(**options: Any) -> PatchedCheckpoint:
    return ropescale.patch_checkpoint("model", options.pop("out", None), "yarn:factor=4", **options)


@pytest.mark.parametrize("options", [{"out": "out"}, {"in_place": True}])
def test_every_file_that_changes_is_shown_and_no_other(model, options):
    before = contents(model)
    promised = patched(dry_run=True).changes
    done = patched(**options)
    after = contents(done.folder or model)
    assert set(promised) == {name for name in after if before.get(name) != after[name]}
    assert done.changes == promised


def test_the_tokenizers_limit_is_a_diff(model):
    assert patched(dry_run=True).changes["tokenizer_config.json"] == (
        "--- tokenizer_config.json (source)\n+++ tokenizer_config.json (patched)\n@@ -1,3 +1,3 @@\n {\n"
        '-  "model_max_length": 256\n+  "model_max_length": 1024\n }\n'
    )


def test_a_large_tokenizer_is_compared_in_no_time_and_shown_in_a_few_lines(model):
    tokens = {str(i): {"content": f"<{i}>", "lstrip": False, "special": True} for i in range(100_000)}
    old = {"added_tokens_decoder": tokens, "chat_template": "x" * 100_000, "model_max_length": 1}
    start = time.perf_counter()
    found = diff(old, old | {"model_max_length": 2}, "tokenizer_config.json")
    inner = diff({"text_config": old}, {"text_config": old | {"model_max_length": 2}}, "config.json")
    assert time.perf_counter() - start < 2 and '-    "model_max_length": 1\n+    "model_max_length": 2\n' in inner
    assert '-  "model_max_length": 1\n+  "model_max_length": 2\n' in found
    assert len(found) < 1000


def test_the_card_and_the_record_are_told_in_a_line_each(model):
    done = patched(out="out")
    assert done.changes["README.md"] == 'changed: section "Context extension"'
    assert done.changes["ropescale.json"] == "new file: contains the changes, and how to undo them"
    (model / "README.md").unlink()
    assert patched(dry_run=True).changes["README.md"].startswith("new file: ")
    patched(in_place=True)
    assert patched(dry_run=True).changes == {}
    again = ropescale.patch_checkpoint("model", None, "yarn:factor=8", dry_run=True).changes
    assert again["ropescale.json"] == "changed: contains the changes, and how to undo them"
    assert "1000000000" in diff({"a": [10**400] * 9}, {"a": [1.0] * 9}, "a")  # beyond every float
