"""Patching in place and restoring touch no file but the four that patching writes, whatever a manifest says."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from configurations import edit, read, write_checkpoint, write_files
from crashing import lasting, raising, tree, unchanged
from refusing import untouched

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


@pytest.mark.parametrize("damage", [{"written": 5}, {"originals": ["config.json"]}, {}])
def test_a_damaged_manifest_is_named_and_the_originals_stay(folder: Path, damage: dict[str, object]) -> None:
    patch(folder)
    if damage:
        edit(folder / "ropescale-backup", "manifest.json", **damage)
    else:
        (folder / "ropescale-backup" / "manifest.json").write_text("{}")
    with untouched(folder.parent, r"manifest.json is damaged", ConfigError):
        restore(folder)


def test_a_backup_that_is_a_link_is_not_followed(folder: Path) -> None:
    content = {"originals": {"config.json": "0"}, "written": {"config.json": []}, "finished": True}
    write_files(folder.parent / "other", {"config.json": "of another model", "manifest.json": json.dumps(content)})
    (folder / "ropescale-backup").symlink_to(folder.parent / "other")
    for act in (restore, patch):
        with untouched(folder.parent, r"ropescale-backup is a symbolic link"):
            act(folder)


@pytest.mark.parametrize("moved", [0, 1])
def test_a_restore_that_fails_leaves_the_folder_usable_unless_something_has_moved(folder, monkeypatch, moved):
    (folder / "README.md").write_text("the card")
    before = tree(folder)
    patch(folder)
    replace = os.replace
    move = lasting(moved, OSError(28, "No space left on device"))(replace)
    with monkeypatch.context() as full:
        full.setattr(os, "replace", lambda old, new: (move if new.parent == folder else replace)(old, new))
        with pytest.raises(CheckpointError, match="No space left"):
            restore(folder)
    if moved:
        with untouched(folder, "interrupted"):
            ropescale.patch_checkpoint(folder, None, "yarn:factor=2", dry_run=True)
    else:
        with unchanged(folder):
            ropescale.patch_checkpoint(folder, None, "yarn:factor=2", dry_run=True)
    restore(folder)
    assert tree(folder) == before


@pytest.mark.parametrize("again", [restore, patch])
def test_a_backup_whose_originals_are_all_restored_is_cleared_by_the_next_command(folder, monkeypatch, again):
    (folder / "README.md").write_text("the card")
    before = tree(folder)
    patch(folder)
    whole = tree(folder)
    unlink = Path.unlink
    stop = raising(KeyboardInterrupt())
    with monkeypatch.context() as killed:
        killed.setattr(
            Path, "unlink", lambda path, **how: (stop if path.name == "manifest.json" else unlink)(path, **how)
        )
        with pytest.raises(KeyboardInterrupt):
            restore(folder)
    with untouched(folder, "interrupted"):
        ropescale.patch_checkpoint(folder, None, "yarn:factor=2", dry_run=True)
    again(folder)
    assert tree(folder) == (before if again is restore else whole)
