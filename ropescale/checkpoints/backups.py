"""Changes a checkpoint in place, and undoes this byte for byte, even after a crash.

First copies the originals into a backup folder inside the checkpoint, then writes a manifest, and only then replaces
files. So without a manifest no file has been changed yet, and with one every file can be restored. The manifest lists
the SHA-256 of originals and replacements, which protects files that somebody changed later, and whether the change was
completed, which identifies an interrupted patch.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..errors import CheckpointError, ConfigError
from ..files import deferred, read_bytes, read_json, sha256, write_synced

BACKUP = "ropescale-backup"
"""The folder where ``in_place`` keeps the originals."""

FILES = ("config.json", "ropescale.json", "README.md", "tokenizer_config.json")
"""The only files that patching writes; weights and other files of a checkpoint are never replaced."""

_MANIFEST, _PART, _LOCK = "manifest.json", ".part.ropescale", ".lock"


@dataclass
class Manifest:
    """The content of ``manifest.json``.

    Attributes:
        originals: SHA-256 of each original in the backup, by name.
        written: SHA-256 of all content that ropescale wrote, by name; a name without an original is a new file.
        finished: whether the change was completed.
    """

    originals: dict[str, str] = field(default_factory=dict)
    written: dict[str, list[str]] = field(default_factory=dict)
    finished: bool = True


def write_in_place(folder: Path, files: Mapping[str, bytes]) -> None:
    """Copies the originals into the backup, then replaces the files.

    Args:
        folder: the checkpoint.
        files: the new content by name, one of :data:`FILES`.

    Raises:
        CheckpointError: the backup is a link to another folder or contains unknown files, another command is running,
            or a file was changed since it was patched and has no backup.
        ConfigError: an earlier backup is damaged.
    """
    assert set(files) <= set(FILES), "restoring would refuse the others"
    with _locked(folder, make=True) as backup:
        manifest = _manifest(backup)
        _refuse_changed(folder, manifest.written, manifest, "patching again")
        _keep_originals(folder, backup, [name for name in files if name not in manifest.written], manifest)
        for name, content in files.items():
            manifest.written.setdefault(name, []).append(sha256(content))
        _store(backup, manifest, finished=False)
        for name, content in files.items():
            part, target = backup / _PART, folder / name
            write_synced(part, content)
            if target.exists():
                shutil.copymode(target, part)
            _refuse_changed(folder, [name], manifest, "patching")
            os.replace(part, target)
            manifest.written[name] = [sha256(content)]
        _store(backup, manifest, finished=True)


def put_back(folder: Path) -> bool:
    """Restores every original and removes added files; returns False if no file had been changed.

    Raises:
        CheckpointError: the backup is a link to another folder, another command is running, or a file was changed since
            it was patched.
        ConfigError: the manifest is damaged.
    """
    if not os.path.lexists(folder / BACKUP):
        return False
    with _locked(folder) as backup:
        manifest = _manifest(backup)
        changed = (backup / _MANIFEST).exists()
        _refuse_damaged(folder, backup, manifest)
        if changed:
            _refuse_changed(folder, manifest.written, manifest, "restoring")
            for name in manifest.written:
                _refuse_changed(folder, [name], manifest, "restoring")
                if name not in manifest.originals:
                    (folder / name).unlink(missing_ok=True)
                elif os.path.lexists(backup / name):  # otherwise an interrupted restore has already restored it
                    os.replace(backup / name, folder / name)
            (backup / _MANIFEST).unlink()
    return changed


def is_interrupted(folder: Path) -> bool:
    """Whether a patch in place, or a restore, was interrupted in this folder or is running now.

    Raises:
        CheckpointError: the backup is a link to another folder.
        ConfigError: the manifest is damaged.
    """
    backup = folder / BACKUP
    if not (backup / _MANIFEST).exists():
        return False
    manifest = _manifest(backup)
    restored = any(not os.path.lexists(backup / name) for name in manifest.originals)  # restoring moves them
    recorded = os.path.lexists(folder / "ropescale.json")  # it records the origin of the configuration
    return restored or not recorded or not manifest.finished


@contextmanager
def _locked(folder: Path, make: bool = False) -> Iterator[Path]:
    """Yields the backup's folder, created on request and locked against other commands; removes it if empty."""
    from filelock import FileLock, Timeout

    backup = folder / BACKUP
    _refuse_linked(backup)
    try:
        if make:
            backup.mkdir(exist_ok=True)
        with FileLock(backup / _LOCK).acquire(timeout=0):
            try:
                yield backup
            finally:
                with deferred(), suppress(OSError, CheckpointError):
                    if not (backup / _MANIFEST).exists():  # no file was changed, or all are restored
                        for name in (_PART, *(name for name in FILES if _is_copy(folder, backup, name))):
                            (backup / name).unlink(missing_ok=True)
                    (backup / _LOCK).unlink()
    except Timeout:
        raise CheckpointError(f"another command is changing {folder} in place; wait until it is done") from None
    finally:
        with suppress(OSError):
            backup.rmdir()


