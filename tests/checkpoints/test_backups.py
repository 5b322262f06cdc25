"""Patching in place and restoring touch no file but the four that patching writes, whatever a manifest says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from configurations import write_checkpoint
from crashing import tree

import ropescale
from ropescale.checkpoints.patching import restore
from ropescale.errors import CheckpointError, ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint beside a file that is none of ours."""
    (tmp_path / "canary").write_text("alive")
    return write_checkpoint(tmp_path / "model", files={"model.safetensors": b"weights"})


def patch(folder: Path) -> None:
    ropescale.patch_checkpoint(folder, None, "yarn:factor=4", in_place=True)


@pytest.mark.parametrize("key", ["added", "replaced"])
@pytest.mark.parametrize(
    "name",
    ["../canary", "{canary}", "model.safetensors", "ropescale-backup", ".", "", "\0", 5, None, ["a"], "config.json"],
)
def test_a_manifest_reaches_nothing_but_what_patching_writes(folder: Path, key: str, name: object) -> None:
    patch(folder)
    manifest = folder / "ropescale-backup" / "manifest.json"
    content = json.loads(manifest.read_text())
    content[key].append(str(folder.parent / "canary") if name == "{canary}" else name)
    manifest.write_text(json.dumps(content))
    (folder / "ropescale-backup" / "model.safetensors").write_bytes(b"planted")
    before = tree(folder.parent)
    for act in (restore, patch):
        with pytest.raises(ConfigError, match=r"manifest.json is damaged"):
            act(folder)
    assert tree(folder.parent) == before


@pytest.mark.parametrize("content", [{"replaced": ["config.json"], "added": []}, None])
def test_a_backup_that_is_a_link_is_not_followed(folder: Path, content: object) -> None:
    other = folder.parent / "other"
    other.mkdir()
    (other / "config.json").write_text("of another model")
    if content is not None:
        (other / "manifest.json").write_text(json.dumps(content))
    (folder / "ropescale-backup").symlink_to(other)
    before = tree(folder.parent)
    for act in (restore, patch):
        with pytest.raises(CheckpointError, match=r"ropescale-backup is a symbolic link"):
            act(folder)
    assert tree(folder.parent) == before


def test_every_file_that_patching_writes_can_be_put_back(folder: Path) -> None:
    (folder / "README.md").write_text("the makers' words")
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 128}')
    before = tree(folder)
    patch(folder)
    names = {"config.json", "ropescale.json", "README.md", "tokenizer_config.json"}
    assert {name for name in tree(folder) if before.get(name) != tree(folder)[name] and "/" not in name} >= names
    restore(folder)
    assert tree(folder) == before
