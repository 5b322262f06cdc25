"""Patching in place and restoring touch no file but the four that patching writes, whatever a manifest says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from configurations import edit, read, write_checkpoint, write_files
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


@pytest.mark.parametrize("key", ["written", "originals"])
@pytest.mark.parametrize("name", ["../canary", "{canary}", "model.safetensors", "", "\0"])
def test_a_manifest_reaches_nothing_but_what_patching_writes(folder: Path, key: str, name: str) -> None:
    patch(folder)
    manifest = folder / "ropescale-backup" / "manifest.json"
    added = name.format(canary=folder.parent / "canary")
    edit(manifest.parent, manifest.name, **{key: read(manifest)[key] | {added: ["0"] if key == "written" else "0"}})
    for act in (restore, patch):
        with untouched(folder.parent, r"manifest.json is damaged", ConfigError):
            act(folder)


def test_a_backup_that_is_a_link_is_not_followed(folder: Path) -> None:
    content = {"originals": {"config.json": "0"}, "written": {"config.json": []}, "finished": True}
    write_files(folder.parent / "other", {"config.json": "of another model", "manifest.json": json.dumps(content)})
    (folder / "ropescale-backup").symlink_to(folder.parent / "other")
    for act in (restore, patch):
        with untouched(folder.parent, r"ropescale-backup is a symbolic link"):
            act(folder)
