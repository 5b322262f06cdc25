"""Changes a checkpoint in place, and undoes the changes byte for byte, even after a crash.

The order is: list the original files in the manifest of a backup folder inside the checkpoint, copy the files to that
folder, list their replacements, and only then replace them. So every file with a listed replacement can be restored, no
other file was changed, and every copy is known to be ropescale's. The manifest contains the SHA-256 of originals and
replacements, so that a file that somebody changed later is not overwritten, and whether the change was completed, so
that an interrupted patch is recognised.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CheckpointError, ConfigError
from ..files import deferred, read_bytes, read_json, sha256, write_synced

if TYPE_CHECKING:
    from pydantic import TypeAdapter

BACKUP = "ropescale-backup"
"""The folder in which ``in_place`` keeps the original files."""

FILES = ("config.json", "ropescale.json", "README.md", "tokenizer_config.json")
"""The only files that patching writes; weights and other files of a checkpoint are never replaced."""

_MANIFEST, _PART, _LOCK = "manifest.json", ".part.ropescale", ".lock"


@dataclass
class Manifest:
    """The content of ``manifest.json``.

    Attributes:
        originals: the SHA-256 of each original file that the backup contains or will contain, by name.
        written: the SHA-256 of every content that ropescale wrote or will write, by name. A name that is missing in
            ``originals`` is a new file.
        finished: whether the change was completed.
    """

    originals: dict[str, str] = field(default_factory=dict)
    written: dict[str, list[str]] = field(default_factory=dict)
    finished: bool = True


def write_in_place(folder: Path, files: Mapping[str, bytes]) -> None:
    """Copies the original files into the backup, then replaces them.

    Args:
        folder: the checkpoint.
        files: the new content by name; the names are among :data:`FILES`.

    Raises:
        CheckpointError: the backup is a link to another folder or contains unknown files, another command is running,
            or a file was changed since it was patched, or during this call.
        ConfigError: an earlier backup is damaged.
    """
    with _locked(folder, make=True) as backup:
        manifest = _manifest(backup)
        _refuse_changed(folder, manifest, "patching again")
        new = [name for name in files if name not in manifest.written and os.path.lexists(folder / name)]
        originals = {name: read_bytes(folder / name) for name in new}
        manifest.originals |= {name: sha256(original) for name, original in originals.items()}
        _store(backup, manifest)
        for name, original in originals.items():
            _replace(backup, backup / name, original, folder / name)
        for name, content in files.items():
            manifest.written.setdefault(name, []).append(sha256(content))
        manifest.finished = False
        _store(backup, manifest)
        _refuse_changed(folder, manifest, "patching")
        for name, content in files.items():
            _replace(backup, folder / name, content)
            manifest.written[name] = [sha256(content)]
        manifest.finished = True
        _store(backup, manifest)


def put_back(folder: Path) -> bool:
    """Restores every original file and removes added files; returns whether any file had been changed.

    Raises:
        CheckpointError: the backup is a link to another folder, another command is running, or a file was changed since
            it was patched.
        ConfigError: the manifest is damaged, or an original file is missing or changed.
    """
    if not os.path.lexists(folder / BACKUP):
        return False
    with _locked(folder) as backup:
        manifest = _manifest(backup)
        for name, digest in manifest.originals.items():
            kept = backup / name if os.path.lexists(backup / name) else folder / name  # moved by an interrupted restore
            if name in manifest.written and not _is_file(kept, digest):
                raise ConfigError(
                    f"{backup / name} is missing or is not the original; download the checkpoint's {name} again"
                )
        _refuse_changed(folder, manifest, "restoring")
        for name in manifest.written:
            if name not in manifest.originals:
                (folder / name).unlink(missing_ok=True)
            elif os.path.lexists(backup / name):
                os.replace(backup / name, folder / name)
        _discard(backup, manifest)
    return bool(manifest.written)


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
    restored = any(not os.path.lexists(backup / name) for name in manifest.originals)  # restoring moves originals back
    recorded = os.path.lexists(folder / "ropescale.json")  # the record of the configuration's origin
    return restored or not recorded or not manifest.finished


@contextmanager
def _locked(folder: Path, make: bool = False) -> Iterator[Path]:
    """Yields the backup folder, locked against other commands; removes the folder at the end if it is unused.

    Args:
        make: create the folder if it is missing.
    """
    from filelock import FileLock, Timeout

    backup = folder / BACKUP
    _refuse_linked(backup)
    with deferred():  # until the lock is removed; only small files are written
        try:
            if make:
                backup.mkdir(exist_ok=True)
            with FileLock(backup / _LOCK).acquire(timeout=0):
                try:
                    yield backup
                finally:
                    with suppress(OSError):
                        with suppress(CheckpointError, ConfigError):
                            manifest = _manifest(backup)
                            if not manifest.written:  # no file was changed
                                _discard(backup, manifest)
                        (backup / _PART).unlink(missing_ok=True)
                        (backup / _LOCK).unlink()
        except Timeout:
            raise CheckpointError(f"another command is changing {folder} in place; wait until it is done") from None
        finally:
            with suppress(OSError):
                backup.rmdir()


def _discard(backup: Path, manifest: Manifest) -> None:
    """Removes the copies that are not needed any more, then the manifest; needs no room on the disk."""
    for name, digest in manifest.originals.items():
        if _is_file(backup / name, digest):
            (backup / name).unlink()
    (backup / _MANIFEST).unlink(missing_ok=True)


def _refuse_linked(backup: Path) -> None:
    for path in (backup, backup / _LOCK):
        if path.is_symlink():
            raise CheckpointError(f"{path} is a symbolic link instead of a folder with originals; remove the link")


def _is_file(path: Path, digest: str) -> bool:
    return path.is_file() and not path.is_symlink() and sha256(read_bytes(path)) == digest


def _refuse_changed(folder: Path, manifest: Manifest, doing: str) -> None:
    """Raises an error if a file is neither the original nor ropescale's, because its content has no backup."""
    for name, written in manifest.written.items():
        path, ours = folder / name, [*written, manifest.originals.get(name)]
        if os.path.lexists(path) and (path.is_symlink() or sha256(read_bytes(path)) not in ours):
            raise CheckpointError(
                f"{path} was changed since it was patched in place, and {doing} would lose the changes; move "
                "the file away first"
            )


