"""Restoring touches nothing but the files that patching in place wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ropescale
from ropescale.errors import ConfigError

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
}


@pytest.mark.parametrize("key", ["added", "replaced"])
@pytest.mark.parametrize("name", ["../canary", "sub/canary", "..", "", "\0", 5, None])
def test_a_manifest_cannot_reach_outside_its_folder(tmp_path: Path, key: str, name: object) -> None:
    folder, canary = tmp_path / "model", tmp_path / "canary"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    canary.write_text("alive")
    ropescale.patch_checkpoint(folder, None, "yarn:factor=4", in_place=True)
    manifest = folder / "ropescale-backup" / "manifest.json"
    content = json.loads(manifest.read_text())
    content[key].append(str(canary) if name == "sub/canary" else name)
    manifest.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="is damaged"):
        ropescale.restore(folder)
    assert canary.read_text() == "alive"
