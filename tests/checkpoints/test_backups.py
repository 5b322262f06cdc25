"""Patching in place and restoring touch no file but the four that patching writes, whatever a manifest says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from configurations import edit, read, write_checkpoint
from refusing import untouched

import ropescale
from ropescale.checkpoints.patching import restore
from ropescale.errors import ConfigError


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
    added = str(folder.parent / "canary") if name == "{canary}" else name
    edit(manifest.parent, manifest.name, **{key: [*read(manifest)[key], added]})
    (folder / "ropescale-backup" / "model.safetensors").write_bytes(b"planted")
    for act in (restore, patch):
        with untouched(folder.parent, r"manifest.json is damaged", ConfigError):
            act(folder)


@pytest.mark.parametrize("content", [{"replaced": ["config.json"], "added": []}, None])
def test_a_backup_that_is_a_link_is_not_followed(folder: Path, content: object) -> None:
    other = folder.parent / "other"
    other.mkdir()
    (other / "config.json").write_text("of another model")
    if content is not None:
        (other / "manifest.json").write_text(json.dumps(content))
    (folder / "ropescale-backup").symlink_to(other)
    for act in (restore, patch):
        with untouched(folder.parent, r"ropescale-backup is a symbolic link"):
            act(folder)