def _manifest(backup: Path) -> Manifest:
    """Reads and validates the manifest, or returns an empty one if there is no file.

    The manifest may come from a download, so any name other than those of :data:`FILES` is an error.

    Raises:
        CheckpointError: the backup is a link to another folder, or contains a file that ropescale did not copy.
        ConfigError: the manifest is damaged, or names a file that patching never writes.
    """
    path, manifest = backup / _MANIFEST, Manifest()
    _refuse_linked(backup)
    if path.exists():
        from pydantic import ValidationError

        try:
            manifest = _adapter().validate_python(dict.fromkeys(asdict(manifest)) | read_json(path))
        except ValidationError:
            manifest = None
    if manifest is None or not manifest.originals.keys() | manifest.written.keys() <= {*FILES}:
        raise ConfigError(f"{path} is damaged; restore the originals next to it by hand")
    for name in FILES:
        if name not in manifest.originals and os.path.lexists(backup / name):
            what = "does not list" if path.exists() else "is missing, so it does not list"
            raise CheckpointError(f"{path} {what} the copy of {name}; restore that copy by hand, or move it away")
    return manifest


@cache
def _adapter() -> TypeAdapter[Manifest]:
    """Returns the validator of a manifest, which is cached because building it takes longer than reading the file."""
    from pydantic import TypeAdapter

    return TypeAdapter(Manifest)


def _store(backup: Path, manifest: Manifest) -> None:
    _replace(backup, backup / _MANIFEST, (json.dumps(asdict(manifest), indent=2) + "\n").encode())


def _replace(backup: Path, target: Path, content: bytes, original: Path | None = None) -> None:
    """Writes a file atomically.

    Args:
        original: the file whose mode and times the written file gets. Default: the mode of the replaced file, if any.
    """
    write_synced(backup / _PART, content)
    if original is not None:
        shutil.copystat(original, backup / _PART)
    elif target.exists():
        shutil.copymode(target, backup / _PART)
    os.replace(backup / _PART, target)


def refuse_links(folder: Path, names: list[str]) -> None:
    """Raises an error if a file to replace is a symbolic link, whose target may be shared, as in the Hub's cache.

    Raises:
        CheckpointError: a file to replace is a symbolic link.
    """
    for name in names:
        if (folder / name).is_symlink():
            raise CheckpointError(
                f"{folder / name} is a symbolic link, as in the Hub's shared cache; write to another folder instead",
                "out",
            )
