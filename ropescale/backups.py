"""Changing a checkpoint where it lies, so that it can be undone byte for byte even after a crash.

The originals are copied into a folder of ours inside the checkpoint, then its manifest is written, and only then is
a file replaced. So without a manifest nothing has been changed yet, and with one everything can be put back.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from .errors import CheckpointError, ConfigError
from .sources import read_json

BACKUP = "ropescale-backup"
"""The folder in which ``--in-place`` keeps what it replaced."""

FILES = ("config.json", "ropescale.json", "README.md", "tokenizer_config.json")
"""All that patching ever writes; the weights and whatever else lies in a checkpoint are never replaced."""

_MANIFEST, _PART = "manifest.json", "part"
"""``{"replaced": [names kept here], "added": [names that were not there]}``; and a file that is being written."""


def write_in_place(folder: Path, files: Mapping[str, bytes]) -> None:
    """Keeps what is there, then replaces file by file.

    Args:
        folder: the checkpoint.
        files: the new content of each file, by its name, one of :data:`FILES`.

    Raises:
        CheckpointError: the backup is a link to another folder.
        ConfigError: an earlier backup is damaged.
    """
    assert set(files) <= set(FILES), "restoring would refuse the others"
    _keep_originals(folder, list(files))
    for name, content in files.items():
        _replace(folder, name, content)


def put_back(folder: Path) -> bool:
    """Puts every original back and removes what was added; False where nothing had been changed.

    Raises:
        CheckpointError: the backup is a link to another folder.
        ConfigError: the manifest is damaged.
    """
    backup = folder / BACKUP
    if not backup.is_dir():
        return False
    manifest = _manifest(backup)
    changed = (backup / _MANIFEST).exists()
    if changed:
        _put_back(folder, backup, manifest)
    shutil.rmtree(backup)
    return changed


def _put_back(folder: Path, backup: Path, manifest: Mapping[str, list[str]]) -> None:
    for name in manifest["replaced"]:
        if os.path.lexists(backup / name):  # not there: put back by a restore that was interrupted
            os.replace(backup / name, folder / name)
    for name in manifest["added"]:
        (folder / name).unlink(missing_ok=True)
    (backup / _MANIFEST).unlink()


def _keep_originals(folder: Path, names: list[str]) -> None:
    """Adds to the backup what is not in it yet: after a second patch it still holds the first originals."""
    backup = folder / BACKUP
    manifest = _manifest(backup)
    new = [name for name in names if name not in manifest["replaced"] + manifest["added"]]
    there = [name for name in new if os.path.lexists(folder / name)]
    backup.mkdir(exist_ok=True)
    for name in there:
        (backup / name).unlink(missing_ok=True)
        shutil.copy2(folder / name, backup / name, follow_symlinks=False)
    manifest["replaced"] += there
    manifest["added"] += [name for name in new if name not in there]
    _replace(folder, f"{BACKUP}/{_MANIFEST}", (json.dumps(manifest, indent=2) + "\n").encode())


def _manifest(backup: Path) -> dict[str, list[str]]:
    """What lies in the backup; it may have been downloaded with the checkpoint, so it reaches no file but ours.

    Raises:
        CheckpointError: the backup is a link to another folder.
        ConfigError: the manifest is damaged, or names a file that patching never writes.
    """
    path = backup / _MANIFEST
    if backup.is_symlink():
        raise CheckpointError(f"{backup} is a symbolic link, and only a folder holds originals; remove the link")
    if not path.exists():
        return {"replaced": [], "added": []}
    manifest = read_json(path)
    names = [manifest.get("replaced"), manifest.get("added")]
    if not all(isinstance(each, list) and all(name in FILES for name in each) for each in names):
        raise ConfigError(f"{path} is damaged; the originals lie beside it, put them back by hand")
    return manifest


def _replace(folder: Path, name: str, content: bytes) -> None:
    """Writes a file in one step; the half-written one lies in the backup, where restoring clears it away."""
    part, target = folder / BACKUP / _PART, folder / name
    part.write_bytes(content)
    if target.exists():
        shutil.copymode(target, part)
    os.replace(part, target)


def refuse_links(folder: Path, names: list[str]) -> None:
    """A file that is a link belongs to something else as well (the Hub's cache), which ``--in-place`` must not split.

    Raises:
        CheckpointError: one of the files to be replaced is a symbolic link.
    """
    for name in names:
        if (folder / name).is_symlink():
            raise CheckpointError(
                f"{folder / name} is a symbolic link, as in the Hub's cache, which is shared; "
                "use -o OUT instead of --in-place"
            )