def _refuse_linked(backup: Path) -> None:
    for path in (backup, backup / _LOCK):
        if path.is_symlink():
            raise CheckpointError(f"{path} is a symbolic link instead of a folder with originals; remove the link")
    if backup.exists() and not backup.is_dir():
        raise CheckpointError(f"{backup} is a file, but the originals need a folder of that name; move it away")


def _refuse_damaged(folder: Path, backup: Path, manifest: Manifest) -> None:
    """Refuses to restore or remove files while an original is missing or changed.

    Raises:
        ConfigError: names the file.
    """
    for name in FILES:
        kept, current = backup / name, folder / name
        if name not in manifest.originals:
            if os.path.lexists(kept) and not _is_copy(folder, backup, name):
                raise ConfigError(f"{backup / _MANIFEST} does not list {kept}; restore it by hand if it is yours")
        elif os.path.lexists(kept):
            if sha256(read_bytes(kept)) != manifest.originals.get(name):
                raise ConfigError(f"{kept} is not the original; download the checkpoint's {name} again")
        elif not (current.is_file() and sha256(read_bytes(current)) == manifest.originals.get(name)):
            raise ConfigError(f"{kept} is missing, and {current} is not the original; download that file again")


def _refuse_changed(folder: Path, names: Iterable[str], manifest: Manifest, doing: str) -> None:
    """Refuses to overwrite a file that is neither ropescale's nor the original, because it has no backup."""
    for name in names:
        path, ours = folder / name, [*manifest.written[name], manifest.originals.get(name)]
        if os.path.lexists(path) and (path.is_symlink() or sha256(read_bytes(path)) not in ours):
            raise CheckpointError(
                f"{path} was changed since it was patched in place, and {doing} would lose the changes; move "
                "the file away first"
            )


def _is_copy(folder: Path, backup: Path, name: str) -> bool:
    """Whether a backup equals the current file, as after a patch that was killed before it wrote the manifest."""
    kept, current = backup / name, folder / name
    both = kept.is_file() and current.is_file() and not kept.is_symlink()
    return both and read_bytes(kept) == read_bytes(current)


def _keep_originals(folder: Path, backup: Path, names: Iterable[str], manifest: Manifest) -> None:
    """Copies the existing files of these names into the backup."""
    for name in names:
        if not os.path.lexists(folder / name):
            continue
        if os.path.lexists(backup / name) and not _is_copy(folder, backup, name):
            raise CheckpointError(f"{backup / name} is not ropescale's backup; move {backup} away")
        content = read_bytes(folder / name)
        write_synced(backup / _PART, content)
        shutil.copystat(folder / name, backup / _PART)
        os.replace(backup / _PART, backup / name)
        manifest.originals[name] = sha256(content)


def _manifest(backup: Path) -> Manifest:
    """Reads and validates the manifest; it may be downloaded, so it may name only files that patching writes.

    Raises:
        CheckpointError: the backup is a link to another folder.
        ConfigError: the manifest is damaged, or names a file that patching never writes.
    """
    path = backup / _MANIFEST
    _refuse_linked(backup)
    if not path.exists():
        return Manifest()
    from pydantic import TypeAdapter, ValidationError

    needed = dict.fromkeys(asdict(Manifest()))
    try:
        manifest = TypeAdapter(Manifest).validate_python(needed | read_json(path))
    except ValidationError:
        manifest = None
    there = [backup / name for name in FILES if os.path.lexists(backup / name)]
    links = any(kept.is_symlink() or not kept.is_file() for kept in there)
    if manifest is None or links or not manifest.originals.keys() <= manifest.written.keys() <= {*FILES}:
        raise ConfigError(f"{path} is damaged; restore the originals next to it by hand")
    return manifest


def _store(backup: Path, manifest: Manifest, finished: bool) -> None:
    manifest.finished = finished
    write_synced(backup / _PART, (json.dumps(asdict(manifest), indent=2) + "\n").encode())
    os.replace(backup / _PART, backup / _MANIFEST)


def refuse_links(folder: Path, names: list[str]) -> None:
    """Refuses to replace links, which may be shared, such as those of the Hub's cache.

    Raises:
        CheckpointError: a file to replace is a symbolic link.
    """
    for name in names:
        if (folder / name).is_symlink():
            raise CheckpointError(
                f"{folder / name} is a symbolic link, as in the Hub's shared cache; write to another folder instead",
                "out",
                "in_place",
            )
